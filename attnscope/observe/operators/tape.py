"""A tape of one call: every tensor that torch computed, from what, and where in the source.

The tape listens to calls of torch's functions, whatever file makes them, through
`torch.overrides.TorchFunctionMode` (https://docs.pytorch.org/docs/stable/torch.overrides.html), and
can be replayed with other values in place of some.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import resolve_name

from attnscope.observe.operators.place import Call, SourceExpression, calls_around, place_of, user_frame
from attnscope.observe.torch_internals.dispatch import is_in_transform
from attnscope.observe.torch_internals.unnoticed import UnnoticedMode


@dataclass(eq=False, repr=False)
class Value:
    """A tensor at one moment of a call."""

    index: int  #: its number on the tape
    tensor: torch.Tensor  #: a copy of its values
    call: TorchCall | None = None  #: the call that computed it; None for an input or a weight
    weight: str | None = None  #: the name of the parameter or buffer that it is, or None
    input: str | None = None  #: the name of the argument that it is, or None

    def __repr__(self) -> str:
        return (
            f"Value({self.index}: {self.name or self.input or self.weight}, {tuple(self.tensor.shape)})"
        )

    @property
    def is_weight(self) -> bool:
        """Whether it is a parameter or a buffer of a module."""
        return self.weight is not None

    @property
    def flat_indices(self) -> torch.Tensor:
        """The flat index of each element, in its shape."""
        return torch.arange(self.tensor.numel()).reshape(self.tensor.shape)

    @property
    def name(self) -> str:
        """The name of the function that computed it, such as `matmul`; empty for an input."""
        return self.call.name if self.call is not None else ""

    @property
    def parents(self) -> Sequence[Value]:
        """The tensors from which it was computed, in the order of the arguments."""
        return self.call.parents if self.call is not None else ()

    @property
    def place(self) -> SourceExpression | None:
        """Where it is computed."""
        return self.call.place if self.call is not None else None


@dataclass(eq=False, repr=False)
class TorchCall:
    """One call of a function of torch."""

    #: the function; None for the change of a tensor through another view of its memory
    func: Callable[..., Any] | None
    name: str  #: its name, without a trailing underscore: `masked_fill` for `masked_fill_`
    args: tuple[Any, ...]  #: its arguments, with a `Value` in place of each tensor
    kwargs: dict[str, Any]
    parents: list[Value]  #: the values among them, in order
    place: SourceExpression | None  #: the expression that made the call
    in_place: bool  #: whether it changes its first argument
    outputs: list[Value] = field(default_factory=list)  #: the tensors that it computed
    #: the calls of the user's functions in which it was made, the innermost first
    around: tuple[Call, ...] = ()

    def __repr__(self) -> str:
        return f"Call({self.name}, {self.parents} → {self.outputs})"

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by its position or name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def run(self, tensor_of: Callable[[Value], torch.Tensor]) -> list[torch.Tensor]:
        """Call the function again, with a tensor for each value, and return its outputs.

        Raises:
            NotReplayableError: the tensor was changed through another view of its memory.
        """
        if self.func is None:
            raise NotReplayableError
        args, kwargs = mapped((self.args, self.kwargs), Value, tensor_of)
        if self.in_place:
            args = (args[0].clone(), *args[1:])
        out = self.func(*args, **kwargs)
        return [args[0]] if self.in_place else list(tensors_in(out))


VIEWS = tuple(f".{name}.__get__" for name in ("T", "mT", "H", "mH", "data", "real", "imag"))
"""Attributes of a tensor that are tensors."""


class TooLargeError(Exception):
    """The copies of all tensors take more memory than a tape may."""


class NotReplayableError(Exception):
    """A call that cannot run again."""


class Widened(UnnoticedMode):
    """A context in which code that asks for float32 gets float64.

    Models compute norms and softmaxes in float32 whatever their dtype is, which would hide how exact the
    rest is.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function with float64 in place of float32."""
        func, args, kwargs = _widened(func, args, kwargs or {})
        if func is functional.multi_head_attention_forward:
            with _opened(), self:
                return func(*args, **kwargs)
        return func(*args, **kwargs)


class Tape(UnnoticedMode):
    """A context that records the calls of torch's functions.

    Args:
        weights: the names of parameters and buffers, by their `id`.
        inputs: the names of arguments, likewise.
        limit: the bytes that its copies may take; None: any number.
        exact: whether code that asks for float32 gets float64, as in `Widened`.
        caller: the file that calls the code.
    """

    def __init__(
        self,
        weights: Mapping[int, str] | None = None,
        inputs: Mapping[int, str] | None = None,
        *,
        limit: int | None = None,
        exact: bool = False,
        caller: str = "",
    ) -> None:
        super().__init__()
        self.exact, self.limit, self.caller = exact, limit, caller
        self.n_bytes = 0  # of the copies
        self.weights, self.inputs = dict(weights or {}), dict(inputs or {})
        self.values: list[Value] = []  #: all tensors, in the order in which they were computed
        self.calls: list[TorchCall] = []  #: all calls that computed tensors
        self._live: dict[int, tuple[torch.Tensor, int, Value]] = {}  # by id; with the version
        self._writes: dict[int, list[_Write]] = {}  # what in-place functions wrote, by storage

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Return the value that a tensor has now."""
        known = self._live.get(id(tensor))
        if known is not None:
            _, version, value = known
            return value if version == _version(tensor) else self._rewritten(tensor, value, version)
        value = Value(
            len(self.values),
            _copied(tensor),
            weight=self.weights.get(id(tensor)),
            input=self.inputs.get(id(tensor)),
        )
        return self._remember(tensor, value)

    def _rewritten(self, tensor: torch.Tensor, value: Value, version: int) -> Value:
        """Note what was written to a tensor through other views of its memory, and return its value."""
        for write in self._writes.get(_storage(tensor), ()):
            if write.version > version:
                call = TorchCall(
                    write.to(tensor), "alias", (value, write.value), {}, [], write.value.place, False
                )
                call.parents = [value, write.value]
                try:
                    [now] = call.run(lambda each: each.tensor)
                except NotReplayableError:
                    now = _copied(tensor)
                value = Value(len(self.values), now, call)
                call.outputs = [self._remember(tensor, value)]
                self.calls.append(call)
        one = value.tensor
        is_equal = one.shape == tensor.shape and ((one == tensor) | (one.isnan() & tensor.isnan())).all()
        if not is_equal:  # written in a way that is not known
            call = TorchCall(None, "alias", (), {}, [value], value.place, False)
            value = Value(len(self.values), _copied(tensor), call)
            call.outputs = [self._remember(tensor, value)]
            self.calls.append(call)
        return value

    def _remember(self, tensor: torch.Tensor, value: Value) -> Value:
        self.n_bytes += value.tensor.nbytes
        if self.limit is not None and self.n_bytes > self.limit:
            raise TooLargeError
        self.values.append(value)
        self._live[id(tensor)] = (tensor, _version(tensor), value)
        return value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, and note its tensors."""
        kwargs = kwargs or {}
        if self.exact:
            func, args, kwargs = _widened(func, args, kwargs)
        name = resolve_name(func) or getattr(func, "__name__", "")
        if func is functional.multi_head_attention_forward:
            with _opened(), self:  # its own calls are noted
                return func(*args, **kwargs)
        if name.endswith((".__get__", ".__set__")) and not name.endswith(VIEWS):
            return func(*args, **kwargs)
        if any(map(is_in_transform, tensors_in([args, kwargs]))):  # inside vmap, as of a mask_mod
            return func(*args, **kwargs)
        parents: list[Value] = []

        def noted(tensor: torch.Tensor) -> Value:
            parents.append(self.value_of(tensor))
            return parents[-1]

        noted_args, noted_kwargs = mapped((args, kwargs), torch.Tensor, noted)
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        before = None if first is None else _version(first)
        out = func(*args, **kwargs)
        outputs = list(tensors_in(out))
        is_changed = first is not None and _version(first) != before
        if is_changed and first is not None and not outputs:  # as in x[…] = y
            outputs = [first]
        frame = user_frame(sys._getframe(1), self.caller)
        if outputs:
            in_place = is_changed and outputs[0] is first
            call = TorchCall(func, short_name(name), noted_args, noted_kwargs, parents, None, in_place)
            if frame is not None:
                call.place, call.around = place_of(frame), calls_around(frame, self.caller)
            self._note(call, outputs)
        return out

    def _note(self, call: TorchCall, outputs: Sequence[torch.Tensor]) -> None:
        """Add a call with its results."""
        for tensor in outputs:
            value = Value(len(self.values), _copied(tensor), call)
            call.outputs.append(self._remember(tensor, value))
        if call.in_place:
            write = _Write(_version(outputs[0]), call.outputs[0], *_addresses_and_dtype(outputs[0]))
            self._writes.setdefault(_storage(outputs[0]), []).append(write)
        self.calls.append(call)

    def replayed(self, replaced: Mapping[Value, torch.Tensor]) -> dict[Value, torch.Tensor]:
        """Compute again what depends on some values, with other values for these.

        Returns:
            The values that differ, with their new tensors.
        """
        new = dict(replaced)
        for call in self.calls:
            if not any(parent in new for parent in call.parents):
                continue
            tensors = call.run(lambda value: new.get(value, value.tensor))
            for value, tensor in zip(call.outputs, tensors, strict=True):
                new.setdefault(value, tensor.detach())
        return new


@dataclass(frozen=True)
class _Write:
    """What an in-place function wrote through one view of a tensor's memory."""

    version: int  #: the version of the memory after that
    value: Value  #: the view, after that
    addresses: torch.Tensor  #: where in the memory the view's elements are
    dtype: torch.dtype  #: that of the view

    def to(self, tensor: torch.Tensor) -> Callable[..., Any] | None:
        """Return a function that writes the same to another view of the memory; None if it cannot.

        It takes the tensor as it was, and the view after the change.
        """
        addresses, dtype = _addresses_and_dtype(tensor)
        if dtype != self.dtype:
            return None
        n = int(max(addresses.max(), self.addresses.max())) + 1
        numbers = torch.arange(self.addresses.numel())
        places = torch.full((n,), -1).scatter(0, self.addresses.reshape(-1), numbers)
        at = places[addresses.reshape(-1)]

        def write(before: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
            new = torch.where(at >= 0, changed.reshape(-1)[at.clamp_min(0)], before.reshape(-1))
            return new.reshape(before.shape)

        return write


def _addresses_and_dtype(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
    """Compute the place of each element of a tensor in its memory, and read the dtype."""
    addresses = torch.full(tensor.shape, int(tensor.storage_offset()))
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = torch.arange(size) * stride
        addresses += steps.reshape(-1, *[1] * (tensor.ndim - axis - 1))
    return addresses, tensor.dtype


def _widened(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, tuple, dict[str, Any]]:
    """Return a call with float64 in place of float32."""
    if func is torch.Tensor.float:
        func = torch.Tensor.double
    wide = {torch.float32: torch.float64}
    args, kwargs = mapped((args, kwargs), torch.dtype, lambda dtype: wide.get(dtype, dtype))
    return func, args, kwargs


@contextmanager
def _opened() -> Iterator[None]:
    """Let `multi_head_attention_forward` run its own lines, instead of asking a mode to run it whole."""
    names = vars(functional)
    check = names["has_torch_function"]
    names["has_torch_function"] = lambda *_: False
    try:
        yield
    finally:
        names["has_torch_function"] = check


def short_name(name: str) -> str:
    """Return the last part of a function's name, without the underscore of an in-place one.

    >>> short_name("torch.Tensor.masked_fill_"), short_name("torch.Tensor.mT.__get__")
    ('masked_fill', 'mT')
    """
    name = name.removesuffix(".__get__").rpartition(".")[2]
    plain = name.strip("_")
    known = {"truediv": "div", "itruediv": "div", "rtruediv": "div", "rdiv": "div", "true_divide": "div"}
    plain = known.get(plain, plain)
    if plain[:1] in "ri" and plain[1:] in ("add", "sub", "mul", "div", "pow", "matmul"):
        plain = plain[1:]
    if plain == "spmm":  # another name of `mm`, which `resolve_name` confuses
        return "mm"
    return {"multiply": "mul", "divide": "div", "subtract": "sub"}.get(plain, plain)


def _version(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # an inference tensor has none
        return 0


def _storage(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has none, as a sparse one."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def mapped(structure: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a structure of tuples, lists and dicts with each object of a type replaced."""
    if isinstance(structure, kind):
        return change(structure)
    if isinstance(structure, tuple) and type(structure) is tuple:
        return tuple(mapped(each, kind, change) for each in structure)
    if isinstance(structure, list):
        return [mapped(each, kind, change) for each in structure]
    if isinstance(structure, dict):
        return {name: mapped(each, kind, change) for name, each in structure.items()}
    return structure


def tensors_in(out: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in what a call returns, in order: in tuples, lists, mappings and dataclasses."""
    if isinstance(out, torch.Tensor):
        yield out
    elif is_dataclass(out) and not isinstance(out, type | Mapping):
        for each in fields(out):
            yield from tensors_in(getattr(out, each.name, None))
    elif isinstance(out, tuple | list):
        for each in out:
            yield from tensors_in(each)
    elif isinstance(out, Mapping):
        for each in out.values():
            yield from tensors_in(each)
