"""One side of a comparison: what is called, with its inputs and weights; and its run on a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnscope.comparison.anatomy.anatomy import Anatomy
from attnscope.comparison.anatomy.place import is_library
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
        axes: the names of the axes of arguments, as far as the user gave them.
        notices: sentences about how it was made comparable with the other side.
    """

    title: str
    callable: Callable[..., Any]
    inputs: dict[str, Any]
    positional: list[str] = field(default_factory=list)
    module: torch.nn.Module | None = None
    axes: Mapping[str, tuple[str | int, ...] | None] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def in_dtype(self, dtype: torch.dtype) -> Side:
        """Return a copy that computes in another dtype, with the same numbers."""
        module = deepcopy(self.module)
        called = self.callable
        if module is not None:
            owner = getattr(called, "__self__", None)
            called = getattr(module, called.__name__) if owner is self.module else module
            _cast_module(module, dtype)
        inputs = _cast(self.inputs, dtype)
        return replace(self, callable=called, inputs=inputs, module=module)

    def call(self) -> Any:
        """Call it, and return what it returns."""
        keywords = dict(self.inputs)
        args = [keywords.pop(name) for name in self.positional]
        return self.callable(*args, **keywords)

    def initialise(self, seed: int) -> None:
        """Call it once if it has weights whose sizes follow from its first input, as in `nn.LazyLinear`.

        Args:
            seed: the seed of these weights.

        Raises:
            SourceError: the code raises.
        """
        weights = self.module.parameters() if self.module is not None else ()
        if any(torch.nn.parameter.is_lazy(each) for each in weights):
            torch.manual_seed(seed)
            with self._described(), torch.no_grad():
                self.call()

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
        tape = Tape(weights, names, limit=limit, exact=exact, caller=__file__)
        torch.manual_seed(seed)
        try:
            with self._described(), torch.no_grad(), tape:
                out = self.call()
        except TooLargeError as error:
            raise SizeError(
                f"comparing {self.title} takes too much memory: its tensors, of which several copies are"
                f" kept, take more than {bytes_text(limit)}.",
                hint="smaller sizes; a mistake shows at small sizes, too",
            ) from error
        tensors = list(tensors_in(out))
        if not tensors:
            raise SourceError(f"{self.title} returns no tensor, but {type(out).__name__}.")
        return Recorded(tape, tape.value_of(tensors[0]))

    @contextmanager
    def _described(self) -> Iterator[None]:
        """Turn what the code raises into a SourceError."""
        try:
            yield
        except TooLargeError:
            raise
        except Exception as error:
            from attnscope.tracing.target.load import describe

            description = describe(error, is_user_file=_is_user_file)
            raise SourceError(f"running {self.title} raises {description}.") from error


@dataclass
class Recorded:
    """A run of one side: its tape, and the first tensor that it returns."""

    tape: Tape
    output: Value

    def anatomy(self) -> Anatomy:
        """Find the tensors of its attention; see `anatomy_of`."""
        return anatomy_of(self.tape, self.output)


def _is_user_file(file: str) -> bool:
    """Return whether a file is neither a library's nor this one, which calls the code."""
    return not is_library(file) and file != __file__


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with copies of its floating-point tensors in a dtype."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(dtype) if value.is_floating_point() else value.clone()
    if isinstance(value, Mapping) and type(value) is dict:
        return {name: _cast(each, dtype) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_cast(each, dtype) for each in value)
    if isinstance(value, torch.nn.Module):
        return _cast_module(deepcopy(value), dtype)
    return deepcopy(value)


def _cast_module(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Cast a module's floating-point tensors; `to` would cut complex ones down to their real parts."""
    cast = {torch.float64: "double", torch.float16: "half", torch.bfloat16: "bfloat16"}
    method = getattr(module, cast.get(dtype, "float"))
    result: torch.nn.Module = method()
    return result


def tensors_of(side: Side) -> dict[str, torch.Tensor]:
    """Return the arguments of a side that are tensors."""
    return {name: each for name, each in side.inputs.items() if isinstance(each, torch.Tensor)}
