"""One side of a comparison: what is called, with its inputs and weights; and its run on a tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch

from attnscope.comparison.anatomy.anatomy import Anatomy
from attnscope.comparison.anatomy.roles import anatomy_of
from attnscope.comparison.anatomy.tape import Tape, TooLargeError, Value, tensors_in
from attnscope.errors import SizeError, SourceError
from attnscope.process.memory import free_host_memory
from attnscope.units import bytes_text

SHARE = 16
"""One run may keep this part of the free memory: both sides run twice, and elements are followed."""


@dataclass
class Side:
    """Something that computes attention, with its arguments.

    Attributes:
        title: its name, as the user wrote it.
        callable: what is called: a function, a module, or a method.
        inputs: the arguments by parameter.
        positional: the parameters among them that are passed by position, in order.
        module: the module that holds its weights, if any.
    """

    title: str
    callable: Callable[..., Any]
    inputs: dict[str, Any]
    positional: list[str] = field(default_factory=list)
    module: torch.nn.Module | None = None

    def in_dtype(self, dtype: torch.dtype) -> Side:
        """Return a copy that computes in another dtype, with the same numbers."""
        module = deepcopy(self.module)
        called = self.callable
        if module is not None:
            owner = getattr(called, "__self__", None)
            called = getattr(module, called.__name__) if owner is self.module else module
            module.to(dtype)
        inputs = _cast(self.inputs, dtype)
        return Side(self.title, called, inputs, self.positional, module)

    def call(self) -> Any:
        """Call it, and return what it returns."""
        keywords = dict(self.inputs)
        args = [keywords.pop(name) for name in self.positional]
        return self.callable(*args, **keywords)

    def run(self, seed: int = 0, *, exact: bool = False) -> Recorded:
        """Call it once, and return what it computed.

        Args:
            seed: the seed of what it draws.
            exact: whether it gets float64 where it asks for float32.

        Raises:
            SourceError: the code raises.
        """
        weights: dict[int, str] = {}
        if self.module is not None:
            named = [*self.module.named_parameters(), *self.module.named_buffers()]
            weights = {id(tensor): name for name, tensor in named}
        limit = free_host_memory().n_bytes // SHARE
        names = {id(each): name for name, each in self.inputs.items()}
        tape = Tape(weights, names, limit=limit, exact=exact)
        torch.manual_seed(seed)
        try:
            with torch.no_grad(), tape:
                out = self.call()
        except TooLargeError as error:
            raise SizeError(
                f"comparing {self.title} takes too much memory: its tensors, of which several copies are"
                f" kept, take more than {bytes_text(limit)}.",
                hint="smaller sizes; a mistake shows at small sizes, too",
            ) from error
        except Exception as error:
            from attnscope.tracing.target.load import describe

            raise SourceError(f"running {self.title} raises {describe(error)}.") from error
        tensors = list(tensors_in(out))
        if not tensors:
            raise SourceError(f"{self.title} returns no tensor, but {type(out).__name__}.")
        return Recorded(tape, tape.value_of(tensors[0]))


@dataclass
class Recorded:
    """A run of one side: its tape, and the first tensor that it returns."""

    tape: Tape
    output: Value

    def anatomy(self) -> Anatomy:
        """Find the tensors of its attention; see `anatomy_of`."""
        return anatomy_of(self.tape, self.output)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with copies of its floating-point tensors in a dtype."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(dtype) if value.is_floating_point() else value.clone()
    if isinstance(value, Mapping) and type(value) is dict:
        return {name: _cast(each, dtype) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_cast(each, dtype) for each in value)
    if isinstance(value, torch.nn.Module):
        return deepcopy(value).to(dtype)
    return deepcopy(value)


def tensors_of(side: Side) -> dict[str, torch.Tensor]:
    """Return the arguments of a side that are tensors."""
    return {name: each for name, each in side.inputs.items() if isinstance(each, torch.Tensor)}
