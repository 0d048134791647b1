"""Call code again and again, each time as if it were the first."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnscope.auditing.measure.difference import relative
from attnscope.auditing.measure.leak import LIMIT, line_of
from attnscope.errors import SizeError, SourceError
from attnscope.implementations.implementation import Side, described, same
from attnscope.implementations.rounding import CLOSE, EXACT
from attnscope.observe.operators.output import ranked_outputs
from attnscope.observe.operators.tape import Tape, TooLargeError, Value, tensors_in
from attnscope.process.default_dtype import default_dtype
from attnscope.process.random_state import seed_torch
from attnscope.units import bytes_text


@dataclass
class CodeRuns:
    """Calls code with values of its inputs, and counts the calls.

    Attributes:
        side: the code, with its inputs.
        dtype: the dtype of its inputs and weights, and of new tensors.
        rounding: how far rounding moves an output, at most, divided by the largest number.
        position: which of the tensors that the code returns is its output.
        count: how many times the code was called.
    """

    side: Side
    dtype: torch.dtype = torch.float64
    rounding: float = EXACT
    position: int = 0
    count: int = 0

    def call(self, inputs: Mapping[str, Any], *, copy: bool = True) -> Any:
        """Call the code with copies of its inputs, which it may change.

        Raises:
            SourceError: the code raises, or ends the process.
        """
        self.count += 1
        side = replace(self.side, inputs=copied(inputs) if copy else dict(inputs))
        seed_torch(0)
        with torch.no_grad(), default_dtype(self.dtype), described(side.title):
            return side.call()

    def output(self, inputs: Mapping[str, Any], *, copy: bool = True) -> torch.Tensor:
        """Return the output: of several tensors, the one that `choose_output` found.

        Raises:
            SourceError: it raises, or returns no tensor.
        """
        returned = list(tensors_in(self.call(inputs, copy=copy)))
        if not returned:
            raise SourceError(f"{self.side.title} returns no tensor.")
        return returned[min(self.position, len(returned) - 1)].detach().clone()

    def choose_output(self, inputs: Mapping[str, Any]) -> None:
        """Choose the output, if the code returns several tensors: the last that depends on V."""
        if len(list(tensors_in(self.call(inputs)))) > 1:
            tape, returned = self._recorded(inputs)
            self.position = ranked_outputs(tape, returned)[0]

    def tape(self, inputs: Mapping[str, Any]) -> Tape:
        """Call the code, and return all tensors that it computes."""
        return self._recorded(inputs)[0]

    def names(self, inputs: Mapping[str, Any]) -> tuple[dict[int, str], dict[int, str]]:
        """Return the names of weights and of inputs, by the `id` of their tensors."""
        return replace(self.side, inputs=dict(inputs)).tensor_names()

    def _recorded(self, inputs: Mapping[str, Any]) -> tuple[Tape, list[Value]]:
        """Call the code, and return its tape, and which values of it are returned."""
        own = copied(inputs)
        tape = Tape(*self.names(own), limit=LIMIT, exact=self.is_exact)
        try:
            with tape:
                return tape, [tape.value_of(each) for each in tensors_in(self.call(own, copy=False))]
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
        before, kept = self.output(inputs), [each.clone() for each in weights]

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
            after = self.output({**inputs, **{name: other(each) for name, each in tensors.items()}})
        finally:
            with torch.no_grad():
                for each, value in zip(weights, kept, strict=True):
                    each.copy_(value)
        eps = torch.finfo(self.dtype).eps
        self.rounding = CLOSE * max(eps, float(relative(before[None], after[None]).max()))

    @property
    def is_exact(self) -> bool:
        """Whether it runs in float64."""
        return self.dtype == torch.float64

    def check_repeatable(self, inputs: Mapping[str, Any]) -> None:
        """Run the code twice on the same input.

        Raises:
            SourceError: the outputs differ.
        """
        if same(self.output(inputs), self.output(inputs)):
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
    """Return inputs with a copy of each tensor, one copy for one tensor that occurs twice."""
    copies: dict[int, torch.Tensor] = {}

    def copy_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copies.setdefault(id(value), value.clone())
        if type(value) in (list, tuple):
            return type(value)(map(copy_of, value))
        return {name: copy_of(each) for name, each in value.items()} if type(value) is dict else value

    return {name: copy_of(each) for name, each in inputs.items()}
