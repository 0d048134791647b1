"""Audit code: change each position of its input in turn, and see which positions of its output move."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch

from attnscope.comparison.anatomy.tape import tensors_in
from attnscope.comparison.sides.code import usual_inputs
from attnscope.comparison.sides.parameters import role_of
from attnscope.comparison.sides.side import Side
from attnscope.errors import OptionError, SourceError
from attnscope.influence.measure.leak import first_leak
from attnscope.influence.measure.moved import EXACT, relative
from attnscope.influence.measure.promises import Promise
from attnscope.process.default_dtype import default_dtype
from attnscope.results.audit import (
    Influence,
    Line,
)
from attnscope.tracing.target.load import Loaded, describe
from attnscope.tracing.target.signatures import callee
from attnscope.tracing.target.subject import Texts, read_subject

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
        title: its name in messages.
        side: what is called, in float64.
        axes: of each input that has positions, the index of their axis.
        batch: of each input, the index of its batch axis, or None.

    Attributes:
        n: the number of positions.
        changing: the inputs that are changed: those that keys and values come from.
    """

    def __init__(
        self, title: str, side: Side, axes: Mapping[str, int], batch: Mapping[str, int]
    ) -> None:
        self.title, self.side, self.axes, self.batch = title, side, dict(axes), dict(batch)
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
                f"{title} has inputs of different lengths, and each position is changed in all of them:"
                f" {listed}.",
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
        side = Side(self.title, self.side.callable, inputs, self.side.positional, self.side.module)
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
        before = self.rows()
        columns = [relative(before, self.rows(self.changed([key]))) for key in range(self.n)]
        amounts = torch.stack(columns, 1)
        return amounts.where(amounts > EXACT, 0.0)

    def leak(self, key: int, still: Sequence[int]) -> Line | None:
        """Return the line where a change of one position begins to move others."""
        other = self.changed([key])
        return first_leak(lambda change: self.call(other if change else None), self.n, still)

    @property
    def depth(self) -> int:
        """How many modules with a softmax of their own may follow each other: the longest list."""
        module = self.side.module
        lists = (
            [each for each in module.modules() if isinstance(each, torch.nn.ModuleList)]
            if module
            else []
        )
        return max((len(each) for each in lists), default=1)

    @property
    def batch_norms(self) -> list[torch.nn.Module]:
        """Its batch norms, whose training uses the statistics of all positions."""
        kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.SyncBatchNorm)
        module = self.side.module
        return [each for each in module.modules() if isinstance(each, kinds)] if module else []

    @contextmanager
    def batch_statistics(self) -> Iterator[None]:
        """Let batch norms use the statistics of their input, as in training."""
        states = [deepcopy(norm.state_dict()) for norm in self.batch_norms]
        for norm in self.batch_norms:
            norm.train()
        vars(self).pop("measured", None)
        try:
            yield
        finally:
            vars(self).pop("measured", None)
            for norm, state in zip(self.batch_norms, states, strict=True):
                norm.eval()
                norm.load_state_dict(state)


def code_of(
    loaded: Loaded,
    title: str,
    init: Texts,
    inputs: Texts,
    where: Sequence[str],
    call: str | None,
    positions: str | None,
    seed: int,
) -> Code:
    """Build a class or function and its inputs.

    Args:
        loaded: the class or function.
        title: its name in messages.
        init, inputs, where, call: as in `attnscope.inspect`; without inputs, the usual ones are tried.
        positions: the name of the axis of positions; None: by its name, or the last but one.
        seed: of weights and inputs.

    Raises:
        AttnscopeError: it cannot be built, or has no axis of positions.
    """
    candidates = [inputs] if inputs else list(_usual(loaded, init, call))
    failure: SourceError | None = None
    for each in candidates or [()]:
        subject = read_subject(loaded, init, each, where, call, "float64")
        built = subject.build(seed=seed)
        values = dict(built.kwargs)
        positional = [each.label for each in subject.inputs if each.name is None]
        values |= dict(zip(positional, built.args, strict=False))
        owner = getattr(built.callable, "__self__", built.callable)
        module = built.module or (owner if isinstance(owner, torch.nn.Module) else None)
        side = Side(title, built.callable, values, positional, module)
        if module is not None:
            module.eval().double()
        axes, batch = _axes(subject.axes, values, positions, title)
        try:
            return Code(title, side, axes, batch)
        except SourceError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _usual(loaded: Loaded, init: Texts, call: str | None) -> Iterator[list[str]]:
    """Yield the usual inputs with as many queries as keys."""
    for each in usual_inputs(callee(loaded, call), init):
        if not any("n_K:7" in text for text in each):
            yield [text.replace("n_Q:5", f"n_Q:{N_POSITIONS}") for text in each]


def _axes(
    dims: Mapping[str, Any], values: Mapping[str, Any], positions: str | None, title: str
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the axes of positions and of the batch of each input that has them."""
    axes, batch = {}, {}
    for name, value in values.items():
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            continue
        names = list(dims.get(name) or [])
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
        raise OptionError(f"no input of {title} has {named}.", hint="--input x=B,T,C --positions T")
    return axes, batch
