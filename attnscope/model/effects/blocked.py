"""Block attention: queries that may not read some keys, in one head or in all.

Source: Geva et al. (2023), "Dissecting Recall of Factual Associations in Auto-Regressive Language
Models", section 5 (attention knockout)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnscope.base.errors import OptionError
from attnscope.model.effects.baseline import Baseline
from attnscope.model.effects.exact import Change
from attnscope.model.effects.metric import predict
from attnscope.model.run.attention_hook import AttentionInputs, KernelCall, attention_inputs, intercepted
from attnscope.model.run.load import as_model_error

Heads = dict[int, list[list[int]]]
"""By the index of a layer: for each sequence, the heads in which keys are blocked."""


@dataclass(frozen=True)
class BlockedKeys:
    """Pairs of queries and keys, such that the query may not read the key."""

    pairs: Sequence[tuple[list[int], list[int]]]  #: the keys and the queries of each block
    #: which of them a layer's own mask shows, in any layer that ran: pairs of positions
    visible: set[tuple[int, int]] = field(default_factory=set)

    @property
    def notice(self) -> str | None:
        """A sentence about pairs that the model's own mask hides anyway; None: there are none."""
        every = {(query, key) for keys, queries in self.pairs for query in queries for key in keys}
        hidden = sorted(every - self.visible)
        if not hidden:
            return None
        query, key = hidden[0]
        which = (
            f"{len(hidden):,} of the {len(every):,} blocked pairs of a query and a key are hidden anyway"
        )
        if len(hidden) == len(every):
            which = "no query reads the blocked keys anyway"
        return f"{which}: the model's own mask hides key {key} from query {query}."

    def hidden(self, n_Q: int, n_K: int, device: torch.device) -> torch.Tensor:
        """Return which keys are hidden, `n_Q n_K`."""
        hidden = torch.zeros(n_Q, n_K, dtype=torch.bool, device=device)
        for keys, queries in self.pairs:
            hidden[torch.tensor(queries)[:, None], torch.tensor(keys)[None]] = True
        return hidden


def blocked_effects(
    baseline: Baseline, index: int, blocks: BlockedKeys, changes: Sequence[Change]
) -> list[float]:
    """Return how much the metric changes if keys are blocked in one head of a layer, for each head."""
    heads = {index: [[change.head] for change in changes]}
    values = _run(baseline, blocks, heads, len(changes), restart=True)
    return (values.double() - baseline.value).tolist()


def blocked_at_once(baseline: Baseline, blocks: BlockedKeys, heads: dict[int, list[int]]) -> float:
    """Return how much the metric changes if keys are blocked in several heads of several layers."""
    values = _run(baseline, blocks, {index: [own] for index, own in heads.items()}, 1, restart=False)
    return float(values[0]) - baseline.value


def _run(
    baseline: Baseline, blocks: BlockedKeys, heads: Heads, n_row: int, *, restart: bool
) -> torch.Tensor:
    """Return the metric of several sequences, in which keys are blocked in some heads.

    If it may restart, the layers before the only one with such heads return what they returned before.
    """
    index = {(layer.path, layer.turn): i for i, layer in enumerate(baseline.layers)}
    turns: dict[str, int] = {}

    def call(kernel: KernelCall) -> Any:
        turn = turns[kernel.path] = turns.get(kernel.path, -1) + 1
        own = heads.get(index.get((kernel.path, turn), -1))
        if own is None:
            return kernel.compute()
        return replace(kernel, mask=_mask(attention_inputs(kernel), blocks, own)).compute()

    repeated = {name: each.expand(n_row, *each.shape[1:]) for name, each in baseline.inputs.items()}
    path = baseline.layers[min(heads)].path if restart and baseline.restarts else ""
    with (
        torch.no_grad(),
        as_model_error(baseline.checkpoint),
        baseline.states.replayed(path, n_row),
        intercepted(baseline.model, call, kernels=("sdpa", "eager")),
    ):
        return baseline.metric.of(predict(baseline.model, repeated, baseline.metric))


def _mask(inputs: AttentionInputs, blocks: BlockedKeys, heads: list[list[int]]) -> torch.Tensor:
    """Return a mask that is added to the scores, `n_batch n_head n_Q n_K`, with more keys hidden."""
    n_batch, n_head, n_Q, _ = inputs.query.shape
    n_K = inputs.key.shape[-2]
    added = inputs.added_mask()
    if added is None:
        added = inputs.query.new_zeros(1, 1, n_Q, n_K)
    hidden = blocks.hidden(n_Q, n_K, inputs.query.device)
    lowest = torch.finfo(inputs.query.dtype).min
    visible = added > lowest / 2
    seen = (visible & hidden).expand(n_batch, n_head, n_Q, n_K).any(dim=0).any(dim=0)
    blocks.visible.update(map(tuple, seen.nonzero().tolist()))
    alone = (visible & ~hidden).any(dim=-1) < visible.any(dim=-1)
    if inputs.sinks is None and bool(alone.any()):
        query = int(alone.nonzero()[0, -1])
        raise OptionError(
            f"--block leaves query {query} no key to read.", hint="fewer keys, or another query"
        )
    mask = added.expand(n_batch, n_head, n_Q, n_K).clone()
    for row, own in enumerate(heads):
        mask[row, own] = mask[row, own].masked_fill(hidden, lowest)
    return mask
