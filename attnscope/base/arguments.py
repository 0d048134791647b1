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
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache, partial, wraps
from importlib import import_module
from inspect import Parameter, Signature, isfunction, signature, unwrap
from operator import index
from os import PathLike, fspath
from typing import Any, Literal, TypeGuard, get_args, get_origin

from attnscope.base.bounds import CHECKS
from attnscope.base.errors import (
    ArgumentError,
    AttnscopeError,
    OptionError,
    OutOfMemoryError,
    PartError,
    SizeError,
    first_line,
    is_out_of_memory,
)
from attnscope.base.options import Declared, declarations
from attnscope.base.spelling import Keywords, use_keywords, use_notation
from attnscope.base.text import alternatives, described, nearest, shortened
from attnscope.base.units import shape_text

OPTIONS = {
    "compute": "attnscope.formula.options",
    "dry_run": "attnscope.formula.options",
}
"""The modules that declare the options of public functions, if it is not the function's own."""

LEAST = {
    **dict.fromkeys(("d_V", "d_context", "d_feat", "d_head", "n_head", "n_kv_head", "top"), 1),
    **dict.fromkeys(("depth", "head", "layer", "query"), 0),
}
"""The least values of numbers that no option declares."""

FORMULA = "attnscope.attention."
"""The modules of the formula, whose functions raise torch's errors where tensors do not fit."""

MAY_BE_EMPTY = ("text", "other_text", "pair", "target")
"""Texts may be empty; an empty name, of a dtype or a method, is a mistake."""

MAX_SIZE = 2**63 - 1
"""The largest whole number that torch takes for a size."""

HINT_FOR_TENSOR = (
    "ids=… for the tokens of a model; audit(module, x) for which positions influence which in a module"
)
"""The hint for a tensor in the place of a text."""


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public function that checks its arguments before it runs.

    Raises:
        OptionError: an argument is not what its annotation and its option say.
        ArgumentError: there is no such argument; the message names the nearest.
    """
    name = _name_of(function)

    @cache
    def declaration() -> Signature:
        return signature(function)

    def converted(argument: str, value: Any) -> Any:
        parameter = declaration().parameters.get(argument)
        default = None if parameter is None else parameter.default
        declared = None if value is default else declared_of(function).get(argument)
        return value if declared is None else _converted(argument, value, declared)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        parameters = declaration().parameters
        if not any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
            kwargs = {_existing(name, each, parameters): value for each, value in kwargs.items()}
        try:
            declaration().bind(*args, **kwargs)
        except TypeError as error:  # too few, too many, or one twice
            n_args = len(args) - ("self" in parameters)
            raise _does_not_bind(name, parameters, n_args, kwargs, error) from None
        places = [each for each, p in parameters.items() if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
        placed = [converted(*each) for each in zip(places, args, strict=False)]
        named = {each: converted(each, value) for each, value in kwargs.items()}
        if not function.__module__.startswith(FORMULA):
            return function(*placed, *args[len(placed) :], **named)
        try:
            with use_keywords(parameters):
                return function(*placed, *args[len(placed) :], **named)
        except AttnscopeError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise _do_not_fit({**dict(zip(places, placed, strict=False)), **named}, error) from error

    return call


def naming_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public function whose messages name its own keywords."""

    @cache
    def names() -> Collection[str]:
        return declared_of(function).keys()

    notation = Keywords(names)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with use_notation(notation):
            return function(*args, **kwargs)

    call.__module__ = "attnscope"
    return call


def _do_not_fit(values: Mapping[str, Any], error: Exception) -> AttnscopeError:
    """Return the error for tensors with which the formula cannot be computed."""
    if is_out_of_memory(error):
        return OutOfMemoryError(f"there is not enough memory: {first_line(error).rstrip('.')}.")
    shapes = {name: getattr(value, "shape", None) for name, value in values.items()}
    shown = [f"{name} is {shape_text(shape)}" for name, shape in shapes.items() if shape is not None]
    what = f"{', '.join(shown)}, which do not fit together" if shown else "the module cannot be built"
    return SizeError(f"{what}: {first_line(error).rstrip('.')}.")


def check_methods(kind: type) -> None:
    """Let the public methods that a class defines check their arguments, as public functions do."""
    for name, method in list(vars(kind).items()):
        if not isfunction(method) or method.__code__.co_argcount + method.__code__.co_kwonlyargcount < 2:
            continue
        if name == "__getitem__":
            setattr(kind, name, _with_plain_place(method))
        elif not name.startswith("_"):
            setattr(kind, name, checked(method))


def _with_plain_place(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `__getitem__` that takes numbers of numpy and torch, and names what can be no place."""

    @wraps(method)
    def call(self: Any, place: Any) -> Any:
        plain = tuple(map(_plain, place)) if isinstance(place, tuple) else _plain(place)
        if any(each is ... for each in (plain if isinstance(plain, tuple) else (plain,))):
            raise PartError(f"{described(place)} does not name a part of this result.")
        return method(self, plain)

    return call


def _plain(place: Any) -> Any:
    """Return a name or a number of Python; an ellipsis for anything else."""
    if place is None or isinstance(place, str | int | float):
        return place
    return place.item() if getattr(place, "shape", None) == () and hasattr(place, "item") else ...


def _name_of(function: Callable[..., Any]) -> str:
    """Return the name by which a function is called: that of its class for `__init__` and `__call__`."""
    name = function.__name__
    return function.__qualname__.split(".")[-2] if name in ("__init__", "__call__") else name


@cache
def declared_of(function: Callable[..., Any]) -> dict[str, Declared]:
    """Collect what is declared about a public function's arguments, and about its `**options`."""
    declared: Any = function
    if hasattr(declared, "declared"):
        own = _parameters(declared.grouped, {})
        plain = {each: own[each] for each in signature(function).parameters if each in own}
        return plain | declared.declared  # a group may have the name of one of its options
    function = unwrap(function)
    name = function.__name__
    options = _options(OPTIONS.get(name, function.__module__))
    others = options if name in ("compute", "dry_run") else {}  # their `**options`
    return {**others, **_parameters(function, options)}


@cache
def _options(module: str) -> dict[str, Declared]:
    """Collect what a module declares about options."""
    names = vars(import_module(module))
    groups: set[type] = {
        each for each in names.values() if isinstance(each, type) and is_dataclass(each)
    }
    if "OF_SDPA" in names:  # the module declares those of other commands, too
        groups = {*names["OF_SDPA"], *names["OF_MHA"]}
    return {name: each for group in groups for name, each in declarations(group).items()}


def _parameters(function: Callable[..., Any], options: Mapping[str, Declared]) -> dict[str, Declared]:
    """Collect what is declared about a function's parameters."""
    least = LEAST | {name: each.least for name, each in options.items() if each.least is not None}
    return {
        name: Declared(str(each.annotation), function.__globals__, least.get(name))
        for name, each in signature(function).parameters.items()
        if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        and each.annotation is not Parameter.empty  # as that of self
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
    known = [each for each in parameters if each != "self"]
    rest = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
    raise ArgumentError(f"{function} has no argument {name!r}: {rest}")


def _does_not_bind(
    function: str,
    parameters: Mapping[str, Parameter],
    n_args: int,
    named: Collection[str],
    error: TypeError,
) -> ArgumentError:
    """Return the error for a call whose arguments do not fit the parameters."""
    parameters = {each: p for each, p in parameters.items() if each != "self"}
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
        except (TypeError, ValueError, OverflowError, RuntimeError):
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
    if part.startswith("Literal["):
        options = ast.literal_eval(f"({part[len('Literal[') : -1]},)")
        return alternatives(map(repr, options)), lambda value: options[options.index(value)]
    if part.startswith(("Mapping[", "dict[")):
        return "values by name", _mapping
    named = names.get(part)
    if isinstance(named, type) and issubclass(named, StrEnum):
        return alternatives(repr(str(each)) for each in named), named
    if _is_ours(named):
        return f"a {part}", partial(_of_class, named)
    if part.startswith("Iterable[") and _is_ours(each := names.get(part[9:-1])):
        return f"several {part[9:-1]}s", partial(_several_of_class, each)
    if get_origin(named) is Literal:
        choices = get_args(named)
        return alternatives(map(repr, choices)), lambda value: choices[choices.index(value)]
    return None


def _in_range(name: str, value: Any, least: int | None) -> Any:
    """Return a value that is in the range of its argument."""
    from attnscope.base.process.devices import check_device_name, check_seed

    if name == "seed":
        check_seed(value)
    elif name == "device":
        check_device_name(value)
    elif name in CHECKS and not isinstance(value, bool | str):
        CHECKS[name](value)
    elif name == "lengths" and isinstance(value, list) and min(value, default=0) < 0:
        raise OptionError(f"lengths is {described(value)}, but takes numbers from 0.")
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


def _is_ours(named: Any) -> TypeGuard[type]:
    """Check whether an annotation names a result of attnscope, or what it consists of: a `Part`."""
    return isinstance(named, type) and any(each.__name__ == "Part" for each in named.__mro__)


def _of_class(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _several_of_class(kind: type, value: Any) -> list[Any]:
    return [_of_class(kind, each) for each in value]


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


def _dtype(value: Any) -> Any:
    import torch

    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError
    return dtype


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
    "torch.device": ("a device of torch", _text),
    "torch.dtype": ("a dtype of floats", _dtype),
    "Inputs": ("tensors, texts NAME=AXES, or either by name", _inputs),
    "Texts": ("texts NAME=VALUE, or values by name", _arguments),
}
"""What the parts of annotations admit, in words, and what makes a value one of these."""
