"""Reads what a user says of a target's arguments: `--init` and `--input`.

--init n_head=5                          a Python value
--init config=transformers:LlamaConfig(hidden_size=64)      a construction
--input Q=n_batch:128,n_Q:32,d_feat      a tensor, with its axes' names and sizes
--input ids=n_batch,n:7<vocab_size       whole numbers from 0 up, below vocab_size
--input Q=n_batch,n_Q,d_feat@q.npy       a tensor from a file
--input "rotary=(n,d:16; n,d)"           a tuple of tensors
--where d_feat=n_head*d_head             an equation between sizes
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias

from attnscope.contracts import check_sizes
from attnscope.errors import OptionError
from attnscope.tensor_files import DTYPES, FORMATS, TensorFile, open_tensor
from attnscope.tracing.target.load import Loaded, load

NAME = r"[^\W\d]\w*"
CONSTRUCTION = re.compile(rf"([^()'\"\[\]{{}},]+:\s*{NAME}(?:\.{NAME})*)\s*(\(.*\))?", re.DOTALL)
MEANT = {"true": "True", "false": "False", "none": "None", "null": "None"}
"""What other languages call Python's three constants."""
BELOW = {"uint8": 2**8, "int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63}
"""The dtypes of whole numbers; all that is in them is below this."""


@dataclass(frozen=True)
class Plain:
    """A Python value that the user wrote out: `5`, `None`, `'gelu'`."""

    value: Any

    @property
    def size(self) -> int | None:
        """The value, if it can be a size: a whole number from 1 up."""
        return self.value if type(self.value) is int and 1 <= self.value < 2**63 else None


@dataclass(frozen=True)
class Made:
    """An object that is made anew for each run, or is passed as it is where `arguments` is None.

    Attributes:
        target: the class or function that makes it.
        arguments: what it is called with, each with its name, if it has one.
    """

    target: Loaded
    arguments: tuple[tuple[str | None, Value], ...] | None


class Axis(NamedTuple):
    """An axis of a tensor: its name, its size, or both."""

    name: str | None
    size: int | None

    def __str__(self) -> str:
        return self.name or str(self.size)

    @property
    def text(self) -> str:
        """The axis as a user writes it: `n_Q:32`."""
        return ":".join(str(part) for part in (self.name, self.size) if part is not None)


@dataclass(frozen=True)
class Tensor:
    """A tensor that is drawn, or read from a file.

    Attributes:
        axes: None where they are a file's, and the user does not say what they are.
        dtype: None for the one that is run in.
        high: the values are whole numbers below this number, or below the size of that name.
        file: where it is read from.
    """

    axes: tuple[Axis, ...] | None
    dtype: str | None = None
    high: str | int | None = None
    file: TensorFile | None = None

    @property
    def dims(self) -> tuple[str | int, ...] | None:
        """What its axes are called: a name, or the size of one that has none."""
        return None if self.axes is None else tuple(axis.name or axis.size or 0 for axis in self.axes)


@dataclass(frozen=True)
class Several:
    """A tuple of inputs."""

    members: tuple[Input, ...]


Value: TypeAlias = Plain | Made
Input: TypeAlias = Plain | Made | Tensor | Several


def read_init(text: str) -> tuple[str, Value]:
    """What `--init` gives: an argument's name and value.

    Raises:
        AttnscopeError: it cannot be read, or names a target that cannot be loaded.
    """
    name, value = _named(text)
    if name is None:
        raise OptionError(f"--init {text} does not say what it is for.", hint="--init NAME=VALUE")
    return name, _value(f"--init {name}", name, value)


def read_input(text: str) -> tuple[str | None, Input]:
    """What `--input` gives: an argument's name, if it has one, and what it is.

    Raises:
        AttnscopeError: it cannot be read, or names a file that cannot be.
    """
    name, spec = _named(text)
    return name, _input(name, spec, called=name or "input")


def _named(text: str) -> tuple[str | None, str]:
    """A text as NAME=REST; no name where it is not of that form."""
    match = re.fullmatch(rf"\s*({NAME})\s*=(?!=)(.*)", text, re.DOTALL)
    return (match[1], match[2].strip()) if match else (None, text.strip())


# Values


def _value(place: str, name: str | None, text: str) -> Value:
    """A Python value or a construction.

    Args:
        place: where it stands, for messages: `--init config`.
        name: the argument's, if it has one.
        text: what stands there.
    """
    literal = _literal(text)
    if literal:
        return literal
    match = CONSTRUCTION.fullmatch(text)
    if match:
        arguments = None if match[2] is None else tuple(_arguments(place, match[2][1:-1]))
        return Made(load(match[1]), arguments)
    meant = MEANT.get(text.lower())
    if meant is None:
        meant = f"'{text}'" if re.fullmatch(r"[\w.-]+", text) else "VALUE"
    hint = f"{name}={meant}" if name else meant
    raise OptionError(
        f"{place}: {text or 'nothing'} is no Python value.",
        hint=f'--init "{hint}"' if place == f"--init {name}" else hint,
    )


def _arguments(place: str, text: str) -> list[tuple[str | None, Value]]:
    """The arguments of a construction, as they stand between its parentheses."""
    parts = [part.strip() for part in _split(text, ",")]
    if not parts[-1]:
        parts.pop()
    return [(name, _value(place, name, value)) for name, value in map(_named, parts)]


def _literal(text: str) -> Plain | None:
    """The Python value that a text writes out, if it does."""
    try:
        return Plain(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _split(text: str, separator: str) -> list[str]:
    """A text in parts, at the separators that stand in no brackets and no quotes."""
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


def _input(name: str | None, text: str, called: str) -> Input:
    """A value, a tensor, or a tuple of those.

    Several axes are no tuple of numbers, and one number without a name is an axis.

    Args:
        name: the argument's, if it has one.
        text: what it is.
        called: what messages call it.
    """
    literal = _literal(text)
    is_axes = literal and (
        (isinstance(literal.value, tuple) and not text.startswith("("))
        or (type(literal.value) is int and name is None)
    )
    if literal and not is_axes:
        return literal
    match = CONSTRUCTION.fullmatch(text)
    if match and match[2] is not None:  # a module, such as torch.nn:Dropout(0.1)
        return _value(f"--input {called}", name, text)
    if not text.startswith("(") or re.match(r"\(\s*\)", text):
        return _tensor(called, text)
    members = _split(text[1:-1], ";") if text.endswith(")") else []
    if len(members) < 2:
        inside = text[1:].partition(")")[0]
        raise OptionError(
            f"--input {called}: {text} is neither a tensor's axes, which need no parentheses,"
            " nor a tuple of tensors, which are separated by semicolons.",
            hint=f'--input {called}={inside}, or --input "{called}=({inside};)"',
        )
    if not members[-1].strip():
        members.pop()
    return Several(
        tuple(
            _input(f"{called}[{i}]", member.strip(), f"{called}[{i}]")
            for i, member in enumerate(members)
        )
    )


def _tensor(called: str, text: str) -> Tensor:
    """AXES, AXES@DTYPE, AXES<HIGH, AXES@FILE or @FILE."""
    match = re.fullmatch(r"([^@<]*)(?:<([^@]*))?(?:@(.*))?", text, re.DOTALL)
    assert match, "every part may be empty"
    axes_text, high, at = (part and part.strip() for part in match.groups())
    if at and high is None and at.partition("<")[0].strip() in DTYPES and "<" in at:
        at, _, high = (part.strip() for part in at.partition("<"))
    axes = _axes(called, axes_text) if axes_text else None
    if at and at not in DTYPES and (os.path.exists(at) or re.search(r"\W", at)):
        if high is not None:
            raise OptionError(
                f"--input {called}: the values in {at} are what they are, and not drawn below {high}.",
                hint=f"--input {called}={axes_text}@{at}",
            )
        return Tensor(axes, file=open_tensor(called, at))
    if axes is None:
        raise OptionError(
            f"--input {called}: {text or 'nothing'} says no axes.",
            hint=f"--input {called}=n:48,d:64 for a matrix, --input {called}=()@float32 for a scalar",
        )
    if at is not None and at not in DTYPES:
        near = get_close_matches(at, DTYPES, n=1)
        raise OptionError(
            f"--input {called}: {at or 'nothing'} is neither a dtype nor a file.",
            hint=f"--input {called}={axes_text}@{near[0] if near else 'float32'}, or a file that ends in"
            f" {', '.join(FORMATS)}",
        )
    return Tensor(axes, *_drawn_as(called, axes_text, at, high))


def _drawn_as(
    called: str, axes: str, dtype: str | None, high: str | None
) -> tuple[str | None, str | int | None]:
    """A dtype and a bound that fit together."""
    if high is None:
        if dtype in BELOW:
            raise OptionError(
                f"--input {called}: whole numbers are drawn below some number, and none is said.",
                hint=f"--input {called}={axes}@{dtype}<100",
            )
        return dtype, None
    dtype = dtype or "int64"
    if dtype not in BELOW:
        raise OptionError(
            f"--input {called}: {dtype} holds no whole numbers below {high}.",
            hint=f"--input {called}={axes}<{high}, or with @ one of {', '.join(BELOW)}",
        )
    if not re.fullmatch(rf"{NAME}|-?[0-9]{{1,1000}}", high):
        raise OptionError(
            f"--input {called}: {high or 'nothing'} is neither a whole number nor the name of a size.",
            hint=f"--input {called}={axes}<100",
        )
    if re.fullmatch(NAME, high):
        return dtype, high
    check_sizes({f"the number that {called} lies below": int(high)})
    if int(high) > BELOW[dtype]:
        raise OptionError(
            f"--input {called}: not all whole numbers below {high} fit into {dtype}.",
            hint=f"--input {called}={axes}@int64<{high}",
        )
    return dtype, int(high)


def _axes(called: str, text: str) -> tuple[Axis, ...]:
    if re.fullmatch(r"\(\s*\)", text):
        return ()
    parts = text.removesuffix(",").split(",")
    return tuple(_axis(called, place, part.strip()) for place, part in enumerate(parts))


def _axis(called: str, place: int, text: str) -> Axis:
    match = re.fullmatch(rf"(?:({NAME})\s*:\s*)?(-?[0-9]{{1,1000}})|({NAME})", text)
    if not match:
        raise OptionError(
            f"--input {called}: {text or 'nothing'} is no axis.",
            hint="NAME:SIZE, NAME or SIZE, separated by commas; what is a text is quoted: \"'…'\"",
        )
    if match[3]:
        return Axis(match[3], None)
    check_sizes({match[1] or f"axis {place} of {called}": int(match[2])})
    return Axis(match[1], int(match[2]))
