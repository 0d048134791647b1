"""Call code again and again, each time as if it were the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnscope.auditing.code.outputs import named_tensors, unknown_parts
from attnscope.auditing.measure.difference import relative
from attnscope.auditing.measure.leak import LIMIT, line_of
from attnscope.base.errors import SizeError, SourceError
from attnscope.base.process.default_dtype import default_dtype
from attnscope.base.process.random_state import seed_torch
from attnscope.base.units import bytes_text
from attnscope.code.pairs.implementation import Side, described, same
from attnscope.code.pairs.rounding import CLOSE, EXACT
from attnscope.observe.operators.output import ranked_outputs
from attnscope.observe.operators.tape import Tape, TooLargeError, Value


@dataclass
class CodeRuns:
    """Calls code with values of its inputs, and counts the calls."""

    side: Side
    dtype: torch.dtype = torch.float64  #: the dtype of its inputs and weights, and of new tensors
    rounding: float = EXACT  #: how far rounding moves an output, at most, divided by the largest number
    #: which of the tensors that the code returns may be its output, the likeliest first
    ranked: Sequence[int] = (0,)
    returned_names: Sequence[str] = ("output",)  #: the names of these tensors
    unknown: Sequence[str] = ()  #: the names of what else is returned, and is not looked into
    count: int = 0  #: how many times the code was called

    def call(self, inputs: Mapping[str, Any], *, copy: bool = True) -> Any:
        """Call the code with copies of its inputs, which it may change."""
        self.count += 1
        side = replace(self.side, inputs=copied(inputs) if copy else dict(inputs))
        seed_torch(0)
        with torch.no_grad(), default_dtype(self.dtype), described(side.title):
            return side.call()

    def returned(self, inputs: Mapping[str, Any], *, copy: bool = True) -> list[torch.Tensor]:
        """Return all tensors that the code returns."""
        tensors = [each for _, each in named_tensors(self.call(inputs, copy=copy))]
        if not tensors:
            raise SourceError(f"{self.side.title} returns no tensor.")
        return [each.detach().clone() for each in tensors]

    def output(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the likeliest output."""
        returned = self.returned(inputs)
        return returned[min(self.ranked[0], len(returned) - 1)]

    def choose_output(self, inputs: Mapping[str, Any]) -> None:
        """Choose the output, if the code returns several tensors: the last that depends on V."""
        out = self.call(inputs)
        self.returned_names = [name for name, _ in named_tensors(out)]
        self.unknown = list(unknown_parts(out))
        if len(self.returned_names) > 1:
            self.ranked = ranked_outputs(*self.recorded(inputs))

    def tape(self, inputs: Mapping[str, Any]) -> Tape:
        """Call the code, and return all tensors that it computes."""
        return self.recorded(inputs)[0]

    def names(self, inputs: Mapping[str, Any]) -> tuple[dict[int, str], dict[int, str]]:
        """Return the names of weights and of inputs, by the `id` of their tensors."""
        return replace(self.side, inputs=dict(inputs)).tensor_names()

    def recorded(self, inputs: Mapping[str, Any]) -> tuple[Tape, list[Value]]:
        """Call the code, and return its tape, and which values of it are returned."""
        own = copied(inputs)
        tape = Tape(*self.names(own), limit=LIMIT, exact=self.is_exact)
        try:
            with tape:
                out = self.call(own, copy=False)
                return tape, [tape.value_of(each) for _, each in named_tensors(out)]
        except TooLargeError as error:
            raise SizeError(
                f"auditing {self.side.title} takes too much memory: its tensors take more than"
                f" {bytes_text(LIMIT)}.",
                hint="smaller sizes; a mistake shows at small sizes, too",
            ) from error

    def measure_rounding(self, inputs: Mapping[str, Any]) -> None:
        """Measure how far an output moves if weights and inputs change by one unit in the last place.

        In float64, it is known to be so small that it does not matter.
        """
        if self.is_exact:
            return
        module, generator = self.side.module, torch.Generator().manual_seed(1)
        weights = [] if module is None else [*module.parameters()]
        before, kept = self.returned(inputs), [each.clone() for each in weights]

        def other(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
            return tensor * (1 + torch.finfo(tensor.dtype).eps * signs.to(tensor))

        try:
            with torch.no_grad():
                for each in weights:
                    each.copy_(other(each))
            tensors = {name: each for name, each in inputs.items() if isinstance(each, torch.Tensor)}
            after = self.returned({**inputs, **{name: other(each) for name, each in tensors.items()}})
        finally:
            with torch.no_grad():
                for each, value in zip(weights, kept, strict=True):
                    each.copy_(value)
        eps = torch.finfo(self.dtype).eps
        moved = [
            float(relative(one[None], other[None]).max())
            for one, other in zip(before, after, strict=True)
            if one.is_floating_point() or one.is_complex()
        ]
        self.rounding = CLOSE * max([eps, *moved])

    @property
    def is_exact(self) -> bool:
        """Whether it runs in float64."""
        return self.dtype == torch.float64

    def check_repeatable(self, inputs: Mapping[str, Any]) -> None:
        """Run the code twice on the same input."""
        if all(map(same, self.returned(inputs), self.returned(inputs))):
            return
        other = None
        with suppress(SizeError):  # the line is left out
            first, second = (self.tape(inputs).values for _ in range(2))
            pairs = zip(first, second, strict=False)
            unlike = (one for one, two in pairs if one.call and not same(one.tensor, two.tensor))
            other = next(unlike, None)
        line = None if other is None else line_of(other)
        where = f", first in line {line.line}: {line.expression}" if line is not None else ""
        raise SourceError(
            f"{self.side.title} cannot be audited: two runs on the same input differ{where}.",
            hint="code without random numbers of Python or numpy, and without state between calls",
        )


def copied(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs with a copy of each tensor, one copy for one tensor that occurs twice.

    Objects, such as a cache that the code updates in place, are copied whole.
    """
    copies: dict[int, torch.Tensor] = {}

    def copy_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copies.setdefault(id(value), value.clone())
        if type(value) in (list, tuple):
            return type(value)(map(copy_of, value))
        if type(value) is dict:
            return {name: copy_of(each) for name, each in value.items()}
        if callable(value):
            return value
        try:
            return deepcopy(value)
        except Exception:  # whatever the object's own copying raises
            return value

    return {name: copy_of(each) for name, each in inputs.items()}
