"""Audit code: change each position of its input in turn, and see which positions of its output move."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from attnscope.comparison.anatomy.tape import tensors_in
from attnscope.comparison.sides.code import built_side, usual_inputs
from attnscope.comparison.sides.pairing import Pairing
from attnscope.comparison.sides.parameters import role_of
from attnscope.comparison.sides.side import Side, tensors_of
from attnscope.errors import OptionError, SourceError
from attnscope.influence.measure.batch_norms import batch_norms_of, batch_statistics
from attnscope.influence.measure.leak import first_leak
from attnscope.influence.measure.moved import influences
from attnscope.influence.measure.promises import Promise
from attnscope.process.default_dtype import default_dtype
from attnscope.results.audit import Influence, Line
from attnscope.tracing.target.load import Loaded, describe
from attnscope.tracing.target.signatures import callee

POSITIONS = re.compile(
    r"^(n|t|s|l|n_?[qkt]|nq|nk|q_len|kv_len|time|length|block_size|n_(tokens?|positions?))$|seq|tokens|length",
    re.I,
)
"""Names of the axis of positions."""

N_POSITIONS = 13
"""The number of positions of the usual inputs."""


class Code:
    """A class or function with inputs, whose positions can be changed.

    Args:
        side: what is called, in float64.
        axes: of each input that has positions, the index of their axis.
        batch: of each input, the index of its batch axis, or None.

    Attributes:
        n: the number of positions.
        changing: the inputs that are changed: those that keys and values come from.
    """

    def __init__(self, side: Side, axes: Mapping[str, int], batch: Mapping[str, int]) -> None:
        self.title, self.side, self.axes, self.batch = side.title, side, dict(axes), dict(batch)
        roles = {name: role_of(name) for name in axes}
        keys = [name for name, role in roles.items() if role in ("K", "V")]
        others = [name for name, role in roles.items() if role not in ("Q", "K", "V", "mask")]
        queries = [name for name, role in roles.items() if role == "Q"]
        self.changing = [*keys, *others] if keys else (others or queries)
        sizes = {name: side.inputs[name].shape[axes[name]] for name in axes}
        lengths = {sizes[name] for name in self.changing}
        if len(lengths) != 1:
            listed = ", ".join(f"{name} {sizes[name]}" for name in self.changing)
            raise OptionError(
                f"{self.title} has inputs of different lengths, and each position is changed in all of"
                f" them: {listed}.",
                hint="--positions NAME, the axis of positions",
            )
        self.n = lengths.pop()
        self.n_runs = 0
        self.out_axis = self._output_axis(sizes)

    def _output_axis(self, sizes: Mapping[str, int]) -> int:
        """Return the axis of the output with the positions of queries: as many as there are keys."""
        output = self.output()
        source = next((name for name in self.axes if role_of(name) == "Q"), self.changing[0])
        n_Q = sizes.get(source, self.n)
        axis = self.axes[source]
        if n_Q != self.n:
            raise OptionError(
                f"{self.title} has {n_Q} queries and {self.n} keys, and which key a query may see is"
                " defined for as many of both.",
                hint=f"--input {source}=… with {self.n} positions",
            )
        places = [index for index, size in enumerate(output.shape) if size == n_Q]
        if axis in places:
            return axis
        if len(places) == 1:
            return places[0]
        raise SourceError(
            f"the output of {self.title} has the shape {tuple(output.shape)}, and which of its axes are"
            f" the {n_Q} positions of {source} is unknown.",
            hint="other sizes: a number of positions that no other axis has",
        )

    def call(self, changed: Mapping[str, torch.Tensor] | None = None) -> Any:
        """Call the code, with other values of some inputs."""
        self.n_runs += 1
        inputs = self.side.inputs | dict(changed or {})
        side = replace(self.side, inputs=inputs)
        torch.manual_seed(0)
        with torch.no_grad(), default_dtype(torch.float64):
            return side.call()

    def output(self, changed: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Return the first tensor that the code returns.

        Raises:
            SourceError: it raises, or returns no tensor.
        """
        try:
            out = next(tensors_in(self.call(changed)), None)
        except Exception as error:
            raise SourceError(f"running {self.title} raises {describe(error)}.") from error
        if out is None:
            raise SourceError(f"{self.title} returns no tensor.")
        return out.detach().clone()

    def rows(self, changed: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Return the output by position: `n …`."""
        return self.output(changed).movedim(self.out_axis, 0).reshape(self.n, -1)

    def changed(self, positions: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the inputs with other values at some positions."""
        return {
            name: self.other(self.side.inputs[name], self.axes[name], positions)
            for name in self.changing
        }

    @staticmethod
    def other(tensor: torch.Tensor, axis: int, positions: Sequence[int]) -> torch.Tensor:
        """Return a tensor with other values at some positions of an axis."""
        result = tensor.clone()
        view = result.movedim(axis, 0)
        index = list(positions)
        if tensor.is_floating_point():
            noise = torch.randn(view[index].shape, generator=torch.Generator().manual_seed(1))
            view[index] = noise.to(tensor) * tensor.std().clamp(min=1e-3) + tensor.mean()
        elif tensor.dtype == torch.bool:
            view[index] = ~view[index]
        else:
            high = int(tensor.max()) + 1
            view[index] = (view[index] + 1) % max(high, 2)
        return result

    def influence(self, promise: Promise | None = None) -> Influence:
        """Return how much each position changes each, beside what is promised: `n_Q n_K`."""
        promised = None if promise is None else promise.visible(self.n).tolist()
        return Influence(f"influence in {self.title}", self.measured.tolist(), promised)

    @cached_property
    def measured(self) -> torch.Tensor:
        """How much each position changes each, measured by changing one after the other: `n_Q n_K`."""
        return influences(self.n, lambda key: self.rows(None if key is None else self.changed([key])))

    def leak(self, key: int, still: Sequence[int]) -> Line | None:
        """Return the line where a change of one position begins to move others."""
        other = self.changed([key])
        return first_leak(lambda change: self.call(other if change else None), self.n, still)

    @property
    def depth(self) -> int:
        """How many modules with a softmax of their own may follow each other: the longest list."""
        modules = [] if self.side.module is None else self.side.module.modules()
        lists = [len(each) for each in modules if isinstance(each, torch.nn.ModuleList)]
        return max(lists, default=1)

    @contextmanager
    def in_training(self) -> Iterator[bool]:
        """Let its batch norms work as in training, if there are any; what was measured is forgotten."""
        norms = batch_norms_of(self.side.module)
        if not norms:
            yield False
            return
        before = {"measured": self.measured}
        del self.measured
        try:
            with batch_statistics(norms):
                yield True
        finally:
            vars(self).update(before)


def code_of(loaded: Loaded, pairing: Pairing, positions: str | None) -> Code:
    """Build a class or function and its inputs, in float64.

    Args:
        loaded: the class or function.
        pairing: its arguments; without inputs, the usual ones are tried.
        positions: the name of the axis of positions; None: by its name, or the last but one.

    Raises:
        AttnscopeError: it cannot be built, or has no axis of positions.
    """
    candidates = [pairing.inputs] if pairing.inputs else list(_usual(loaded, pairing))
    failure: SourceError | None = None
    for each in candidates or [()]:
        side = built_side(loaded, loaded.name, replace(pairing, inputs=each, dtype="float64"))
        if side.module is not None:
            side.module.eval().double()
        try:
            return Code(side, *_axes(side, positions))
        except SourceError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _usual(loaded: Loaded, pairing: Pairing) -> Iterator[list[str]]:
    """Yield the usual inputs with as many queries as keys."""
    for each in usual_inputs(callee(loaded, pairing.call), pairing.init):
        if not any("n_K:7" in text for text in each):
            yield [text.replace("n_Q:5", f"n_Q:{N_POSITIONS}") for text in each]


def _axes(side: Side, positions: str | None) -> tuple[dict[str, int], dict[str, int]]:
    """Return the axes of positions and of the batch of each input that has them."""
    axes, batch = {}, {}
    for name, value in tensors_of(side).items():
        if value.dim() == 0:
            continue
        names = list(side.axes.get(name) or [])
        names += [""] * (value.dim() - len(names))
        found = [
            index
            for index, each in enumerate(names)
            if (each == positions if positions else POSITIONS.search(str(each)))
        ]
        default = value.dim() - (2 if value.is_floating_point() else 1)
        if found:
            axes[name] = found[-1]
        elif positions is None and default >= 0:
            axes[name] = default
        if name in axes and axes[name] > 0:
            batch[name] = 0
    if not axes:
        named = f"an axis {positions}" if positions else "an axis of positions"
        raise OptionError(f"no input of {side.title} has {named}.", hint="--input x=B,T,C --positions T")
    return axes, batch
