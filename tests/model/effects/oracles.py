"""What each head does to a prediction, found by hooks on the modules of W_O, which `families` names.

A head's output is its slice of what goes into W_O. It is replaced by a forward pre-hook. Nothing of
attnscope runs here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from tests.model.effects.families import FAMILIES, SOFT_CAPS, Stack, build

Head = tuple[str, int, int]
"""A stack, a layer, a head."""

Outputs = dict[tuple[str, int], torch.Tensor]
"""What goes into each layer's W_O, `1 n_Q n_head*d_V`."""


@dataclass(frozen=True)
class Question:
    """What a model is asked.

    Attributes:
        ids: what it reads; an encoder, if there are two stacks.
        answer, against: token ids; `against` None: the answer alone.
        read: what the decoder reads, with its start token.
        position: where the answer is predicted.
        metric: as attnscope calls it.
    """

    ids: tuple[int, ...]
    answer: tuple[int, ...] = ()
    against: int | None = None
    read: tuple[int, ...] = ()
    position: int = -1
    metric: str = "logit"

    def inputs(self) -> dict[str, torch.Tensor]:
        """The model's arguments."""
        given = {"input_ids": torch.tensor([self.ids])}
        if self.read:
            given["decoder_input_ids"] = torch.tensor([self.read])
        return given

    def of(self, logits: torch.Tensor) -> torch.Tensor:
        """The metric of logits, `1 n_Q n_token`."""
        logits = logits[0]
        if self.metric == "loss":
            labels = torch.tensor(self.ids[1:])
            return torch.nn.functional.cross_entropy(logits[:-1], labels)
        if self.metric == "log-probability":  # the answer stands at the end of what is read
            n = len(self.answer)
            places = logits[len(logits) - n :].log_softmax(-1)
            return sum(places[k, token] for k, token in enumerate(self.answer))
        at = logits[self.position]
        return at[self.answer[0]] - (0 if self.against is None else at[self.against])


class Oracle:
    """A family's small model, whose heads are changed by hand.

    Args:
        name: the family.
        more: as in `build`.
    """

    def __init__(self, name: str, **more: Any) -> None:
        self.name, self.family = name, FAMILIES[name]
        self.model = build(name, **more)
        whole = self.model.base_model_prefix  # is missing from the names of a model without a head
        self.prefix = "" if hasattr(self.model, whole) else f"{whole}."
        self.model.requires_grad_(False)

    def stack(self, name: str) -> Stack:
        return self.family.stacks[name]

    def heads(self) -> list[Head]:
        """All heads."""
        return [
            (name, layer, head)
            for name, stack in self.family.stacks.items()
            for layer in stack.layers
            for head in range(stack.n_head)
        ]

    def part(self, head: Head, x: torch.Tensor) -> slice:
        """A head's part of what goes into W_O."""
        stack, _, number = head
        width = x.shape[-1] / self.stack(stack).n_head
        assert width == int(width)
        return slice(number * int(width), (number + 1) * int(width))

    @contextmanager
    def hooked(self, change: Any) -> Iterator[None]:
        """Let a function exchange what goes into every W_O.

        Args:
            change: called with a stack, a layer and what goes in; returns something else, or None.
        """
        with ExitStack() as hooks:
            for name, stack in self.family.stacks.items():
                for path, layers in stack.modules().items():
                    hook = self._hook(name, layers, change)
                    module = self.model.get_submodule(path.removeprefix(self.prefix))
                    handle = module.register_forward_pre_hook(hook)
                    hooks.callback(handle.remove)
            yield

    def _hook(self, stack: str, layers: list[int], change: Any) -> Any:
        """A hook of a module that is W_O of one layer, or of several, one after the other."""
        left = list(layers)

        def exchange(module: Any, arguments: tuple[torch.Tensor, ...]) -> Any:
            x, *others = arguments
            layer = left.pop(0)
            whole = x.view(1, -1, x.shape[-1])  # some have lost the axis of the batch
            other = change(stack, layer, whole)
            return None if other is None else (other.view(x.shape), *others)

        return exchange

    def logits(self, question: Question, change: Any = lambda *_: None) -> torch.Tensor:
        """The logits; of a model without a head, its last hidden states."""
        with self.hooked(change):
            output = self.model(**question.inputs(), use_cache=False)
        return output.logits if "logits" in output else output.last_hidden_state

    @cache  # noqa: B019 - of a few models
    def metric(self, question: Question) -> float:
        """The metric of the model as it is."""
        return self.metric_with(question, {})

    def metric_with(self, question: Question, replaced: dict[Head, torch.Tensor]) -> float:
        """The metric, when some heads have other outputs, `n_Q d_V`."""

        def change(stack: str, layer: int, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            for head, z in replaced.items():
                if head[:2] == (stack, layer):
                    x[0, :, self.part(head, x)] = z
            return x

        with torch.no_grad():
            return float(question.of(self.logits(question, change)))

    def change(self, question: Question, head: Head, z: torch.Tensor) -> float:
        """The metric's change when a head has another output, `n_Q d_V`."""
        return self.metric_with(question, {head: z}) - self.metric(question)

    def uncapped(self, question: Question) -> float:
        """The metric of the logits before a final soft cap."""
        cap = SOFT_CAPS.get(self.name)
        with torch.no_grad():
            logits = self.logits(question)
        return float(question.of(logits if cap is None else cap * torch.atanh(logits / cap)))

    @cache  # noqa: B019 - of a few models
    def outputs(self, question: Question, *, gradient: bool = False) -> tuple[Outputs, Outputs]:
        """What goes into each W_O, and the gradient of the metric with respect to it."""
        seen: Outputs = {}

        def keep(stack: str, layer: int, x: torch.Tensor) -> torch.Tensor:
            seen[stack, layer] = leaf = (
                x.detach().clone().requires_grad_(gradient) if not x.requires_grad else x
            )
            if gradient and leaf is x:
                x.retain_grad()
            return leaf

        with torch.set_grad_enabled(gradient):
            metric = question.of(self.logits(question, keep))
        if not gradient:
            return seen, {}
        metric.backward()
        return {key: x.detach() for key, x in seen.items()}, {key: x.grad for key, x in seen.items()}

    def z(self, outputs: Outputs, head: Head) -> torch.Tensor:
        """A head's part of recorded outputs, `n_Q d_V`."""
        x = outputs[head[:2]]
        return x[0, :, self.part(head, x)]

    # The columns.

    def zero(self, question: Question, head: Head) -> float:
        return self.change(question, head, torch.zeros(()))

    def mean(self, question: Question, head: Head) -> float:
        return self.change(question, head, self.z(self.outputs(question)[0], head).mean(0))

    def first_order(self, question: Question, corrupt: Question | None = None) -> dict[Head, float]:
        clean = self.outputs(question)[0]
        z, gradient = self.outputs(corrupt or question, gradient=True)

        def estimate(head: Head) -> float:
            change = -self.z(z, head) if corrupt is None else self.z(clean, head) - self.z(z, head)
            return float((change * self.z(gradient, head)).sum())

        return {head: estimate(head) for head in self.heads()}

    def patched(self, question: Question, corrupt: Question, head: Head) -> float:
        z = self.z(self.outputs(question)[0], head)
        return self.change(corrupt, head, z) / (self.metric(question) - self.metric(corrupt))


def question_of(name: str, ids: Sequence[int] = (5, 9, 3, 20, 31, 7, 44), **more: Any) -> Question:
    """A question about the next token, the masked one in the middle, or the decoder's next one."""
    family = FAMILIES[name]
    if family.decodes:
        start = family.config["decoder_start_token_id"]
        return Question(tuple(ids), (17,), 23, read=(start, 12, 33, 8), **more)
    return Question(tuple(ids), (17,), 23, position=3 if family.masked else -1, **more)


def asked(name: str) -> tuple[Question, dict[str, Any]]:
    """A family's question, and the same for attnscope."""
    question = question_of(name)
    arguments: dict[str, Any] = {"ids": list(question.ids), "answer": 17, "against": 23}
    if FAMILIES[name].masked:
        arguments["position"] = question.position
    if FAMILIES[name].decodes:  # several positions of the decoder: an answer of four tokens
        answer = (*question.read[1:], 17)
        question = replace(question, answer=answer, against=None, metric="log-probability")
        arguments = {"ids": list(question.ids), "answer": list(answer)}
    return question, arguments


def column(table: Any, name: str) -> dict[Head, float]:
    """A column of a table of effects."""
    return {(row.stack, row.layer, row.head): row.values[name] for row in table.rows}
