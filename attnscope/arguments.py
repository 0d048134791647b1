"""The arguments of public functions, checked before anything runs.

What an argument may be is declared already: by its annotation, and by its option, which the command line
has too. `checked` reads these declarations, so that a wrong argument is an error that names it, not one
from deep inside; and so that values which Python has at hand (`torch.dtype`, numpy's integers, arrays of
indices, `Path`) are taken for what they mean.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial, wraps
from importlib import import_module
from inspect import Parameter, signature, unwrap
from operator import index
from os import PathLike, fspath
from typing import Any, Literal, get_args, get_origin

from attnscope.document.result import Part
from attnscope.errors import ArgumentError, OptionError
from attnscope.process.devices import check_device_name, check_seed
from attnscope.text import alternatives, described, nearest, shortened

OPTIONS = {
    "compare": "attnscope.comparison.options",
    "compare_checkpoints": "attnscope.comparison.options",
    "compare_maps": "attnscope.comparison.options",
    "compute": "attnscope.textbook.options",
    "dry_run": "attnscope.textbook.options",
    "inspect": "attnscope.tracing.options",
    "trace_script": "attnscope.tracing.options",
}
"""The modules that declare the options of public functions, if it is not the function's own."""

LEAST = {"copies": 1, "head": 0, "query": 0}
"""The least values of numbers that no option declares."""

MAY_BE_EMPTY = ("text", "other_text", "pair", "target")
"""Texts may be empty; an empty name, of a dtype or a method, is a mistake."""

MAX_SIZE = 2**63 - 1
"""The largest whole number that torch takes for a size."""

HINT_FOR_TENSOR = (
    "ids=… for the tokens of a model; audit(module, x) for which positions influence which in a module"
)
"""The hint for a tensor in the place of a text."""


@dataclass(frozen=True)
class Declared:
    """What is declared about an argument.

    Attributes:
        annotation: its kinds, such as `int | None`.
        names: what names in the annotation stand for.
        least: the least number that it takes; None: any.
    """

    annotation: str
    names: Mapping[str, Any]
    least: int | None


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public function that checks its arguments before it runs.

    Raises:
        OptionError: an argument is not what its annotation and its option say.
        ArgumentError: there is no such argument; the message names the nearest.
    """
    name, declaration = function.__name__, signature(function)
    parameters = declaration.parameters
    places = [each for each, p in parameters.items() if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())

    def converted(argument: str, value: Any) -> Any:
        default = parameters[argument].default if argument in parameters else None
        declared = None if value is default else declared_of(function).get(argument)
        return value if declared is None else _converted(argument, value, declared)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not takes_any:
            kwargs = {_existing(name, each, parameters): value for each, value in kwargs.items()}
        try:
            declaration.bind(*args, **kwargs)
        except TypeError as error:  # too few, too many, or one twice
            raise _does_not_bind(name, parameters, len(args), kwargs, error) from None
        placed = [converted(*each) for each in zip(places, args, strict=False)]
        named = {each: converted(each, value) for each, value in kwargs.items()}
        return function(*placed, *args[len(placed) :], **named)

    call.__module__ = "attnscope"
    return call


@cache
def declared_of(function: Callable[..., Any]) -> dict[str, Declared]:
    """Collect what is declared about a public function's arguments, and about its `**options`."""
    function = unwrap(function)
    name = function.__name__
    options = _options(OPTIONS.get(name, function.__module__))
    others = options if name in ("compute", "dry_run") else {}  # their `**options`
    return {**others, **_parameters(function, options)}


@cache
def _options(module: str) -> dict[str, Declared]:
    """Collect what a module declares about options."""
    names = vars(import_module(module))
    groups = {each for each in names.values() if isinstance(each, type) and is_dataclass(each)}
    if "OF_SDPA" in names:  # the module declares those of other commands, too
        groups = {*names["OF_SDPA"], *names["OF_MHA"]}
    return {
        each.name: Declared(str(each.type), names, each.metadata["flag"].min)
        for group in groups
        for each in fields(group)
        if "flag" in each.metadata
    }


def _parameters(function: Callable[..., Any], options: Mapping[str, Declared]) -> dict[str, Declared]:
    """Collect what is declared about a function's parameters."""
    least = LEAST | {name: each.least for name, each in options.items() if each.least is not None}
    return {
        name: Declared(str(each.annotation), function.__globals__, least.get(name))
        for name, each in signature(function).parameters.items()
        if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }


def _existing(function: str, name: str, parameters: Collection[str]) -> str:
    """Return the parameter that a keyword means: `layer` is `layers` where a function takes several."""
    if name in parameters:
        return name
    if name in ("layer", "head") and f"{name}s" in parameters:
        return f"{name}s"
    near = nearest(name, parameters)
    if not near and "inputs" in parameters:
        hint = f'all inputs of code by name, as in inputs={{"{name}": …, …}}'
        hint += '; text="…" for a model' if "text" in parameters else ""
        raise ArgumentError(f"{function} has no argument {name!r}.", hint=hint)
    rest = f"did you mean {near!r}?" if near else f"it has {', '.join(parameters)}"
    raise ArgumentError(f"{function} has no argument {name!r}: {rest}")


def _does_not_bind(
    function: str,
    parameters: Mapping[str, Parameter],
    n_args: int,
    named: Collection[str],
    error: TypeError,
) -> ArgumentError:
    """Return the error for a call whose arguments do not fit the parameters."""
    places = [each for each, p in parameters.items() if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    takes_more = any(each.kind is Parameter.VAR_POSITIONAL for each in parameters.values())
    if n_args > len(places) and not takes_more:
        by_name = [each for each, p in parameters.items() if p.kind is Parameter.KEYWORD_ONLY]
        return ArgumentError(
            f"{function} takes {', '.join(places) or 'nothing'} by position, and the rest by name.",
            hint=", ".join(f"{each}=…" for each in by_name[: n_args - len(places)]) or None,
        )
    missing = [
        each
        for each, p in parameters.items()
        if p.default is Parameter.empty
        and p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        and each not in places[:n_args]
        and each not in named
    ]
    if missing:
        return ArgumentError(f"{function} needs {' and '.join(missing)}.", hint=f"{missing[0]}=…")
    return ArgumentError(f"{function}: {error}.")


def _converted(name: str, value: Any, declared: Declared) -> Any:
    """Return a value as one of the kinds that are declared."""
    parts = _parts(declared.annotation)
    if value is None and "None" in parts:
        return None
    if name.endswith("dtype") or name == "device":
        value = _name_in_torch(value)
    kinds = [_kind(part, declared.names) for part in parts if part != "None"]
    if None in kinds:  # it may be anything, or something that the function itself knows
        return value
    for _, convert in filter(None, kinds):
        try:
            converted = convert(value)
        except (TypeError, ValueError, OverflowError):
            continue
        return _in_range(name, converted, declared.least)
    words = alternatives(dict.fromkeys(words for words, _ in filter(None, kinds)))
    hint = HINT_FOR_TENSOR if name == "text" and hasattr(value, "shape") else None
    hint = "ids[0], which is one sequence" if name == "ids" and _is_batch(value) else hint
    raise OptionError(f"{name} is {described(value)}, but takes {words}.", hint=hint)


@cache
def _parts(annotation: str) -> tuple[str, ...]:
    """Return the alternatives of an annotation: `int` and `None` of `int | None`."""
    node = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.BinOp):
        return _parts(ast.unparse(node.left)) + _parts(ast.unparse(node.right))
    return (annotation,)


def _kind(part: str, names: Mapping[str, Any]) -> tuple[str, Callable[[Any], Any]] | None:
    """Describe what a part of an annotation admits, and find what converts a value to it."""
    if part in KINDS:
        return KINDS[part]
    if part.startswith("Mapping["):
        return "values by name", _mapping
    named = names.get(part)
    if isinstance(named, type) and issubclass(named, Part):
        return f"a {part}", partial(_of_class, named)
    if isinstance(named, type) and issubclass(named, StrEnum):
        return alternatives(repr(str(each)) for each in named), named
    if get_origin(named) is Literal:
        choices = get_args(named)
        return alternatives(map(repr, choices)), lambda value: choices[choices.index(value)]
    return None


def _in_range(name: str, value: Any, least: int | None) -> Any:
    """Return a value that is in the range of its argument."""
    if name == "seed":
        check_seed(value)
    elif name == "device":
        check_device_name(value)
    elif type(value) is int and least is not None and value < least:
        raise OptionError(f"{name} is {value}, but takes numbers from {least}.", f"{name}={least}")
    elif type(value) is int and abs(value) > MAX_SIZE:
        raise OptionError(f"{name} is {shortened(str(value))}, but takes numbers of 64 bits.")
    elif value == "" and name not in MAY_BE_EMPTY:
        raise OptionError(f"{name} is empty.")
    return value


def _name_in_torch(value: Any) -> Any:
    """Return the name of a dtype or a device of torch or numpy; anything else as it is."""
    is_torch = type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device")
    return str(value).removeprefix("torch.") if is_torch else value


def _of_class(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _is_batch(value: Any) -> bool:
    """Check whether a value has rows, as tokenizers return several sequences."""
    rows = value.tolist() if hasattr(value, "tolist") else value
    return isinstance(rows, list) and len(rows) > 1 and all(isinstance(each, list) for each in rows)


def _flag(value: Any) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise TypeError


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str | bytes) or math.isnan(value):
        raise TypeError
    return value if type(value) is int else float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _path(value: Any) -> Any:
    if not isinstance(value, PathLike) or not isinstance(fspath(value), str):
        raise TypeError
    return value


def _several(value: Any) -> list[Any]:
    """Return the elements of a list, an array, a range or the like; texts and mappings have none."""
    if isinstance(value, str | bytes | bytearray | Mapping):
        raise TypeError
    if not hasattr(value, "tolist"):
        return list(value)
    elements = value.tolist()
    while len(elements) == 1 and isinstance(elements[0], list):  # one row, as tokenizers return it
        elements = elements[0]
    return elements


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [_text(each) for each in _several(value)]


def _wholes(value: Any) -> list[int]:
    return [_whole(each) for each in _several(value)]


def _indices(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return _wholes(value) if isinstance(value, Iterable) and not _is_scalar(value) else _whole(value)


def _is_scalar(value: Any) -> bool:
    return getattr(value, "ndim", None) == 0


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_text(name): each for name, each in value.items()}


def _arguments(value: Any) -> Any:
    return _mapping(value) if isinstance(value, Mapping) else _texts(value)


def _inputs(value: Any) -> Any:
    """Return inputs of code: texts `name=…`, tensors in order, or either by name."""
    several = list(value) if isinstance(value, list | tuple) else [value]
    if any(hasattr(each, "shape") and str(each.dtype) != "object" for each in several):
        return several
    return _arguments(value)


def _tensor(value: Any) -> Any:
    """Return a tensor of torch; numpy arrays and nested lists of numbers become one."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, list | tuple) or hasattr(value, "__array__"):
        return torch.as_tensor(value)
    raise TypeError


KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bool": ("True or False", _flag),
    "int": ("whole numbers", _whole),
    "float": ("numbers", _number),
    "str": ("a text", _text),
    "Path": ("a path", _path),
    "Indices": ("numbers from 0, 0-3 or all", _indices),
    "Iterable[int]": ("several whole numbers", _wholes),
    "Sequence[int]": ("several whole numbers", _wholes),
    "Sequence[str]": ("several texts", _texts),
    "Collection[str]": ("several names", _texts),
    "list[str]": ("several texts", _texts),
    "torch.Tensor": ("a tensor", _tensor),
    "Inputs": ("tensors, texts NAME=AXES, or either by name", _inputs),
    "Texts": ("texts NAME=VALUE, or values by name", _arguments),
}
"""What the parts of annotations admit, in words, and what makes a value one of these."""
