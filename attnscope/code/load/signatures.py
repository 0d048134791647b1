"""The callee of a target, and whether the user's arguments match its signature.

Nothing runs: signatures show which arguments are missing or superfluous.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, Signature
from types import FunctionType
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError, SourceError
from attnscope.base.spelling import spelled
from attnscope.base.text import alternatives
from attnscope.base.units import counted
from attnscope.code.load.load import Loaded
from attnscope.observe.torch_internals.compiler import is_compiled, uncompiled

if TYPE_CHECKING:
    import torch

EMPTY = Parameter.empty
VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Callee:
    """A function, or a class to construct and the method of it to call."""

    target: Any  #: the object that the user named; if `torch.compile` compiles it, what it compiles
    owner: type | None  #: the class to construct first; None for a function
    method: str | None  #: the method to call; None for the instance itself
    title: str  #: its name in messages: `forward`
    signature: Signature | None  #: its signature without `self`; None if Python does not know it

    @property
    def is_compiled(self) -> bool:
        """Whether `torch.compile` compiles the method, which runs uncompiled here."""
        return self.owner is not None and is_compiled(getattr(self.owner, self.title, None))

    @property
    def function(self) -> Any:
        """The target of the recording: the class or function, or the method that is called."""
        return getattr(self.owner, self.method) if self.method else self.target

    def of(self, instance: Any) -> Any:
        """Return the callable of an instance of `owner`."""
        if self.method:
            return getattr(instance, self.method)
        return instance if callable(instance) else instance.forward

    @property
    def parameters(self) -> Signature | None:
        """The signature whose defaults sizes may replace: the constructor's, or else the function's."""
        return signature_of(self.owner) if self.owner else self.signature


def callee(loaded: Loaded, call: str | None) -> Callee:
    """Return the callee of a target."""
    target, name = uncompiled(loaded.object), loaded.name.split(".")[-1]
    owner = target if isinstance(target, type) else None
    if owner is None and call is not None:
        raise OptionError(
            f"{loaded.name} is not a class, so it has no method {call} to call.",
            hint=f"leave out {spelled('call')}",
        )
    parent = _class_around(loaded)
    if parent and isinstance(inspect.getattr_static(parent, name, None), FunctionType):
        owner, call = parent, name
    if owner is None:
        return Callee(target, None, None, name, signature_of(getattr(target, "forward", target)))
    default = _default_method(owner)
    if call is None and default is None:
        methods = _methods(owner)
        raise SourceError(
            f"{owner.__name__} has no forward and no __call__; its methods are"
            f" {', '.join(methods) or 'none'}.",
            hint=spelled(call=methods[0]) if methods else None,
        )
    if call is not None and not callable(getattr(owner, call, None)):
        methods = _methods(owner)
        near = get_close_matches(call, methods, n=1) or methods[:1]
        raise OptionError(
            f"{owner.__name__} has no method {call}; its methods are {', '.join(methods) or 'none'}.",
            hint=spelled(call=near[0]) if near else None,
        )
    title = call or default or ""
    return Callee(target, owner, call, title, _method_signature(owner, title))


def module_of(called: Any) -> torch.nn.Module | None:
    """Return the module that is called, or whose method is; None if there is none."""
    import torch

    owner = getattr(called, "__self__", called)
    return owner if isinstance(owner, torch.nn.Module) else None


MAX_SIGNATURE = 100
"""The maximal number of characters of a signature in messages."""


def signature_of(target: Any) -> Signature | None:
    """Return the signature of a class or function; None if Python does not know it.

    Some constructors take more keywords than they declare (those of transformers' configurations do).
    """
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):
        return None
    runs = vars(target).get("__init__") if isinstance(target, type) else target
    code = getattr(runs, "__code__", None)
    parameters = [*signature.parameters.values()]
    says_so = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    if code is not None and code.co_flags & inspect.CO_VARKEYWORDS and not says_so:
        parameters.append(Parameter("others", Parameter.VAR_KEYWORD))
    return signature.replace(parameters=parameters)


def check_arguments(
    title: str,
    signature: Signature | None,
    n_positional: int,
    names: Collection[str],
    option: tuple[str, ...] | None,
    example: Callable[[list[str]], str] | None = None,
) -> None:
    """Check that arguments match a signature.

    `option` passes them: `init`, or `init`, `config` for a construction in that argument; None: a
    call does. `example` returns a hint with examples of missing arguments.
    """
    if signature is None:
        return
    named = spelled(*option) if option else "this call"
    shown = f"{title}{_bare(signature)}"
    shown = shown if len(shown) <= MAX_SIGNATURE else f"{title}(…)"
    parameters = signature.parameters
    by_name = [
        p.name for p in parameters.values() if p.kind not in (*VARIADIC, Parameter.POSITIONAL_ONLY)
    ]
    accepts_any = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    positional = positional_names(signature, n_positional)
    unknown = [name for name in names if name not in parameters or parameters[name].kind in VARIADIC]
    if unknown and not accepts_any:
        near = get_close_matches(unknown[0], by_name, n=1)
        free = [p for p in by_name if p not in {*names, *positional} and parameters[p].default is EMPTY]
        near = near or (free if len(free) == 1 else [])
        raise OptionError(
            f"{shown} has no {unknown[0]}.", hint=given(option, f"{near[0]}=…") if near else None
        )
    twice = [name for name in names if name in positional]
    if twice:
        raise OptionError(
            f"{shown} gets {twice[0]} twice from {named}: by position and by name.",
            hint=f"a name in every {named}",
        )
    if len(positional) < n_positional:
        raise OptionError(
            f"{shown} takes {counted(len(positional), 'positional argument')},"
            f" but {named} gives {n_positional}."
        )
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in VARIADIC and p.name not in {*names, *positional}
    ]
    if missing:
        raise OptionError(
            f"{shown} needs {alternatives(missing, 'and')}, which {named} does not give.",
            hint=example(missing)
            if example
            else f"{title}({', '.join(f'{each}=…' for each in missing)})",
        )
    try:
        signature.bind(*[None] * n_positional, **dict.fromkeys(names))
    except TypeError as error:
        raise OptionError(f"{shown}: {error}.") from error


def given(option: tuple[str, ...] | None, text: str) -> str:
    """Write an argument in its option: `--init`, or `--init config` for one of a construction."""
    if option is None:
        return text
    return f"{spelled(*option)} {text}" if option[1:] else spelled(**{option[0]: text})


def positional_names(signature: Signature | None, n_positional: int) -> list[str]:
    """Return the names of the parameters that take the first arguments; fewer if there are fewer."""
    if signature is None:
        return [f"args[{i}]" for i in range(n_positional)]
    found: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            found += [f"{parameter.name}[{i}]" for i in range(n_positional - len(found))]
        elif parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            found.append(parameter.name)
    return found[:n_positional]


def integer_defaults(signature: Signature | None, passed: Collection[str]) -> dict[str, int]:
    """Return the integer defaults from 2 up of the parameters that are not passed."""
    return {
        p.name: p.default
        for p in (signature.parameters.values() if signature else ())
        if type(p.default) is int
        and p.default >= 2
        and p.name not in passed
        and p.kind is not Parameter.POSITIONAL_ONLY
    }


def _bare(signature: Signature) -> Signature:
    """Return a signature without annotations, with defaults whose repr cannot fail."""
    parameters = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Default(p.default))
        for p in signature.parameters.values()
    ]
    return Signature(parameters)


@dataclass(frozen=True)
class _Default:
    """A default whose repr is safe to show."""

    value: Any

    def __repr__(self) -> str:
        try:
            return repr(self.value)
        except Exception:  # the user's code, which may raise anything
            return "…"


def _class_around(loaded: Loaded) -> type | None:
    """Return the class that contains the target, if it was named through one."""
    around: Any = loaded.module
    for part in loaded.name.split(".")[:-1]:
        around = getattr(around, part)
    return around if isinstance(around, type) else None


def _default_method(owner: type) -> str | None:
    """Return the method that runs when an instance is called: `forward`, or else `__call__`."""
    forward = getattr(owner, "forward", None)
    # torch.nn.Module has a forward that only raises.
    if callable(forward) and getattr(forward, "__name__", "") != "_forward_unimplemented":
        return "forward"
    calls = [base for base in owner.__mro__ if "__call__" in vars(base)]
    return "__call__" if calls and forward is None else None


def _method_signature(owner: type, name: str) -> Signature | None:
    """Return the signature of a method without `self`."""
    signature = signature_of(getattr(owner, name))
    if signature is None or isinstance(inspect.getattr_static(owner, name), (staticmethod, classmethod)):
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _methods(owner: type) -> list[str]:
    """Return the methods that the user's classes define."""
    classes = [
        base for base in owner.__mro__ if base.__module__.split(".")[0] not in ("builtins", "torch")
    ]
    methods = [
        name
        for base in classes
        for name, value in vars(base).items()
        if isinstance(value, (FunctionType, staticmethod, classmethod)) and not name.startswith("_")
    ]
    return list(dict.fromkeys(methods))
