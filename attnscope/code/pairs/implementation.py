"""One side of a comparison: what is called, with its inputs and weights; and its run on a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnscope.base.dtypes import CASTS
from attnscope.base.errors import AttnscopeError, SizeError, SourceError
from attnscope.base.process.default_dtype import default_dtype
from attnscope.base.process.memory import free_host_memory
from attnscope.base.process.random_state import seed_torch
from attnscope.base.units import bytes_text
from attnscope.observe.operators.anatomy import Anatomy
from attnscope.observe.operators.output import ranked_outputs
from attnscope.observe.operators.place import is_library
from attnscope.observe.operators.roles import anatomy_of
from attnscope.observe.operators.tape import Tape, TooLargeError, Value, tensors_in
from attnscope.observe.torch_internals.compiler import calls_run_uncompiled
from attnscope.observe.torch_internals.unnoticed import without_fused_layers

ONLY_OBSERVED = "without attnscope's tape of torch's functions, it runs"
"""Said of code that raises because it behaves otherwise while torch's functions are recorded."""

SHARE = 16
"""One run may keep this part of the free memory: both sides run twice, and elements are followed."""


@dataclass
class Side:
    """Something that computes attention, with its arguments."""

    #: Its name, as the user wrote it.
    title: str
    #: What is called: a function, a module, or a method.
    callable: Callable[..., Any]
    inputs: dict[str, Any]
    #: The parameters among them that are passed by position, in order.
    positional: list[str] = field(default_factory=list)
    #: The module that holds its weights, if any.
    module: torch.nn.Module | None = None
    #: The names of the axes of arguments, as far as the user gave them.
    axes: Mapping[str, tuple[str | int, ...] | None] = field(default_factory=dict)
    #: Sentences about how it was made comparable with the other side.
    notices: list[str] = field(default_factory=list)
    #: The arguments with random values.
    drawn: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Its weights by name; none without a module."""
        return {} if self.module is None else dict(self.module.named_parameters())

    @property
    def has_batch_second(self) -> bool:
        """Whether a module in it, such as `nn.MultiheadAttention`, expects the batch second."""
        modules = [] if self.module is None else self.module.modules()
        return any(getattr(each, "batch_first", None) is False for each in modules)

    def in_dtype(self, dtype: torch.dtype) -> Side:
        """Return a copy that computes in another dtype, with the same numbers."""
        copy = self.with_own_module()
        if copy.module is not None:
            _cast_module(copy.module, dtype)
        return replace(copy, inputs=_cast(self.inputs, dtype))

    def with_own_module(self) -> Side:
        """Return the same side with a copy of its module, whose weights may be changed."""
        if self.module is None:
            return self
        module = deepcopy(self.module)
        owner = getattr(self.callable, "__self__", None)
        called = getattr(module, self.callable.__name__) if owner is self.module else module
        return replace(self, callable=called, module=module)

    def scaled(self, dtype: torch.dtype, factor: float) -> Side:
        """Return a copy in a dtype whose numbers, weights and inputs, are so many times as large."""
        own = self.in_dtype(dtype)
        with torch.no_grad():
            for each in (*own.parameters.values(), *tensors_in([own.inputs])):
                if each.is_floating_point():
                    each.mul_(factor)
        return own

    def plain_results(self, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
        """Call copies in a dtype twice, without a tape, and return the tensors that both return.

        It is an error if the results differ.
        """
        results = []
        for _ in range(2):
            own = self.in_dtype(dtype)
            seed_torch(seed)
            with default_dtype(dtype), described(self.title), torch.no_grad():
                results.append(list(tensors_in(own.call())))
        if not all_same(*results):
            raise SourceError(
                f"{self.title} cannot be compared: two runs on the same input differ.",
                hint="code without random numbers of Python or numpy",
            )
        return results[0]

    def call(self) -> Any:
        """Call it, and return what it returns; what torch compiles or fuses runs as it is written."""
        keywords = dict(self.inputs)
        args = [keywords.pop(name) for name in self.positional]
        with calls_run_uncompiled(), without_fused_layers():
            return self.callable(*args, **keywords)

    def tensor_names(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return the names of its weights and of its inputs, by the `id` of their tensors."""
        buffers = [] if self.module is None else self.module.named_buffers()
        weights = [*self.parameters.items(), *buffers]
        inputs = {id(tensor): name for name, tensor in tensors_of(self).items()}
        return {id(tensor): name for name, tensor in weights}, inputs

    def initialise(self, seed: int) -> None:
        """Call it once if sizes of weights follow from its first input, as in `nn.LazyLinear`."""
        if any(map(torch.nn.parameter.is_lazy, self.parameters.values())):
            seed_torch(seed)
            with described(self.title), torch.no_grad():
                self.call()

    def run(self, seed: int = 0, *, exact: bool = False) -> Recorded:
        """Call it once, and return what it computed.

        If `exact`, it gets float64 where it asks for float32. If the code raises only with a tape, the
        error says so.
        """
        limit = free_host_memory().n_bytes // SHARE
        tape = Tape(*self.tensor_names(), limit=limit, exact=exact, caller=__file__)
        seed_torch(seed)
        try:
            with described(self.title), torch.no_grad(), tape:
                out = self.call()
        except TooLargeError as error:
            raise SizeError(
                f"comparing {self.title} takes too much memory: its tensors, of which several copies are"
                f" kept, take more than {bytes_text(limit)}.",
                hint="smaller sizes; a mistake shows at small sizes, too",
            ) from error
        except SourceError as error:
            if self._runs_without_tape(seed):
                raise SourceError(f"{error.message.removesuffix('.')}; {ONLY_OBSERVED}.") from error
            raise
        returned = [tape.value_of(each) for each in tensors_in(out)]
        if not returned:
            raise SourceError(f"{self.title} returns no tensor, but {type(out).__name__}.")
        return Recorded(tape, returned, ranked_outputs(tape, returned), axes=self.axes)

    def _runs_without_tape(self, seed: int) -> bool:
        """Check whether the code runs when no tape records it."""
        seed_torch(seed)
        try:
            with described(self.title), torch.no_grad():
                self.call()
        except SourceError:
            return False
        return True


@contextmanager
def described(
    title: str, kinds: tuple[type[BaseException], ...] = (Exception, SystemExit)
) -> Iterator[None]:
    """Turn what code raises into a SourceError with its title; the end of the process, too."""
    try:
        yield
    except (TooLargeError, AttnscopeError):
        raise
    except kinds as error:
        from attnscope.base.tracebacks import describe

        description = describe(
            error, is_user_file=lambda file: not is_library(file) and file != __file__
        )
        ends = isinstance(error, SystemExit)
        what = f"{title} ends the process:" if ends else f"running {title} raises"
        raise SourceError(f"{what} {description}.") from error


@dataclass
class Recorded:
    """A run of one side."""

    tape: Tape
    #: The tensors that it returned, in order, as `tensors_in` finds them.
    returned: list[Value]
    #: Which of these may be the output, the likeliest first; see `ranked_outputs`.
    ranked: list[int]
    #: Which of these is; None: the likeliest.
    chosen: int | None = None
    #: The names of the axes of arguments, as far as the user gave them.
    axes: Mapping[str, tuple[str | int, ...] | None] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """The position of the output among the tensors that were returned."""
        return self.ranked[0] if self.chosen is None else self.chosen

    @property
    def output(self) -> Value:
        """The returned tensor that is the output."""
        return self.returned[self.position]

    def anatomy(self) -> Anatomy:
        """Find the tensors of its attention; see `anatomy_of`."""
        return replace(anatomy_of(self.tape, self.output), input_axes=self.axes)


def all_same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Check whether two lists have the same tensors."""
    return len(some) == len(others) and all(map(same, some, others))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Check whether two tensors are equal, NaN at the same places included."""
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with copies of its tensors, for code may change them; with numbers in a dtype."""
    if isinstance(value, torch.Tensor):
        own = value.detach()
        return own.to(dtype, copy=True) if own.is_floating_point() else own.clone()
    if isinstance(value, Mapping) and type(value) is dict:
        return {name: _cast(each, dtype) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_cast(each, dtype) for each in value)
    if isinstance(value, torch.nn.Module):
        return _cast_module(deepcopy(value), dtype)
    return deepcopy(value)


def _cast_module(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Cast a module's floating-point tensors; `to` would cut complex ones down to their real parts."""
    method = getattr(module, CASTS.get(str(dtype).removeprefix("torch."), "float"))
    result: torch.nn.Module = method()
    return result


def tensors_of(side: Side) -> dict[str, torch.Tensor]:
    """Return the arguments of a side that are tensors."""
    return {name: each for name, each in side.inputs.items() if isinstance(each, torch.Tensor)}
