"""Parsing of the specifications of a target's arguments: `--init` and `--input`.

--init n_head=5                          a Python value
--init config=transformers:LlamaConfig(hidden_size=64)      a construction
--init 'proj=torch.nn:Linear(d_feat, n_head*d_head)'        with sizes that other arguments set
--init 'config={"dim": 48, "heads": n_head}'                a dictionary
--input Q=n_batch:128,n_Q:32,d_feat      a tensor, with its axes' names and sizes
--input ids=n_batch,n:7<vocab_size       whole numbers from 0 up, below vocab_size
--input Q=n_batch,n_Q,d_feat@q.npy       a tensor from a file
--input "rotary=(n,d:16; n,d)"           a tuple of tensors
--input K=Q                              the tensor that another argument is
--where d_feat=n_head*d_head             an equation between sizes
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias

from attnscope.base.errors import OptionError, SizeError
from attnscope.base.sizes import check_sizes
from attnscope.base.spelling import spelled
from attnscope.base.tensor_files import COMPLEX, FORMATS, TensorFile, open_tensor
from attnscope.base.tensor_files import DTYPES as REAL
from attnscope.code.load.configurations import settings_of
from attnscope.code.load.load import Loaded, load
from attnscope.observe.axes.expressions import Expression, parse_expression

NAME = r"[^\W\d]\w*"
CONSTRUCTION = re.compile(rf"([^()'\"\[\]{{}},]+:\s*{NAME}(?:\.{NAME})*)\s*(\(.*\))?", re.DOTALL)
MEANT = {"true": "True", "false": "False", "none": "None", "null": "None"}
"""Names of Python's constants in other languages."""
DTYPES = (*REAL, *COMPLEX)
"""The dtypes of inputs."""
AXIS_NAMES = ("n_batch", "n_head", "n", "d")
"""The names of axes in hints."""
BELOW = {"uint8": 2**8, "int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63}
"""The integer dtypes, each with the exclusive upper bound of its values."""


@dataclass(frozen=True)
class Plain:
    """A literal Python value: `5`, `None`, `'gelu'`."""

    value: Any

    @property
    def size(self) -> int | None:
        """The value, if it can be a size: an integer from 1 up."""
        return self.value if type(self.value) is int and 1 <= self.value < 2**63 else None


@dataclass(frozen=True)
class Construction:
    """An object to construct for each run, or to pass unchanged if `arguments` is None."""

    target: Loaded
    #: its arguments, each with its name, or None for a positional one
    arguments: tuple[tuple[str | None, Value], ...] | None


@dataclass(frozen=True)
class Computed:
    """A whole number that is computed from sizes: `n_head*d_head`."""

    value: Expression
    text: str

    def size(self, sizes: Mapping[str, int]) -> int:
        """Return the number."""
        size = self.value.size(sizes)
        if size.denominator != 1:
            known = ", ".join(f"{word} is {sizes[word]}" for word in sorted(self.value.words))
            raise SizeError(f"{self.text} is {float(size):.4g}, which is not a whole number: {known}.")
        return int(size)


@dataclass(frozen=True)
class CollectionSpec:
    """A dictionary, list or tuple of values."""

    kind: type  #: dict, list or tuple
    members: tuple[tuple[Any, Value], ...]  #: its values, each with its key; None in a list or tuple


@dataclass(frozen=True)
class Configuration:
    """An object of the caller, of which each run gets a copy with its own sizes."""

    value: Any
    settings: tuple[tuple[str, Value], ...]  #: its attributes or items that are sizes, or contain some


class AxisSpec(NamedTuple):
    """An axis of a tensor: its name, its size, or both; or an expression of sizes, which is its name."""

    name: str | None
    size: int | None
    value: Expression | None = None

    def __str__(self) -> str:
        return self.name or str(self.size)

    @property
    def text(self) -> str:
        """The axis as a user writes it: `n_Q:32`."""
        return ":".join(str(part) for part in (self.name, self.size) if part is not None)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to draw, or to read from a file."""

    axes: tuple[AxisSpec, ...] | None  #: its axes; None for a file without named axes
    dtype: str | None = None  #: its dtype; None for the dtype of the run
    #: the values are integers below this number, or below the size of that name
    high: str | int | None = None
    file: TensorFile | None = None

    @property
    def word(self) -> str | None:
        """The name of its only axis, if nothing else is specified."""
        axes = self.axes or ()
        alone = len(axes) == 1 and axes[0].size is None
        return axes[0].name if alone and self == TensorSpec(axes) else None

    @property
    def dims(self) -> tuple[str | int, ...] | None:
        """Its axes: a name each, or the size of one without a name."""
        return None if self.axes is None else tuple(axis.name or axis.size or 0 for axis in self.axes)


@dataclass(frozen=True)
class InputTuple:
    """A tuple of inputs."""

    members: tuple[Input, ...]


@dataclass(frozen=True)
class Same:
    """The object that another argument of the call is, once more."""

    label: str


DEEPEST = 400
"""The most brackets in one another."""

Value: TypeAlias = Plain | Construction | Computed | CollectionSpec | Configuration
Input: TypeAlias = Value | TensorSpec | InputTuple


def value_of(value: Any, depth: int = 4) -> Value:
    """Return the specification of an object: sizes in dictionaries and configurations can vary."""
    if depth and type(value) is dict:
        return CollectionSpec(
            dict, tuple((key, value_of(each, depth - 1)) for key, each in value.items())
        )
    if depth and type(value) in (list, tuple):
        members = [value_of(each, depth - 1) for each in value]
        if not all(isinstance(each, Plain) for each in members):
            return CollectionSpec(type(value), tuple((None, each) for each in members))
    settings = []
    for name, each in settings_of(value).items() if depth else ():
        inner = value_of(each, depth - 1)
        if any(True for _ in numbers_in(name, inner)) and inner != Plain(1):
            settings.append((name, inner))
    return Configuration(value, tuple(settings)) if settings else Plain(value)


def members_of(value: Input) -> Sequence[tuple[Any, Value]]:
    """Return the values that a value contains, each with its name or key, if it has one."""
    if isinstance(value, Construction):
        return value.arguments or ()
    if isinstance(value, CollectionSpec):
        return value.members
    return value.settings if isinstance(value, Configuration) else ()


def nested(name: Any, value: Input) -> Iterator[tuple[Any, Input]]:
    """Yield a value and all values in it, each with its name or key, if it has one."""
    yield name, value
    for inner_name, inner in members_of(value):
        yield from nested(inner_name, inner)


def numbers_in(name: Any, value: Input) -> Iterator[tuple[str, int]]:
    """Yield the integers in a value that have a name and can be sizes: arguments, items, attributes."""
    for label, each in nested(name, value):
        if isinstance(each, Plain) and each.size and isinstance(label, str) and label.isidentifier():
            yield label, each.size


def read_init(text: str) -> tuple[str, Value]:
    """Parse `--init`: the name and value of an argument."""
    name, value = _named(text)
    if name is None:
        raise OptionError(
            f"{spelled('init', text)} does not name an argument.", hint=spelled(init=f"NAME={text}")
        )
    return name, _value(("init", name), name, value)


def read_input(text: str) -> tuple[str | None, Input]:
    """Parse `--input`: the name of an argument, if it has one, and its value or specification."""
    name, spec = _named(text)
    return name, _input(name, spec, label=name or "input")


def _named(text: str) -> tuple[str | None, str]:
    """Split a text into NAME and REST at `=`; no name if it has another form."""
    match = re.fullmatch(rf"\s*({NAME})\s*=(?!=)(.*)", text, re.DOTALL)
    return (match[1], match[2].strip()) if match else (None, text.strip())


# Values


def _value(place: tuple[str, str], name: str | None, text: str) -> Value:
    """Parse a Python value or a construction."""
    literal = _literal(text)
    if literal:
        return literal
    match = CONSTRUCTION.fullmatch(text)
    if match:
        arguments = None
        if match[2] is not None:
            pairs = map(_named, _parts(match[2][1:-1]))
            arguments = tuple((key, _value(place, key, value)) for key, value in pairs)
        return Construction(load(match[1]), arguments)
    if (expression := parse_expression(text)) and text.lower() not in MEANT:
        return Computed(expression, text)
    if (display := _display(place, text)) is not None:
        return display
    raise not_a_value(place, name, text)


def not_a_value(
    place: tuple[str, str], name: str | None, text: str, what: str = "not a Python value"
) -> OptionError:
    """Return the error for a text that is not a Python value; its hint is the one that may be meant.

    Args:
        place: the option that has the text, and the name of the argument.
        name: the name of the value in it.
        text: the text.
        what: what it is.
    """
    literal_text = MEANT.get(text.lower())
    if literal_text is None:
        literal_text = f"'{text}'" if re.fullmatch(r"[\w.-]+", text) else "VALUE"
    hint = f"{name}={literal_text}" if name else literal_text
    return OptionError(
        f"{spelled(*place)}: {text or 'nothing'} is {what}.",
        hint=spelled(init=hint) if place == ("init", name) else hint,
    )


def _display(place: tuple[str, str], text: str) -> CollectionSpec | None:
    """Parse a dictionary, list or tuple of values; return None for any other text."""
    kinds: dict[str, type] = {"{}": dict, "[]": list, "()": tuple}
    kind = kinds.get(text[:1] + text[-1:])
    if kind is None:
        return None
    parts = _parts(text[1:-1])
    if kind is not dict:
        return CollectionSpec(kind, tuple((None, _value(place, None, part)) for part in parts))
    members = []
    for part in parts:
        key_text, *rest = _split(part, ":")
        key = _literal(key_text.strip())
        if not isinstance(key, Plain) or not rest:
            raise OptionError(
                f"{spelled(*place)}: {part} is not an item of a dictionary.", hint='{"NAME": VALUE}'
            )
        members.append((key.value, _value(place, str(key.value), ":".join(rest).strip())))
    return CollectionSpec(kind, tuple(members))


def _parts(text: str) -> list[str]:
    """Split a text at its commas, the last of which may end it."""
    parts = [part.strip() for part in _split(text, ",")]
    return parts if parts[-1] else parts[:-1]


def _check_depth(text: str) -> None:
    """Raise an OptionError if brackets are in one another so often that Python could not read them."""
    depth = deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise OptionError(
            f"{text[:12]}… has {deepest} brackets in one another.", hint=f"at most {DEEPEST}"
        )


def _literal(text: str) -> Value | None:
    """Parse a Python literal; return None for any other text."""
    _check_depth(text)
    try:
        return value_of(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _split(text: str, separator: str) -> list[str]:
    """Split a text at the separators outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if char == separator and not (depth or quote):
            parts.append("")
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
        parts[-1] += char
    return parts


# Inputs


def _input(name: str | None, text: str, label: str) -> Input:
    """Parse a value, a tensor, or a tuple of those.

    Axes without parentheses are not a tuple of numbers, and one number without a name is an axis.
    """
    literal = _literal(text)
    is_axes = isinstance(literal, Plain) and (
        (isinstance(literal.value, tuple) and not text.startswith("("))
        or (type(literal.value) is int and name is None)
    )
    if literal and not is_axes:
        return literal
    match = CONSTRUCTION.fullmatch(text)
    is_construction = match is not None and match[2] is not None  # such as torch.nn:Dropout(0.1)
    if is_construction or text.startswith(("{", "[")):
        return _value(("inputs", label), name, text)
    if not text.startswith("(") or re.match(r"\(\s*\)", text):
        return _tensor(label, text)
    members = _split(text[1:-1], ";") if text.endswith(")") else []
    if len(members) < 2:
        inside = text[1:].partition(")")[0]
        raise OptionError(
            f"{spelled('inputs', label)}: {text} is neither a tensor's axes, which need no"
            " parentheses, nor a tuple of tensors, which are separated by semicolons.",
            hint=f"{spelled(inputs=f'{label}={inside}')}, or {spelled(inputs=f'{label}=({inside};)')}",
        )
    if not members[-1].strip():
        members.pop()
    return InputTuple(
        tuple(
            _input(f"{label}[{i}]", member.strip(), f"{label}[{i}]") for i, member in enumerate(members)
        )
    )


def _tensor(label: str, text: str) -> TensorSpec:
    """Parse AXES, AXES@DTYPE, AXES<HIGH, AXES@FILE or @FILE."""
    match = re.fullmatch(r"([^@<]*)(?:<([^@]*))?(?:@(.*))?", text, re.DOTALL)
    assert match, "every part may be empty"
    axes_text, high, at = (part and part.strip() for part in match.groups())
    if at and high is None and at.partition("<")[0].strip() in DTYPES and "<" in at:
        at, _, high = (part.strip() for part in at.partition("<"))
    axes: tuple[AxisSpec, ...] | None = None
    if re.fullmatch(r"\(\s*\)", axes_text):
        axes = ()
    elif axes_text:
        parts = axes_text.removesuffix(",").split(",")
        axes = tuple(_axis(label, place, part.strip()) for place, part in enumerate(parts))
    if at and at not in DTYPES and (os.path.exists(at) or re.search(r"\W", at)):
        if high is not None:
            raise OptionError(
                f"{spelled('inputs', label)}: the values come from {at}, and are not drawn below"
                f" {high}.",
                hint=spelled(inputs=f"{label}={axes_text}@{at}"),
            )
        return TensorSpec(axes, file=open_tensor(label, at, allow_complex=True))
    if axes is None:
        raise OptionError(
            f"{spelled('inputs', label)}: {text or 'nothing'} names no axes.",
            hint=f"{spelled(inputs=f'{label}=n:48,d:64')} for a matrix,"
            f" {spelled(inputs=f'{label}=()@float32')} for a scalar",
        )
    if at is not None and at not in DTYPES:
        meant = next(iter(get_close_matches(at, DTYPES, n=1)), "float32")
        raise OptionError(
            f"{spelled('inputs', label)}: {at or 'nothing'} is neither a dtype nor a file.",
            hint=f"{spelled(inputs=f'{label}={axes_text}@{meant}')}, or a file that ends in"
            f" {', '.join(FORMATS)}",
        )
    return TensorSpec(axes, *_dtype_and_bound(label, axes_text, at, high))


def _dtype_and_bound(
    label: str, axes: str, dtype: str | None, high: str | None
) -> tuple[str | None, str | int | None]:
    """Check that a dtype and a bound fit together, and return both with defaults filled in."""
    if high is None:
        if dtype in BELOW:
            raise OptionError(
                f"{spelled('inputs', label)}: random values of {dtype} need an upper bound.",
                hint=spelled(inputs=f"{label}={axes}@{dtype}<100"),
            )
        return dtype, None
    dtype = dtype or "int64"
    if dtype not in BELOW:
        raise OptionError(
            f"{spelled('inputs', label)}: {dtype} is not an integer dtype, so its values cannot be"
            f" drawn below {high}.",
            hint=f"{spelled(inputs=f'{label}={axes}<{high}')}, or with @ one of {', '.join(BELOW)}",
        )
    if not re.fullmatch(rf"{NAME}|-?[0-9]{{1,1000}}", high):
        raise OptionError(
            f"{spelled('inputs', label)}: {high or 'nothing'} is neither a whole number nor the name"
            " of a size.",
            hint=spelled(inputs=f"{label}={axes}<100"),
        )
    if re.fullmatch(NAME, high):
        return dtype, high
    check_sizes({f"the upper bound of {label}": int(high)})
    if int(high) > BELOW[dtype]:
        raise OptionError(
            f"{spelled('inputs', label)}: not all whole numbers below {high} fit into {dtype}.",
            hint=spelled(inputs=f"{label}={axes}@int64<{high}"),
        )
    return dtype, int(high)


def _axes_hint(label: str, text: str) -> str:
    """Show how axes are written, with the user's own if a text lists some: `2x3`, `2 3`, `n d`."""

    def written(axes: str) -> str:
        name = "" if label == "input" else f"{label}="
        return spelled(inputs=f"{name}{axes}") if label.isidentifier() else axes

    parts = re.split(r"\s*[x×X*;/|,]\s*(?=\d)|[;\s]+", text.strip("[](){} "))
    if not all(re.fullmatch(rf"({NAME}:)?\d{{1,9}}|{NAME}", part) for part in parts) or len(parts) < 2:
        is_text = re.fullmatch(r"[^\W\d][^\d:=,]*", text)
        string = f"; a string is quoted: {written(repr(text))}" if is_text else ""
        return f"names, sizes or both, separated by commas: {written('n:2,d:3')}{string}"
    axes = written(",".join(parts))
    if len(parts) > len(AXIS_NAMES) or not all(part.isdecimal() for part in parts):
        return axes
    named = (f"{name}:{size}" for name, size in zip(AXIS_NAMES[-len(parts) :], parts, strict=True))
    return f"{axes}, or with names {written(','.join(named))}"


def _axis(label: str, place: int, text: str) -> AxisSpec:
    match = re.fullmatch(rf"(?:({NAME})\s*:\s*)?(-?[0-9]{{1,1000}})|({NAME})", text)
    value = parse_expression(text) if not match else None
    if value is not None and value.words and not value.word:
        return AxisSpec(str(value), None, value)
    if not match:
        raise OptionError(
            f"{spelled('inputs', label)}: {text or 'nothing'} is not an axis.",
            hint=_axes_hint(label, text),
        )
    if match[3]:
        return AxisSpec(match[3], None)
    check_sizes({match[1] or f"axis {place} of {label}": int(match[2])})
    return AxisSpec(match[1], int(match[2]))
