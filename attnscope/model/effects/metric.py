"""The metric of a prediction, in which all effects are measured: one number for each sequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from attnscope.base.errors import ModelError
from attnscope.model.effects.options import MEANINGS, Kind

Inputs = dict[str, torch.Tensor]  #: a model's arguments by name, `n_batch n_Q`


@dataclass(frozen=True)
class PredictionMetric:
    """A number that a model's prediction has for each sequence."""

    kind: Kind
    #: the positions whose logits are read; None: the model has one prediction for the whole sequence
    positions: list[int] | None = None
    #: for each position, the token whose logit is read; the only class of a classifier
    answer: tuple[int, ...] = ()
    against: int | None = None  #: another token or class, whose logit is subtracted
    #: the embedding to which a similarity or distance is measured, `d_feat`
    embedding: torch.Tensor | None = None
    against_embedding: torch.Tensor | None = None  #: another, whose similarity is subtracted

    @property
    def meaning(self) -> str:
        """What it is, in words."""
        differs = self.against is not None or self.against_embedding is not None
        return MEANINGS[self.kind] + (", minus that of the other answer" if differs else "")

    def of(self, prediction: torch.Tensor) -> torch.Tensor:
        """Return the metric of each sequence, `n_batch`, at least in float32.

        A prediction is logits at the positions, `n_batch n_position n_token`; those of classes,
        `n_batch n_class`; or embeddings, `n_batch d_feat`.
        """
        prediction = prediction.to(torch.promote_types(prediction.dtype, torch.float32))
        if self.kind in (Kind.SIMILARITY, Kind.DISTANCE):
            return self._of_embeddings(prediction)
        if self.positions is None:
            prediction = prediction[:, None]
        tokens = torch.tensor(self.answer, device=prediction.device)
        logits = prediction.gather(2, tokens.expand(len(prediction), -1)[..., None])[..., 0]
        if self.kind is Kind.LOGIT:
            if self.against is not None:
                logits = logits - prediction[:, :, self.against]
            return logits[:, 0]
        of_answer = logits - prediction.logsumexp(dim=2)
        if self.kind is Kind.LOSS:
            return -of_answer.mean(dim=1)
        if self.against is not None:  # the normalization is the same
            return logits[:, 0] - prediction[:, 0, self.against]
        return of_answer.sum(dim=1)

    def _of_embeddings(self, embeddings: torch.Tensor) -> torch.Tensor:
        assert self.embedding is not None
        similarity = cosine_similarity(embeddings, self.embedding[None], dim=1)
        if self.kind is Kind.DISTANCE:
            return 1 - similarity
        if self.against_embedding is None:
            return similarity
        return similarity - cosine_similarity(embeddings, self.against_embedding[None], dim=1)


def predict(model: Any, inputs: Inputs, metric: PredictionMetric) -> torch.Tensor:
    """Run a model and return the part of its prediction that a metric reads.

    Logits are computed at the metric's positions only: for a long text, they are the largest tensor.
    """
    if metric.kind in (Kind.SIMILARITY, Kind.DISTANCE):
        return embeddings_of(model, inputs)
    with _logits_at(model, metric.positions) as selected:
        output = model(**inputs, return_dict=True)
    logits = logits_of(model, output)
    if metric.positions is not None and not selected:
        logits = logits[:, metric.positions]
    return logits


def logits_of(model: Any, output: Any) -> torch.Tensor:
    """Return the logits of a model's output."""
    for name in ("logits", "prediction_logits"):
        if output.get(name) is not None:
            return output[name]
    raise ModelError(f"the model is a {type(model).__name__}, whose output has no logits.")


def embeddings_of(model: Any, inputs: Inputs) -> torch.Tensor:
    """Return the mean of the last hidden states over a sequence's tokens, `n_batch d_feat`."""
    states = model(**inputs, return_dict=True).last_hidden_state
    return states.to(torch.promote_types(states.dtype, torch.float32)).mean(dim=1)


@contextmanager
def _logits_at(model: Any, positions: list[int] | None) -> Iterator[list[bool]]:
    """Let a model compute logits at some positions only; yield a list that is empty until it does so."""
    selected: list[bool] = []
    head = None if positions is None else model.get_output_embeddings()
    if head is None:
        yield selected
        return
    n_token = max(positions) + 1 if positions else 0

    def select(module: Any, arguments: tuple[torch.Tensor, ...]) -> Any:
        states = arguments[0]
        if states.dim() != 3 or states.shape[1] < n_token or selected:
            return None
        selected.append(True)
        return (states[:, positions], *arguments[1:])

    with head.register_forward_pre_hook(select):
        yield selected
