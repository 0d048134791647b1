"""Existing modules and functions, with real tensors, as subjects of a trace.

The code runs first with these tensors, and then with drawn ones of other sizes. A module's weights
cannot change size: widths stay as they are, batches and lengths vary. The module itself never runs: a
copy does, which shares its weights, with its own buffers and attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

from attnscope.base.errors import OptionError, SourceError, first_line
from attnscope.base.process.random_state import seed_torch
from attnscope.base.tensor_files import TensorFile
from attnscope.base.units import counted
from attnscope.code.load.agreement import Argument, agree_on_sizes, read_where
from attnscope.code.load.load import Loaded
from attnscope.code.load.proposed_axes import Dims, InputShape, guessed_axes, proposed_axes
from attnscope.code.load.signatures import (
    Callee,
    integer_defaults,
    module_of,
    positional_names,
    signature_of,
)
from attnscope.code.load.specs import AxisSpec, Input, InputTuple, Plain, TensorSpec
from attnscope.code.load.subject import Built, CodeSubject
from attnscope.observe.torch_internals.compiler import run_uncompiled, uncompiled

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LiveTensor:
    """A tensor of the caller, with the interface of a tensor file."""

    name: str
    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """The name of the dtype in torch."""
        return str(self.tensor.dtype).removeprefix("torch.")

    def load(self) -> torch.Tensor:
        """Return the tensor."""
        return self.tensor

    def __str__(self) -> str:
        return "this call"


@dataclass(frozen=True)
class LiveSubject(CodeSubject):
    """An existing module or function, with its arguments."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """True: the code and its arguments already exist."""
        return True

    @property
    def all_sizes_named(self) -> bool:
        """Whether the callee has no weights, which may have unnamed sizes."""
        return self.all_axes_named and module_of(self.callee.target) is None

    @property
    def has_mode(self) -> bool:
        """Whether the callee is a module or a method of one."""
        return module_of(self.callee.target) is not None

    def arguments_state(self) -> object:
        """Return the versions of the caller's tensors; None if other objects may have a state."""
        versions: list[int] = []
        for value in (*self.args, *self.kwargs.values()):
            if not _has_versions(value, versions):
                return None
        return versions

    def build(
        self,
        sizes: Mapping[str, int] | None = None,
        *,
        device: str | None = None,
        seed: int | None = None,
        train: bool | None = None,
    ) -> Built:
        """Return a copy of the module, or the function itself, with its arguments.

        Tensors are drawn with other `sizes`, or are the caller's. Where `device`, `seed` or `train` is
        None, the current device, random state or mode stays.
        """
        if sizes is not None or seed is not None:
            seed_torch(seed or 0)
        called, module = _copied(self.callee.target, device)
        if module is not None and train is not None:
            module.train(train)
        if sizes is None and device is None:
            return Built(called, self.args, dict(self.kwargs), module)
        known = {**self.sizes, **(sizes or {})}
        values = self._with_identity(self._values(known, device or "cpu"))
        args = tuple(value for name, value in values if name is None)
        kwargs = {name: value for name, value in values if name is not None}
        return Built(called, args, {**kwargs, **self._other_defaults(sizes)}, module)

    def _with_identity(self, values: list[tuple[str | None, Any]]) -> list[tuple[str | None, Any]]:
        """Return the values, with one object for a tensor that the caller passes twice.

        Code may test whether `query is key`, and branch. The shapes must be equal too.
        """
        import torch

        first: dict[tuple[int, torch.Size], Any] = {}
        result = []
        for original, (name, value) in zip((*self.args, *self.kwargs.values()), values, strict=True):
            if isinstance(value, torch.Tensor):
                value = first.setdefault((id(original), value.shape), value)
            result.append((name, value))
        return result


def live_subject(
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    axes: Mapping[str, str | Sequence[str]],
    where: Sequence[str],
    call: str | None,
    *,
    of_code: Mapping[str, Sequence[str | None]] | None = None,
) -> LiveSubject:
    """Return the subject of a trace for an existing module or function.

    `of_code` has the names that the code has for axes of arguments; None for one without a name.
    """
    if call is not None and not callable(getattr(target, call, None)):
        raise OptionError(f"{type(target).__name__} has no method {call}.")
    original, target = target, uncompiled(target)
    called = uncompiled(getattr(target, call)) if call is not None else target
    owner = module_of(called)
    title = getattr(called, "__qualname__", type(called).__qualname__)
    signature = signature_of(getattr(called, "forward", called))
    positional = positional_names(signature, len(args))
    if len(positional) < len(args):
        raise OptionError(
            f"{title} takes {counted(len(positional), 'positional argument')}, but gets {len(args)}."
        )
    values = dict(zip(positional, args, strict=True)) | kwargs
    tensors = {place: each for label, value in values.items() for place, each in _tensors(label, value)}
    shapes = {
        label: InputShape(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for label, tensor in tensors.items()
    }
    named_dims = _named_axes(axes, tensors)
    names = {axis for each in named_dims.values() for axis in each if isinstance(axis, str)}
    module_sizes = _module_sizes(owner) if owner is not None else {}
    module_sizes = {name: size for name, size in module_sizes.items() if name not in names}
    batch_first = _batch_first(owner)
    dims = proposed_axes(
        shapes,
        named_dims,
        of_code or {},
        module_sizes,
        has_weights=owner is not None,
        batch_first=batch_first,
    )
    inputs = [
        Argument(label, label if label in kwargs else None, _input(label, value, dims))
        for label, value in values.items()
    ]
    defaults = integer_defaults(signature, values)
    equations = [read_where(text) for text in where]
    numbers = {name: Plain(size) for name, size in module_sizes.items()}
    sizes, _ = agree_on_sizes(numbers, inputs, equations, defaults, title, "axes")
    fixed: dict[str, int] = {}
    if owner is not None:
        widths = [dims[place][-1] for place, shape in shapes.items() if shape.has_width]
        fixed = {axis: sizes[axis] for axis in widths if isinstance(axis, str)}
        named = {name for equation in equations for name in equation.names} | {*fixed}
        by_user = {size for name, size in fixed.items() if name in names}
        for name, size in module_sizes.items():
            if name in named or size not in by_user:
                fixed[name] = size
            else:  # the width has another name
                del sizes[name]
        for equation in equations * len(equations):  # sizes that follow from fixed ones are fixed
            loose = [name for name in equation.names if name not in fixed]
            fixed |= {name: sizes[name] for name in loose if len(loose) == 1}
    dtypes = [shape.dtype for shape in shapes.values()]
    stated = () if batch_first is None else ("n_batch", "n", "n_Q", "n_K")
    return LiveSubject(
        loaded=Loaded(original, title, sys.modules[type(target).__module__]),
        callee=Callee(called, None, None, title, signature),
        init={},
        inputs=inputs,
        sizes=sizes,
        set_by_user={name for name in sizes if name not in defaults},
        defaults=defaults,
        where=equations,
        dtype=next(iter([*(each for each in dtypes if "float" in each), *dtypes]), ""),
        fixed=fixed,
        quotients=_quotients(fixed, {sizes[name] for each in equations for name in each.names}),
        proposed={axis for axis in sizes if axis not in names},
        guessed=(
            []
            if type(owner).__module__.startswith("attnscope.")  # its arguments have the usual axes
            else guessed_axes(dims, [names, module_sizes, stated, *(of_code or {}).values()])
        ),
        args=args,
        kwargs=kwargs,
    )


def _copied(target: Any, device: str | None) -> tuple[Any, torch.nn.Module | None]:
    """Copy a module, or the module of a bound method, sharing its weights; a function stays as it is.

    Return the callee of the copy; and the copy, if there is one.
    """
    import torch

    owner = module_of(target)
    if owner is None:
        return target, None
    memo: dict[int, Any] = {}
    for module in owner.modules():
        for _, each in _tensors("", [*vars(module).values()]):
            moved = each.detach().to(device) if device else each.detach()
            elsewhere = moved.device != each.device
            if isinstance(each, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved, each.requires_grad) if elsewhere else each
            memo[id(each)] = moved if elsewhere or moved is each else moved.clone()
    try:
        copy = deepcopy(owner, memo)
    except Exception as error:
        raise SourceError(
            f"cannot copy {type(owner).__name__}, which must stay unchanged: {first_line(error)}.",
            hint="attnscope.trace_call, which calls the module itself once",
        ) from error
    run_uncompiled(copy)
    return (MethodType(target.__func__, copy) if isinstance(target, MethodType) else copy), copy


# Arguments.


def as_tensors(value: Any, target: Any) -> Any:
    """Return numpy's arrays as tensors; those of float64, numpy's default, in the dtype of a module."""
    import torch

    if type(value) in (tuple, list):
        return type(value)(as_tensors(each, target) for each in value)
    if type(value) is dict:
        return {name: as_tensors(each, target) for name, each in value.items()}
    if type(value).__module__ != "numpy" or not getattr(value, "shape", ()):
        return value
    tensor, module = torch.as_tensor(value.copy()), module_of(target)
    if module is None or tensor.dtype != torch.float64:
        return tensor
    weights = (each for each in module.parameters() if each.is_floating_point())
    return tensor.to(next(weights, tensor).dtype)


def _tensors(label: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of an argument, each with its label: `name[0]` for the first of a tuple."""
    import torch

    if isinstance(value, torch.Tensor):
        yield label, value
    elif type(value) in (tuple, list, dict):
        for i, member in value.items() if type(value) is dict else enumerate(value):
            yield from _tensors(f"{label}[{i}]", member)


def _has_versions(value: Any, versions: list[int]) -> bool:
    """Add the versions of an argument's tensors; return whether it has no other state."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        versions.append(-1 if value.is_inference() else value._version)
        return True
    if type(value) in (tuple, list, dict):
        members = value.values() if type(value) is dict else value
        return all(_has_versions(each, versions) for each in members)
    return isinstance(
        value, str | bytes | int | float | complex | type | torch.dtype | torch.device | None
    )


def _input(label: str, value: Any, dims: Mapping[str, Dims]) -> Input:
    import torch

    if isinstance(value, torch.Tensor):
        named = dims.get(label)
        axes = None
        if named is not None:
            axes = tuple(AxisSpec(x, None) if isinstance(x, str) else AxisSpec(None, x) for x in named)
        return TensorSpec(axes, file=cast(TensorFile, LiveTensor(label, value)))
    if type(value) in (tuple, list) and any(_tensors(label, value)):
        return InputTuple(tuple(_input(f"{label}[{i}]", member, dims) for i, member in enumerate(value)))
    return Plain(value)


# Names.


def _named_axes(
    axes: Mapping[str, str | Sequence[str]], tensors: Mapping[str, torch.Tensor]
) -> dict[str, Dims]:
    """Return the axes of the tensors whose axes the caller names."""
    found: dict[str, Dims] = {}
    for label, text in axes.items():
        names = text.replace(",", " ").split() if isinstance(text, str) else list(text)
        if label not in tensors:
            there = ", ".join(tensors) or "none"
            raise OptionError(f"axes: the call has no tensor {label}; it has {there}.")
        shape = tensors[label].shape
        if len(names) != len(shape):
            raise OptionError(f"axes: {len(names)} names for the {len(shape)} axes of {label}.")
        bad = [name for name in names if not (name.isidentifier() or name.isdigit())]
        if bad:
            raise OptionError(f"axes: {bad[0]!r} is not a valid axis name for {label}.")
        found[label] = tuple(int(name) if name.isdigit() else name for name in names)
    return found


def _batch_first(owner: torch.nn.Module | None) -> bool | None:
    """Return whether a module says that the batch comes before the sequence; None if it does not say."""
    modules = owner.modules() if owner is not None else ()
    known = {flag for each in modules if type(flag := getattr(each, "batch_first", None)) is bool}
    return bool(known.pop()) if len(known) == 1 else None


def _module_sizes(module: torch.nn.Module) -> dict[str, int]:
    """Return the sizes that a module stores: constructor arguments, or else all its integers."""
    stored = {name: value for name, value in vars(module).items() if type(value) is int and value > 1}
    signature = signature_of(type(module))
    arguments = signature.parameters if signature is not None else {}
    sizes = {name: stored[name] for name in arguments if name in stored}
    return sizes or {name: size for name, size in stored.items() if not name.startswith("_")}


def _quotients(fixed: Mapping[str, int], named: Collection[int]) -> dict[str, int]:
    """Return the sizes of widths divided by another size, such as the width of a head.

    Only those that nothing else has: no other width, and no size in an equation.
    """
    found: dict[int, list[str]] = {}
    for name, size in fixed.items():
        for other, parts in fixed.items():
            if parts < size and size % parts == 0:
                found.setdefault(size // parts, []).append(f"{name}/{other}")
    taken = {*fixed.values(), *named}
    return {texts[0]: size for size, texts in found.items() if len(texts) == 1 and size not in taken}
