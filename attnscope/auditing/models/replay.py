"""Run one layer of a model again, with what it received, and other values at some positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from attnscope.auditing.measure.difference import FAILURES, influences
from attnscope.auditing.measure.leak import Cause, first_leak
from attnscope.auditing.models.subject import AuditedModel, audited_ids, running
from attnscope.auditing.result import Influence
from attnscope.code.pairs.rounding import EXACT
from attnscope.observe.operators.tape import tensors_in


class ReplayedLayer:
    """A layer with the arguments that it received in a run in float64."""

    def __init__(self, subject: AuditedModel, path: str, inputs: dict[str, Any]) -> None:
        self.subject, self.path = subject, path
        self.module = subject.exact.get_submodule(path)
        self.n = audited_ids(inputs).shape[1]
        calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []
        with self.module.register_forward_hook(
            lambda _, args, kwargs, output: calls.append((args, kwargs, output)), with_kwargs=True
        ):
            subject.run(exact=True, **inputs)
        self.args, self.kwargs, output = calls[0]
        found = [
            each
            for each in tensors_in((self.args, self.kwargs))
            if each.is_floating_point() and each.dim() == 3 and each.shape[1] == self.n
        ]
        self.hidden = found[0] if found else None  #: its input, `1 n d`
        #: whether it computes the same again. If not, it depends on more than its arguments
        self.is_repeatable = (
            self.hidden is not None
            and len(calls) == 1
            and torch.equal(self.outputs(self.hidden), self._rows(output))
        )

    def outputs(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for another input: `n d`."""
        self.subject.n_forward += 1 / max(len(self.subject.layers), 1) * self.n / self.subject.n_tokens
        return self._rows(self._repeated(hidden))

    @staticmethod
    def _rows(output: Any) -> torch.Tensor:
        return next(tensors_in(output))[0].detach().clone()

    def changed(self, positions: slice) -> torch.Tensor:
        """Return the layer's input with other values at some positions, as large as the old ones."""
        assert self.hidden is not None
        result = self.hidden.clone()
        old = result[:, positions]
        noise = torch.randn(old.shape, generator=torch.Generator().manual_seed(0), dtype=old.dtype)
        noise = noise.to(old.device)
        result[:, positions] = noise * old.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
        return result

    def influence(self, of: str, **matrices: Any) -> Influence:
        """Measure how much each position changes each: one run of the layer for each position."""
        assert self.hidden is not None
        changed = (self.outputs(self.changed(slice(key, key + 1))) for key in range(self.n))
        amounts = influences(self.outputs(self.hidden), changed)
        return Influence(of, amounts.where(amounts > EXACT, 0.0).tolist(), **matrices)

    def leak(
        self,
        positions: slice,
        still: list[int],
        shorter: ReplayedLayer | None,
        visible: torch.Tensor | None,
    ) -> Cause:
        """Find the line whose correction keeps positions where they should be; see `first_leak`."""
        return first_leak(
            partial(self._repeated, self.hidden),
            [(partial(self._repeated, self.changed(positions)), still)],
            self.n,
            None if shorter is None else partial(shorter._repeated, shorter.hidden),
            visible=visible,
        )

    def _repeated(self, hidden: torch.Tensor | None) -> Any:
        def put(each: Any) -> Any:
            return hidden if each is self.hidden else each

        args = tuple(map(put, self.args))
        with running(exact=True):
            return self.module(*args, **{name: put(each) for name, each in self.kwargs.items()})


def layer_of(
    subject: AuditedModel, stage: str, inputs: Callable[[], dict[str, Any]]
) -> ReplayedLayer | None:
    """Return a layer to run again; None if the stage is not a layer, or it cannot be repeated."""
    path = stage.rstrip("'")
    if path not in subject.layers:
        return None
    try:
        layer = ReplayedLayer(subject, path, inputs())
    except FAILURES:
        return None
    return layer if layer.is_repeatable else None
