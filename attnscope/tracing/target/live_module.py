"""A module or function that exists already, with real tensors, as what is traced.

The code runs first with these tensors, and then with drawn ones of other sizes. A module's weights
cannot change size: widths stay as they are, batches and lengths vary. The module itself never runs: a
copy does, which shares its weights and has buffers and attributes of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

from attnscope.errors import OptionError, SourceError, first_line
from attnscope.tensor_files import TensorFile
from attnscope.tracing.target.agreement import Argument, agreed
from attnscope.tracing.target.equations import read_where
from attnscope.tracing.target.load import Loaded
from attnscope.tracing.target.signatures import Callee, labels, signature_of, whole_defaults
from attnscope.tracing.target.specs import Axis, Input, Plain, Several, Tensor
from attnscope.tracing.target.subject import Built, Subject

if TYPE_CHECKING:
    import torch

Dims = tuple[str | int, ...]
"""What a tensor's axes are called: a name, or the size of one without."""

KEYS = re.compile(r"(enc\w*_)?(k|v|xk|xv|kv|keys?|values?|memory|context)(_\w*)?", re.IGNORECASE)
QUERIES = re.compile(r"(q|xq|query|queries)(_\w*)?", re.IGNORECASE)
VALUES = re.compile(r"(v|xv|values?)(_\w*)?", re.IGNORECASE)
"""The names of arguments that hold keys or values, queries, and values."""


@dataclass(frozen=True)
class LiveTensor:
    """A tensor of the caller's, where a file's would stand."""

    name: str
    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """Torch's name for its dtype."""
        return str(self.tensor.dtype).removeprefix("torch.")

    def load(self) -> torch.Tensor:
        """The tensor."""
        return self.tensor

    def __str__(self) -> str:
        return "this call"


@dataclass(frozen=True)
class LiveSubject(Subject):
    """A module or function that exists, and what it is called with.

    Attributes:
        args, kwargs: the arguments, as they are.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """Yes."""
        return True

    @property
    def sizes_told(self) -> bool:
        """Whether no size is hidden in what is called: weights have some."""
        return _module_of(self.callee.target) is None

    @property
    def has_mode(self) -> bool:
        """Whether what is called is a module's."""
        return _module_of(self.callee.target) is not None

    def build(
        self,
        sizes: Mapping[str, int] | None = None,
        *,
        device: str | None = None,
        seed: int | None = None,
        train: bool | None = None,
    ) -> Built:
        """A copy of the module, or the function itself, with its arguments.

        Args:
            sizes: other sizes, in which tensors are drawn; None: the caller's tensors.
            device: where everything is; None: where it is.
            seed: what is drawn with; None: 0, and nothing new for the caller's tensors.
            train: whether a module is in training mode; None: as it is.
        """
        import torch

        if sizes is not None or seed is not None:
            torch.manual_seed(seed or 0)
        called, module = _copied(self.callee.target, device)
        if module is not None and train is not None:
            module.train(train)
        if sizes is None and device is None:
            return Built(called, self.args, dict(self.kwargs), module)
        known = {**self.sizes, **(sizes or {})}
        values = [(a.name, self._value(a.value, a.name, known, device or "cpu")) for a in self.inputs]
        values = self._with_identity(values)
        args = tuple(value for name, value in values if name is None)
        kwargs = {name: value for name, value in values if name is not None}
        return Built(called, args, {**kwargs, **self._other_defaults(sizes)}, module)

    def _with_identity(self, values: list[tuple[str | None, Any]]) -> list[tuple[str | None, Any]]:
        """The values, where one tensor that is given twice is one again, if it has the same shape.

        Code may ask whether `query is key`, and go another way.
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
) -> LiveSubject:
    """What is traced, as the caller has it.

    Args:
        target: a module, a function or a bound method.
        args, kwargs: what it is called with.
        axes: the names of arguments' axes: `"B L D"`, or a list.
        where: equations between sizes, each NAME=EXPRESSION.
        call: the method of the module that is called.

    Raises:
        OptionError: axes are named of what is no tensor, or not as many as it has.
        SizeError: a name stands for two sizes.
    """
    if call is not None and not callable(getattr(target, call, None)):
        raise OptionError(f"{type(target).__name__} has no method {call}.")
    called = getattr(target, call) if call is not None else target
    owner = _module_of(called)
    title = getattr(called, "__qualname__", type(called).__qualname__)
    signature = signature_of(getattr(called, "forward", called))
    placed = labels(signature, len(args))
    if len(placed) < len(args):
        raise OptionError(f"{title} takes {len(placed)} arguments without a name, and gets {len(args)}.")
    values = dict(zip(placed, args, strict=True)) | kwargs
    tensors = {place: each for label, value in values.items() for place, each in _tensors(label, value)}
    said = _named_axes(axes, tensors)
    names = {axis for each in said.values() for axis in each if isinstance(axis, str)}
    own = _own_sizes(owner) if owner is not None else {}
    own = {name: size for name, size in own.items() if name not in names}
    dims = {**_default_axes(tensors, said, own, has_weights=owner is not None), **said}
    inputs = [
        Argument(label, label if label in kwargs else None, _input(label, value, dims))
        for label, value in values.items()
    ]
    defaults = whole_defaults(signature, values)
    equations = [read_where(text) for text in where]
    numbers = {name: Plain(size) for name, size in own.items()}
    sizes, _ = agreed(numbers, inputs, equations, defaults, title, "axes")
    fixed: dict[str, int] = {}
    if owner is not None:
        widths = [dims[place][-1] for place, tensor in tensors.items() if _has_width(tensor)]
        fixed = {axis: sizes[axis] for axis in widths if isinstance(axis, str)}
        named = {name for equation in equations for name in equation.names} | {*fixed}
        for name, size in own.items():
            if name in named or size not in fixed.values():
                fixed[name] = size
            else:  # the width has a name, which is another
                del sizes[name]
        for equation in equations * len(equations):  # what follows from sizes that stay, stays
            loose = [name for name in equation.names if name not in fixed]
            fixed |= {name: sizes[name] for name in loose if len(loose) == 1}
    return LiveSubject(
        loaded=Loaded(target, title, sys.modules[type(target).__module__]),
        callee=Callee(called, None, None, title, signature),
        init={},
        inputs=inputs,
        sizes=sizes,
        given={name for name in sizes if name not in defaults},
        defaults=defaults,
        where=equations,
        axes={label: tensor.dims for each in inputs for label, tensor in each.tensors()},
        dtype=_dtype(tensors),
        fixed=fixed,
        quotients=_quotients(fixed, {sizes[name] for each in equations for name in each.names}),
        proposed={axis for axis in sizes if axis not in names},
        args=args,
        kwargs=kwargs,
    )


def _copied(target: Any, device: str | None) -> tuple[Any, torch.nn.Module | None]:
    """A copy of a module, or of a bound method's module, that shares its weights; a function as it is.

    Args:
        target: what is called.
        device: where the copy's weights are; None: where they are.

    Returns:
        What is called of the copy; and the copy, if there is one.
    """
    import torch

    owner = _module_of(target)
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
            f"cannot copy {type(owner).__name__}, so that it stays as it is: {first_line(error)}.",
            hint="attnscope.trace_call, which calls the module itself, once",
        ) from error
    return (MethodType(target.__func__, copy) if isinstance(target, MethodType) else copy), copy


def _module_of(target: Any) -> torch.nn.Module | None:
    """The module that is called, or that a bound method belongs to."""
    import torch

    owner = getattr(target, "__self__", None) if isinstance(target, MethodType) else target
    return owner if isinstance(owner, torch.nn.Module) else None


# Arguments.


def _tensors(label: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of an argument, each with its label: `name[0]` for the first of a tuple."""
    import torch

    if isinstance(value, torch.Tensor):
        yield label, value
    elif type(value) in (tuple, list, dict):
        for i, member in value.items() if type(value) is dict else enumerate(value):
            yield from _tensors(f"{label}[{i}]", member)


def _input(label: str, value: Any, dims: Mapping[str, Dims]) -> Input:
    import torch

    if isinstance(value, torch.Tensor):
        named = dims.get(label)
        axes = None
        if named is not None:
            axes = tuple(Axis(x, None) if isinstance(x, str) else Axis(None, x) for x in named)
        return Tensor(axes, file=cast(TensorFile, LiveTensor(label, value)))
    if type(value) in (tuple, list) and any(_tensors(label, value)):
        return Several(tuple(_input(f"{label}[{i}]", member, dims) for i, member in enumerate(value)))
    return Plain(value)


def _has_width(tensor: torch.Tensor) -> bool:
    """Whether its last axis is one that weights are multiplied over."""
    return tensor.is_floating_point() and tensor.dim() > 1


def _dtype(tensors: Mapping[str, torch.Tensor]) -> str:
    """The dtype of the first tensor that has real numbers, or else of the first."""
    real = [each for each in tensors.values() if each.is_floating_point()]
    return str(next(iter([*real, *tensors.values()])).dtype).removeprefix("torch.") if tensors else ""


# Names.


def _named_axes(
    axes: Mapping[str, str | Sequence[str]], tensors: Mapping[str, torch.Tensor]
) -> dict[str, Dims]:
    """The axes of the tensors that the caller names."""
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
            raise OptionError(f"axes: {bad[0]!r} is no name of an axis of {label}.")
        found[label] = tuple(int(name) if name.isdigit() else name for name in names)
    return found


def _default_axes(
    tensors: Mapping[str, torch.Tensor],
    said: Mapping[str, Dims],
    own: Mapping[str, int],
    *,
    has_weights: bool,
) -> dict[str, Dims]:
    """Names for the axes of tensors that the caller does not name: those of the textbook.

    Queries are `n_batch n_Q d_feat`, keys and values `n_batch n_K d_feat`; of a tensor that is neither
    by its name, `n_batch n d_feat`. What has no real numbers but ids, and masks, get the names of axes
    of their sizes. One name stands for one size.
    """
    sizes = dict(own)
    for label, dims in said.items():
        pairs = zip(dims, tensors[label].shape, strict=True)
        sizes |= {axis: size for axis, size in pairs if isinstance(axis, str)}
    found: dict[str, Dims] = {}
    rest = []
    for label, tensor in tensors.items():
        if label in said or 0 in tensor.shape:
            continue
        is_mask = "mask" in label or "bias" in label or str(tensor.dtype) == "torch.bool"
        if is_mask or not (_has_width(tensor) or tensor.dim() == 2) or tensor.dim() > 4:
            rest.append(label)
            continue
        names = []
        for name, size in zip(_usual(label, tensor, own, has_weights), tensor.shape, strict=True):
            free = next(each for each in (name, f"{name}_{label}") if sizes.get(each, size) == size)
            sizes[free] = size
            names.append(free)
        found[label] = tuple(names)
    for label in rest:
        found[label] = _aligned(tensors[label].shape, sizes)
    return found


def _usual(label: str, tensor: torch.Tensor, own: Mapping[str, int], has_weights: bool) -> list[str]:
    """What the axes of queries, keys, values, or of anything else, are usually called."""
    word = re.sub(r"\W", "_", label)
    length = "n_K" if KEYS.fullmatch(word) else "n_Q" if QUERIES.fullmatch(word) else "n"
    if not tensor.is_floating_point():
        return ["n_batch", length]
    if has_weights and tensor.dim() < 4:
        width = next((name for name, size in own.items() if size == tensor.shape[-1]), "d_feat")
    elif length == "n":
        width = "d_feat" if tensor.dim() < 4 else "d_head"
    else:
        width = "d_V" if VALUES.fullmatch(word) else "d_K"
    return {
        2: [length, width],
        3: ["n_batch", length, width],
        4: ["n_batch", "n_head", length, width],
    }[tensor.dim()]


def _aligned(shape: Sequence[int], sizes: Mapping[str, int]) -> Dims:
    """The axes of a mask, or of what else broadcasts: the names of such sizes, or the sizes."""
    order = ["n_batch", "n_head", "n_Q", "n_K"]
    named: list[str | int] = []
    for place, size in enumerate(shape, start=4 - len(shape)):
        usual = order[place] if 0 <= place < 4 else ""
        names = [name for name, each in sizes.items() if each == size and size > 1]
        named.append(usual if usual in names else names[0] if len(names) == 1 else size)
    return tuple(named)


def _own_sizes(module: torch.nn.Module) -> dict[str, int]:
    """The sizes that a module keeps: arguments of its constructor, or else whatever numbers it has."""
    kept = {name: value for name, value in vars(module).items() if type(value) is int and value > 1}
    signature = signature_of(type(module))
    arguments = signature.parameters if signature is not None else {}
    own = {name: kept[name] for name in arguments if name in kept}
    return own or {name: size for name, size in kept.items() if not name.startswith("_")}


def _quotients(fixed: Mapping[str, int], named: Collection[int]) -> dict[str, int]:
    """What is left of a width when it is split into as many parts as another size says.

    Only where nothing else has this size: no other width, and none of the sizes that equations name.
    """
    found: dict[int, list[str]] = {}
    for name, size in fixed.items():
        for other, parts in fixed.items():
            if parts < size and size % parts == 0:
                found.setdefault(size // parts, []).append(f"{name}/{other}")
    taken = {*fixed.values(), *named}
    return {texts[0]: size for size, texts in found.items() if len(texts) == 1 and size not in taken}
