"""What is called of a target, and whether what the user gives is what its parameters take.

Nothing is run: signatures say which arguments are missing, and which are too much.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any

from attnscope.errors import OptionError, SourceError
from attnscope.tracing.target.load import Loaded

VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Callee:
    """What is called.

    Attributes:
        target: what the user named.
        owner: the class that is constructed first; None for a function.
        method: the method of it that is called; None for the instance itself.
        title: what messages call it: `forward`.
        signature: what it takes, without `self`; None where Python does not know.
    """

    target: Any
    owner: type | None
    method: str | None
    title: str
    signature: Signature | None

    @property
    def function(self) -> Any:
        """What is to be traced: the class or function, or the method that is called."""
        return getattr(self.owner, self.method) if self.method else self.target

    def of(self, instance: Any) -> Any:
        """What is called, of an instance of `owner`."""
        if self.method:
            return getattr(instance, self.method)
        return instance if callable(instance) else instance.forward

    @property
    def parameters(self) -> Signature | None:
        """What has defaults that sizes may replace: the constructor, or else the function."""
        return signature_of(self.owner) if self.owner else self.signature


def callee(loaded: Loaded, call: str | None) -> Callee:
    """What is called.

    Args:
        loaded: a class, a function, or a method of a class, which is constructed then.
        call: the method that the user names; None for what a call of the instance runs.

    Raises:
        SourceError: instances of the class cannot be called.
        OptionError: there is no such method.
    """
    target, name = loaded.object, loaded.name.split(".")[-1]
    owner = target if isinstance(target, type) else None
    if owner is None and call is not None:
        raise OptionError(
            f"{loaded.name} is not a class, so it has no method {call} to call.", hint="leave out --call"
        )
    parent = _class_around(loaded)
    if parent and isinstance(inspect.getattr_static(parent, name, None), FunctionType):
        owner, call = parent, name
    if owner is None:
        return Callee(target, None, None, name, signature_of(getattr(target, "forward", target)))
    usual = _usual(owner)
    if call is None and usual is None:
        methods = _methods(owner)
        raise SourceError(
            f"{owner.__name__} has no forward and no __call__; its methods are"
            f" {', '.join(methods) or 'none'}.",
            hint=f"--call {methods[0]}" if methods else None,
        )
    if call is not None and not callable(getattr(owner, call, None)):
        methods = _methods(owner)
        near = get_close_matches(call, methods, n=1) or methods[:1]
        raise OptionError(
            f"{owner.__name__} has no method {call}; its methods are {', '.join(methods) or 'none'}.",
            hint=f"--call {near[0]}" if near else None,
        )
    title = call or usual or ""
    return Callee(target, owner, call, title, _method_signature(owner, title))


LONGEST = 100
"""Letters of a signature that messages show."""


def signature_of(target: Any) -> Signature | None:
    """What a class or function takes; None where Python does not know.

    Some constructors take more names than they say (those of transformers' configurations do).
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
    title: str, signature: Signature | None, places: int, names: Collection[str], option: str
) -> None:
    """Check that arguments are what a signature takes.

    Args:
        title: what is called.
        signature: what it takes.
        places: how many arguments are given without a name.
        names: of the others.
        option: what gives them: `--init`, or `--init config` for a construction in that argument.

    Raises:
        OptionError: some are missing, or there are others.
    """
    if signature is None:
        return
    shown = f"{title}{_bare(signature)}"
    shown = shown if len(shown) <= LONGEST else f"{title}(…)"
    parameters = signature.parameters
    by_name = [
        p.name for p in parameters.values() if p.kind not in (*VARIADIC, Parameter.POSITIONAL_ONLY)
    ]
    anything = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in names if name not in parameters or parameters[name].kind in VARIADIC]
    if unknown and not anything:
        near = get_close_matches(unknown[0], by_name, n=1)
        raise OptionError(
            f"{shown} has no {unknown[0]}.", hint=f"{option} {near[0]}=…" if near else None
        )
    placed = _labels(signature, places)
    twice = [name for name in names if name in placed]
    if twice:
        raise OptionError(
            f"{shown} gets {twice[0]} twice from {option}: by its place and by its name.",
            hint=f"every {option} with its name",
        )
    if len(placed) < places:
        raise OptionError(
            f"{shown} takes {len(placed)} arguments without a name, and {option} gives {places}."
        )
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in VARIADIC and p.name not in {*names, *placed}
    ]
    if missing:
        raise OptionError(
            f"{shown} needs {' and '.join(missing)}, which {option} does not give.",
            hint=_giving(title, missing, option),
        )
    try:
        signature.bind(*[None] * places, **dict.fromkeys(names))
    except TypeError as error:
        raise OptionError(f"{shown}: {error}.") from error


def labels(signature: Signature | None, places: int) -> list[str]:
    """The names of the parameters that take the first `places` arguments."""
    if signature is None:
        return [f"args[{i}]" for i in range(places)]
    return _labels(signature, places)


def whole_defaults(signature: Signature | None, given: Collection[str]) -> dict[str, int]:
    """The defaults that are whole numbers from 2 up, of the parameters that are not given."""
    return {
        p.name: p.default
        for p in (signature.parameters.values() if signature else ())
        if type(p.default) is int
        and p.default >= 2
        and p.name not in given
        and p.kind is not Parameter.POSITIONAL_ONLY
    }


def _labels(signature: Signature, places: int) -> list[str]:
    """As `labels`; fewer where the signature does not take so many."""
    found: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            found += [f"{parameter.name}[{i}]" for i in range(places - len(found))]
        elif parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            found.append(parameter.name)
    return found[:places]


def _giving(title: str, names: Collection[str], option: str) -> str:
    """How a user gives arguments: by an option each, or in the parentheses of a construction."""
    if " " in option:  # --init config
        return f"{title}({', '.join(f'{name}=…' for name in names)})"
    return " ".join(f"{option} {name}=…" for name in names)


def _bare(signature: Signature) -> Signature:
    """A signature without its annotations, whose defaults can be shown whatever they are."""
    parameters = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Default(p.default))
        for p in signature.parameters.values()
    ]
    return Signature(parameters)


@dataclass(frozen=True)
class _Default:
    """A default of a user's, as messages show it."""

    value: Any

    def __repr__(self) -> str:
        try:
            return repr(self.value)
        except Exception:  # the user's code, which may raise anything
            return "…"


def _class_around(loaded: Loaded) -> type | None:
    """The class in which the target stands, if it was reached through one."""
    around: Any = loaded.module
    for part in loaded.name.split(".")[:-1]:
        around = getattr(around, part)
    return around if isinstance(around, type) else None


def _usual(owner: type) -> str | None:
    """The method that runs when an instance is called, and that a reader looks for."""
    forward = getattr(owner, "forward", None)
    # torch.nn.Module has a forward that says that there is none.
    if callable(forward) and getattr(forward, "__name__", "") != "_forward_unimplemented":
        return "forward"
    calls = [base for base in owner.__mro__ if "__call__" in vars(base)]
    return "__call__" if calls and forward is None else None


def _method_signature(owner: type, name: str) -> Signature | None:
    """What a method takes, without `self`."""
    signature = signature_of(getattr(owner, name))
    if signature is None or isinstance(inspect.getattr_static(owner, name), (staticmethod, classmethod)):
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _methods(owner: type) -> list[str]:
    """The methods that the user's own classes define."""
    own = [base for base in owner.__mro__ if base.__module__.split(".")[0] not in ("builtins", "torch")]
    methods = [
        name
        for base in own
        for name, value in vars(base).items()
        if isinstance(value, (FunctionType, staticmethod, classmethod)) and not name.startswith("_")
    ]
    return list(dict.fromkeys(methods))
