"""What is traced: a class or function, its sizes, which agree, and what it is given.

Everything that can be told without running a constructor is told by `subject`; `Subject.build`
constructs and draws, in the sizes that were said or in others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope.contracts import DTYPES
from attnscope.errors import OptionError
from attnscope.tracing.target.agreement import Argument, agreed
from attnscope.tracing.target.construct import construct, draw, draw_like, made, plain, shape_in
from attnscope.tracing.target.equations import Where, read_where
from attnscope.tracing.target.load import Loaded
from attnscope.tracing.target.signatures import (
    Callee,
    callee,
    check_arguments,
    labels,
    signature_of,
    whole_defaults,
)
from attnscope.tracing.target.specs import (
    Input,
    Made,
    Plain,
    Several,
    Value,
    read_init,
    read_input,
)

if TYPE_CHECKING:
    import torch

BYTES = {**DTYPES, "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}
"""The bytes of an element."""

CASTS = {"float64": "double", "float16": "half", "bfloat16": "bfloat16"}
"""The methods of a module that cast what is floating point in it, and leave the rest."""

T = TypeVar("T")


@dataclass(frozen=True)
class Built:
    """What is called, and with what.

    Attributes:
        callable: an instance, its method, or a function.
        args, kwargs: its inputs.
        module: the instance, if it is a `torch.nn.Module`.
    """

    callable: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: torch.nn.Module | None


@dataclass(frozen=True)
class Subject:
    """What is traced.

    Attributes:
        loaded: what the user named.
        callee: what is constructed, and what is called.
        init: the constructor's arguments.
        inputs: the call's.
        sizes: every size that has a name: of the inputs' axes, of the constructor's arguments, of the
            equations, of the inputs that are numbers.
        given: the names among them that the user says; a default says the others.
        defaults: whole numbers from 2 up that are defaults of the constructor, or of the function,
            where the user gives nothing.
        where: the equations.
        axes: the axes of each tensor, by its parameter's name, `name[0]` for the first of a tuple;
            None for a file's that nobody named.
        dtype: the module's, and that of tensors that are said to be of no other.
        fixed: names whose sizes cannot change, since weights that are there have them.
        quotients: sizes that are one of those over another, by what they are called: `d_feat/n_head`.
        proposed: names of axes that the user did not say. That two of them are equal is no finding.
    """

    loaded: Loaded
    callee: Callee
    init: dict[str, Value]
    inputs: list[Argument]
    sizes: dict[str, int]
    given: set[str]
    defaults: dict[str, int]
    where: list[Where]
    axes: dict[str, tuple[str | int, ...] | None]
    dtype: str
    fixed: dict[str, int] = field(default_factory=dict)
    quotients: dict[str, int] = field(default_factory=dict)
    proposed: set[str] = field(default_factory=set)

    def function(self) -> Any:
        """What `attnscope.trace` takes: the class or function, or the method that is called."""
        return self.callee.function

    @property
    def is_live(self) -> bool:
        """Whether the code and its arguments exist already."""
        return False

    @property
    def sizes_told(self) -> bool:
        """Whether no argument of the constructor may hold sizes that have no name here."""
        plain = (int, float, str, bool, type(None))
        return all(isinstance(v, Plain) and isinstance(v.value, plain) for v in self.init.values())

    @property
    def has_mode(self) -> bool:
        """Whether what is called is a module, which is trained or not, or an argument may be one."""
        import torch

        called = self.callee.owner or type(self.loaded.object)
        return issubclass(called, torch.nn.Module) or any(
            isinstance(each.value, Made) for each in self.inputs
        )

    def build(
        self,
        sizes: Mapping[str, int] | None = None,
        *,
        device: str | None = None,
        seed: int | None = None,
        train: bool | None = None,
    ) -> Built:
        """Construct the instance, and draw the inputs.

        Args:
            sizes: other sizes. Axes, whole numbers among the arguments, and defaults of these names
                get them; no equation is solved again.
            device: where everything is; None: the CPU.
            seed: the same seed draws the same weights and inputs; None: 0.
            train: whether a module is in training mode; None: it is not.

        Raises:
            SourceError: the constructor raises, and `sizes` is None. With other sizes its own exception
                is raised, since they may be sizes that it cannot have.
        """
        import torch

        device = device or "cpu"
        torch.manual_seed(seed or 0)
        defaults = self._other_defaults(sizes)
        all_sizes = {**self.sizes, **(sizes or {})}
        instance = self._instance(all_sizes, defaults, device, tell=sizes is None)
        module = instance if isinstance(instance, torch.nn.Module) else None
        if module is not None:
            module.to(device).train(bool(train))
            if self.dtype in CASTS:
                getattr(module, CASTS[self.dtype])()
        values = [(a.name, self._value(a.value, a.name, all_sizes, device)) for a in self.inputs]
        args = tuple(value for name, value in values if name is None)
        kwargs = {name: value for name, value in values if name is not None}
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.nn.Module):
                value.train(bool(train))
        if self.callee.owner is None:
            kwargs = {**kwargs, **defaults}
        return Built(self.callee.of(instance), args, kwargs, module)

    def _other_defaults(self, sizes: Mapping[str, int] | None) -> dict[str, int]:
        """The defaults that are others in these sizes."""
        return {
            name: size
            for name, size in (sizes or {}).items()
            if name in self.defaults and size != self.sizes.get(name, self.defaults[name])
        }

    def total_bytes(self, sizes: Mapping[str, int] | None = None) -> int:
        """The memory that the input tensors take, in bytes.

        Args:
            sizes: other sizes, as for `build`.
        """
        all_sizes = {**self.sizes, **(sizes or {})}
        total = 0
        for argument in self.inputs:
            for _, tensor in argument.tensors():
                dtype = tensor.file.dtype if tensor.file else tensor.dtype or self.dtype
                total += prod(shape_in(tensor, all_sizes)) * BYTES.get(dtype, 16)
        return total

    def _instance(
        self, sizes: Mapping[str, int], defaults: Mapping[str, int], device: str, *, tell: bool
    ) -> Any:
        """A new instance of the class; a function as it is."""
        import torch

        if self.callee.owner is None:
            target = self.loaded.object
            return deepcopy(target) if isinstance(target, torch.nn.Module) else target
        with torch.device(device):
            arguments = {name: made(value, name, sizes, tell=tell) for name, value in self.init.items()}
            return construct(self.callee.owner, (), {**arguments, **defaults}, tell=tell)

    def _value(self, value: Input, name: str | None, sizes: Mapping[str, int], device: str) -> Any:
        """An input."""
        import torch

        if isinstance(value, Plain):
            return plain(value, name, sizes)
        if isinstance(value, Made):
            with torch.device(device):
                return made(value, name, sizes, tell=False)
        if isinstance(value, Several):
            return tuple(self._value(member, None, sizes, device) for member in value.members)
        shape = shape_in(value, sizes)
        if value.file:
            stored = value.file.load()
            return stored.to(device) if shape == stored.shape else draw_like(stored, shape, device)
        high = sizes[value.high] if isinstance(value.high, str) else value.high
        return draw(shape, value.dtype or self.dtype, device, 0, high)


def subject(
    loaded: Loaded, init: list[str], inputs: list[str], where: list[str], call: str | None, dtype: str
) -> Subject:
    """What is traced, as the user says it.

    Args:
        loaded: a class or function.
        init: the constructor's arguments, each NAME=VALUE.
        inputs: the call's, each NAME=SPEC or SPEC.
        where: equations between sizes, each NAME=EXPRESSION.
        call: the method that is called, if it is not what a call of the instance runs.
        dtype: of the module and the inputs.

    Raises:
        AttnscopeError: an argument cannot be read, is missing or is too much; or sizes disagree, or
            a name has none.
    """
    if dtype not in DTYPES:
        raise OptionError(f"{dtype!r} is not a dtype to run in.", hint=f"--dtype {', '.join(DTYPES)}")
    target = callee(loaded, call)
    init_values = _once("--init", [read_init(text) for text in init])
    if target.owner is None and init_values:
        raise OptionError(
            f"{loaded.name} is no class: nothing is constructed, and --init has nothing to give.",
            hint=f"--input {next(iter(init_values))}=…",
        )
    if target.owner is not None:
        check_arguments(target.owner.__name__, target.parameters, 0, init_values, "--init")
    for name, value in init_values.items():
        _check_construction(value, f"--init {name}")

    read = [read_input(text) for text in inputs]
    names = _once("--input", [(name, value) for name, value in read if name is not None])
    n_placed = len(read) - len(names)
    check_arguments(target.title, target.signature, n_placed, names, "--input")
    placed = iter(labels(target.signature, n_placed))
    arguments = [Argument(name or next(placed), name, value) for name, value in read]

    given = set(init_values) if target.owner else {argument.label for argument in arguments}
    defaults = whole_defaults(target.parameters, given)
    equations = [read_where(text) for text in where]
    title, option = (target.owner.__name__, "--init") if target.owner else (target.title, "--input")
    sizes, said = agreed(init_values, arguments, equations, defaults, title, option)
    return Subject(
        loaded=loaded,
        callee=target,
        init=init_values,
        inputs=arguments,
        sizes=sizes,
        given=said,
        defaults=defaults,
        where=equations,
        axes={label: tensor.dims for argument in arguments for label, tensor in argument.tensors()},
        dtype=dtype,
    )


def _once(option: str, pairs: list[tuple[str, T]]) -> dict[str, T]:
    """Pairs as a dictionary, where none may be given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(
            f"{option} gives {twice} {names.count(twice)} times.", hint=f"{option} {twice}=… once"
        )
    return found


def _check_construction(value: Value, option: str) -> None:
    """Check that constructions among the arguments are given what they take."""
    if isinstance(value, Made) and value.arguments is not None:
        pairs = [(name, inner) for name, inner in value.arguments if name is not None]
        named = _once(option, pairs)
        title = value.target.name.split(".")[-1]
        n_placed = len(value.arguments) - len(named)
        check_arguments(title, signature_of(value.target.object), n_placed, named, option)
        for _, inner in value.arguments:
            _check_construction(inner, option)
