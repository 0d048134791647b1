"""The subject of a trace: a class or function, its sizes, and its arguments.

`read_subject` finds all errors that can be found without running a constructor; `CodeSubject.build`
constructs the instance and draws the inputs, with the original sizes or with others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope.base.dtypes import CASTS, DTYPES, FLOATS
from attnscope.base.errors import OptionError, dtype_hint
from attnscope.base.options import Texts
from attnscope.base.process.random_state import seed_torch
from attnscope.base.spelling import spelled
from attnscope.code.load.agreement import Argument, Where, agree_on_sizes, read_where
from attnscope.code.load.construct import construct, draw, draw_like, make_value, shape_in
from attnscope.code.load.examples import Example
from attnscope.code.load.load import Loaded
from attnscope.code.load.proposed_axes import Dims, InputShape, guessed_axes, proposed_axes
from attnscope.code.load.signatures import (
    Callee,
    callee,
    check_arguments,
    given,
    integer_defaults,
    positional_names,
    signature_of,
)
from attnscope.code.load.specs import (
    AxisSpec,
    Computed,
    Construction,
    Input,
    InputTuple,
    Plain,
    Same,
    TensorSpec,
    Value,
    nested,
    numbers_in,
    read_init,
    read_input,
    value_of,
)
from attnscope.observe.axes.expressions import Expression
from attnscope.observe.torch_internals.compiler import is_compiled, run_uncompiled

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Built:
    """A call that can be run."""

    callable: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: torch.nn.Module | None
    drawn: Sequence[torch.Tensor] = ()  #: the inputs with random values

    def weights(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the shapes of the parameters and buffers of all modules, each with its bytes."""
        import torch

        modules = [self.module, self.callable, *self.args, *self.kwargs.values()]
        tensors = {
            id(each): each
            for module in modules
            if isinstance(module, torch.nn.Module)
            for each in (*module.parameters(), *module.buffers())
        }
        return [(tuple(each.shape), each.nbytes) for each in tensors.values()]


@dataclass(frozen=True)
class CodeSubject:
    """A class or function to trace, with its sizes and arguments."""

    loaded: Loaded
    callee: Callee
    init: dict[str, Value]
    inputs: list[Argument]
    #: every size that has a name: of the inputs' axes, of the constructor's arguments, of the
    #: equations, of the inputs that are numbers
    sizes: dict[str, int]
    #: the names among them whose sizes the user sets; the others come from defaults
    set_by_user: set[str]
    #: integer defaults from 2 up of the constructor, or of the function, for arguments that the user
    #: does not pass
    defaults: dict[str, int]
    where: list[Where]
    dtype: str  #: the dtype of the module, and of tensors without another one
    distribution: str | None = None  #: that of drawn numbers: `normal` (None) or `uniform`
    #: the equations of axes that are expressions, such as `2·n-1`
    in_axes: list[Where] = field(default_factory=list)
    #: names whose sizes cannot change, because existing weights have them
    fixed: dict[str, int] = field(default_factory=dict)
    #: sizes that are one of those over another, by their text: `d_feat/n_head`
    quotients: dict[str, int] = field(default_factory=dict)
    #: names of axes that the user did not name. There is no finding if two of them are equal.
    proposed: set[str] = field(default_factory=set)
    #: those among them that the code does not have either, but that are customary
    guessed: list[str] = field(default_factory=list)

    @property
    def is_live(self) -> bool:
        """Whether the code and its arguments already exist."""
        return False

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """The tensors among the inputs, by the parameter's name: `name[0]` for the first of a tuple."""
        return {label: tensor for each in self.inputs for label, tensor in each.tensors()}

    @property
    def axes(self) -> dict[str, Dims | None]:
        """The axes of each tensor; None for a file without named axes."""
        return {label: tensor.dims for label, tensor in self.tensors.items()}

    @property
    def equations(self) -> list[tuple[str, Expression]]:
        """All equations between sizes: the name on the left, and what it equals."""
        return [(each.name, each.value) for each in [*self.where, *self.in_axes]]

    @property
    def draws_numbers(self) -> bool:
        """Whether any input is a tensor of drawn numbers that are not integers."""
        return any(
            each.file is None and (each.dtype or self.dtype).startswith(("float", "bfloat", "complex"))
            for each in self.tensors.values()
        )

    @property
    def is_compiled(self) -> bool:
        """Whether `torch.compile` compiles the target, which runs uncompiled here."""
        return self.callee.is_compiled or is_compiled(self.loaded.object)

    @property
    def all_sizes_named(self) -> bool:
        """Whether neither the inputs nor the constructor's arguments can contain unnamed sizes."""
        values = [*self.init.values(), *(each.value for each in self.inputs)]
        return self.all_axes_named and all(map(_has_named_sizes, values))

    @property
    def all_axes_named(self) -> bool:
        """Whether each axis of the inputs has a name, except those of size 1."""
        return all(
            axes is not None and all(isinstance(axis, str) or axis == 1 for axis in axes)
            for axes in self.axes.values()
        )

    @property
    def has_mode(self) -> bool:
        """Whether the callee is a module, with a training mode, or an argument may be one."""
        import torch

        called = self.callee.owner or type(self.callee.target)
        return issubclass(called, torch.nn.Module) or any(
            isinstance(each.value, Construction) for each in self.inputs
        )

    def arguments_state(self) -> object:
        """Capture what differs after a call that has changed its arguments; None if that is unknown.

        A build makes new ones, which no call has changed.
        """
        return ()

    def build(
        self,
        sizes: Mapping[str, int] | None = None,
        *,
        device: str | None = None,
        seed: int | None = None,
        train: bool | None = None,
    ) -> Built:
        """Construct the instance, and draw the inputs.

        `sizes` replaces those of axes, integer arguments and defaults of these names; no equation is
        solved again. With them, a constructor raises its own exceptions: it may not support them.
        """
        import torch

        device = device or "cpu"
        seed_torch(seed or 0)
        defaults = self._other_defaults(sizes)
        all_sizes = {**self.sizes, **(sizes or {})}
        instance = self._instance(all_sizes, defaults, device, wrap_errors=sizes is None)
        module = instance if isinstance(instance, torch.nn.Module) else None
        if module is not None:
            module.to(device).train(bool(train))
            run_uncompiled(module)
            if any(map(torch.nn.parameter.is_lazy, module.parameters())):
                module.to(getattr(torch, self.dtype))  # other casts cannot wait for the first input
            elif self.dtype in CASTS:
                getattr(module, CASTS[self.dtype])()
        values = self._values(all_sizes, device)
        args = tuple(value for name, value in values if name is None)
        kwargs = {name: value for name, value in values if name is not None}
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.nn.Module):
                value.train(bool(train))
        if self.callee.owner is None:
            kwargs = {**kwargs, **defaults}
        pairs = zip(self.inputs, values, strict=True)
        drawn = [tensor for each, (_, value) in pairs for tensor in _drawn(each.value, value)]
        return Built(self.callee.of(instance), args, kwargs, module, drawn)

    def _other_defaults(self, sizes: Mapping[str, int] | None) -> dict[str, int]:
        """Return the defaults that differ with other sizes."""
        return {
            name: size
            for name, size in (sizes or {}).items()
            if name in self.defaults and size != self.sizes.get(name, self.defaults[name])
        }

    def total_bytes(self) -> int:
        """Return the size of the input tensors in bytes."""
        return sum(
            prod(shape_in(each, self.sizes))
            * DTYPES[each.file.dtype if each.file else each.dtype or self.dtype].n_bytes
            for each in self.tensors.values()
        )

    def _instance(
        self, sizes: Mapping[str, int], defaults: Mapping[str, int], device: str, *, wrap_errors: bool
    ) -> Any:
        """Return a new instance of the class; a function unchanged."""
        import torch

        from attnscope.observe.torch_internals.unnoticed import unnoticed_device

        if self.callee.owner is None:
            target = self.callee.target
            return deepcopy(target) if isinstance(target, torch.nn.Module) else target
        with unnoticed_device(device):
            arguments = {
                name: make_value(value, name, sizes, wrap_errors=wrap_errors)
                for name, value in self.init.items()
            }
            return construct(self.callee.owner, (), {**arguments, **defaults}, wrap_errors=wrap_errors)

    def _values(self, sizes: Mapping[str, int], device: str) -> list[tuple[str | None, Any]]:
        """Return the inputs, each with the name that the user gives it."""
        made = {
            each.label: self._value(each.value, each.name, sizes, device)
            for each in self.inputs
            if not isinstance(each.value, Same)
        }
        labels = [
            each.value.label if isinstance(each.value, Same) else each.label for each in self.inputs
        ]
        return [(each.name, made[label]) for each, label in zip(self.inputs, labels, strict=True)]

    def _value(self, value: Input, name: str | None, sizes: Mapping[str, int], device: str) -> Any:
        """Construct, draw or load an input."""
        from attnscope.observe.torch_internals.unnoticed import unnoticed_device

        if isinstance(value, Value):
            with unnoticed_device(device):
                return make_value(value, name, sizes, wrap_errors=False)
        if isinstance(value, InputTuple):
            return tuple(self._value(member, None, sizes, device) for member in value.members)
        shape = shape_in(value, sizes)
        if value.file:
            stored = value.file.load()
            return stored.to(device) if shape == stored.shape else draw_like(stored, shape, device)
        high = self._bound(value.high, sizes)
        return draw(shape, value.dtype or self.dtype, device, 0, high, self.distribution)

    def _bound(self, high: str | int | None, sizes: Mapping[str, int]) -> int | None:
        """Return the bound of drawn integers; a number that is also a named size changes with it."""
        if isinstance(high, str):
            return sizes[high]
        original = {**self.defaults, **self.sizes}
        same = [sizes[name] for name, size in original.items() if size == high and name in sizes]
        return high if high is None else min([high, *same])


def _has_named_sizes(value: Input | Same) -> bool:
    """Check whether a value contains no numbers without a name, as a tuple does."""
    if isinstance(value, InputTuple):
        return all(isinstance(each, TensorSpec) or each == Plain(None) for each in value.members)
    named = isinstance(value, TensorSpec | Same | Computed)
    return named or (isinstance(value, Plain) and isinstance(value.value, int | float | str | None))


def _drawn(value: Input | Same, made: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an input that were drawn, and not read from a file."""
    if isinstance(value, InputTuple):
        for member, each in zip(value.members, made, strict=True):
            yield from _drawn(member, each)
    elif isinstance(value, TensorSpec) and not value.file:
        yield made


def read_subject(
    loaded: Loaded,
    init: Texts,
    inputs: Texts,
    where: Sequence[str],
    call: str | None,
    dtype: str,
    distribution: str | None = None,
    *,
    of_code: Mapping[str, Sequence[str | None]] | None = None,
) -> CodeSubject:
    """Parse the specifications of a target's arguments, and solve for all sizes.

    `of_code` has the names that the code has for axes of the inputs; None for one without a name.
    """
    if dtype not in FLOATS:
        raise OptionError(f"{dtype!r} is not a dtype to run in.", hint=dtype_hint(dtype, FLOATS))
    target = callee(loaded, call)
    init_values = _unique(("init",), _read(init, read_init))
    if target.owner is None and init_values:
        raise OptionError(
            f"{loaded.name} is not a class: nothing is constructed, so {spelled('init')} does not"
            " apply.",
            hint=spelled(inputs=f"{next(iter(init_values))}=…"),
        )
    named_inputs = _read(inputs, read_input)
    example = Example(target, init_values, named_inputs)
    if target.owner is not None:
        title, init_example = target.owner.__name__, example.of_constructor
        check_arguments(title, target.parameters, 0, init_values, ("init",), init_example)
    for name, value in init_values.items():
        _check_construction(value, ("init", name))

    names = _unique(("inputs",), [(name, value) for name, value in named_inputs if name is not None])
    n_positional = len(named_inputs) - len(names)
    check_arguments(target.title, target.signature, n_positional, names, ("inputs",), example.of_call)
    positional = iter(positional_names(target.signature, n_positional))
    arguments = [Argument(name or next(positional), name, value) for name, value in named_inputs]

    passed = set(init_values) if target.owner else {argument.label for argument in arguments}
    defaults = integer_defaults(target.parameters, passed)
    equations = [read_where(text) for text in where]
    in_equations = {name for equation in equations for name in equation.names}
    arguments = _same_objects(arguments, {*init_values, *defaults, *in_equations})
    proposed: dict[str, Dims] = {}
    if not any(map(_names_an_axis, arguments)):
        numbers = {
            name: size for each in init_values for name, size in numbers_in(each, init_values[each])
        }
        proposed = _proposed(arguments, {**defaults, **numbers}, of_code or {}, target, dtype)
        arguments = [
            replace(each, value=_with_names(each.value, each.label, proposed)) for each in arguments
        ]
    title, option = (target.owner.__name__, "init") if target.owner else (target.title, "inputs")
    in_axes = [
        Where(axis.name, axis.value, f"{axis.name}={axis.value}")
        for argument in arguments
        for _, tensor in argument.tensors()
        for axis in tensor.axes or ()
        if axis.name is not None and axis.value is not None
    ]
    sizes, set_by_user = agree_on_sizes(
        init_values, arguments, [*equations, *in_axes], defaults, title, option
    )
    return CodeSubject(
        loaded=loaded,
        callee=target,
        init=init_values,
        inputs=arguments,
        sizes=sizes,
        set_by_user=set_by_user,
        defaults=defaults,
        where=equations,
        in_axes=in_axes,
        dtype=dtype,
        distribution=distribution,
        proposed={axis for axes in proposed.values() for axis in axes if isinstance(axis, str)},
        guessed=guessed_axes(proposed, [init_values, defaults, *(of_code or {}).values()]),
    )


def _names_an_axis(argument: Argument) -> bool:
    """Check whether the user names an axis of an input, or gives it a bound or a file."""
    return isinstance(argument.value, TensorSpec | InputTuple) and any(
        tensor.axes is None
        or tensor.high is not None
        or tensor.file
        or any(axis.name for axis in tensor.axes)
        for _, tensor in argument.tensors()
    )


def _proposed(
    arguments: Sequence[Argument],
    sizes: Mapping[str, int],
    of_code: Mapping[str, Sequence[str | None]],
    target: Callee,
    dtype: str,
) -> dict[str, Dims]:
    """Return names for the axes of inputs whose sizes alone the user gives."""
    shapes = {
        label: InputShape(tuple(axis.size or 0 for axis in tensor.axes or ()), tensor.dtype or dtype)
        for each in arguments
        for label, tensor in each.tensors()
    }
    has_weights = target.owner is not None
    return proposed_axes(shapes, {}, of_code, sizes, has_weights=has_weights, are_fixed=False)


def _with_names(value: Input | Same, label: str, dims: Mapping[str, Dims]) -> Any:
    """Return the specification of an input with names for its axes."""
    if isinstance(value, InputTuple):
        members = (_with_names(each, f"{label}[{i}]", dims) for i, each in enumerate(value.members))
        return InputTuple(tuple(members))
    if not isinstance(value, TensorSpec) or value.axes is None or label not in dims:
        return value
    pairs = zip(dims[label], value.axes, strict=True)
    axes = tuple(AxisSpec(name, axis.size) if isinstance(name, str) else axis for name, axis in pairs)
    return replace(value, axes=axes)


def _read(specifications: Texts, read: Callable[[str], tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Read specifications; objects among them stand for themselves."""
    if not isinstance(specifications, Mapping):
        return [read(text) for text in specifications]
    return [
        read(f"{name}={value}") if isinstance(value, str) else (name, value_of(value))
        for name, value in specifications.items()
    ]


def _same_objects(arguments: list[Argument], sizes: Collection[str]) -> list[Argument]:
    """Read `K=Q` as the object that the argument Q is, unless Q is the name of a size."""
    tensors = [tensor for argument in arguments for _, tensor in argument.tensors()]
    axes = {axis.name for each in tensors if each.word is None for axis in each.axes or ()}
    objects = {
        argument.label: argument.value
        for argument in arguments
        if not isinstance(argument.value, Plain) and argument.label not in {*axes, *sizes}
    }

    def original(label: str) -> str:
        """Return the argument that this one is: Q for `V=K` and `K=Q`."""
        labels = [label]
        while isinstance(value := objects.get(labels[-1]), TensorSpec) and value.word in objects:
            if value.word in labels:  # each is the other
                return label
            labels.append(value.word)
        return labels[-1]

    originals = [original(argument.label) for argument in arguments]
    return [
        argument if argument.label == label else replace(argument, value=Same(label))
        for argument, label in zip(arguments, originals, strict=True)
    ]


def _unique(option: tuple[str, ...], pairs: list[tuple[str, T]]) -> dict[str, T]:
    """Return pairs as a dictionary; check that no name occurs twice."""
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(
            f"{spelled(*option)} gives {twice} {names.count(twice)} times.",
            hint=f"{given(option, f'{twice}=…')} once",
        )
    return by_name


def _check_construction(value: Value, option: tuple[str, ...]) -> None:
    """Check that constructions among the arguments have the arguments that they take."""
    for _, each in nested(None, value):
        if isinstance(each, Construction) and each.arguments is not None:
            pairs = [(name, inner) for name, inner in each.arguments if name is not None]
            named = _unique(option, pairs)
            title = each.target.name.split(".")[-1]
            n_positional = len(each.arguments) - len(named)
            check_arguments(title, signature_of(each.target.object), n_positional, named, option)
