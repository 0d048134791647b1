"""Read the fields of JSON that a server wrote: each has the type that it has to have, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

from attnscope.base.errors import OptionError
from attnscope.base.text import described

SHAPE = "the JSON of /v1/completions, /v1/chat/completions or llama.cpp's /completion"

LARGEST = 2**53  #: Counts and ids are below it: RFC 8259, section 6

ROUNDED = 1e-3
"""How much more than 0 a log-probability may be by rounding: that of a token without an alternative."""

T = TypeVar("T")


@dataclass(frozen=True)
class FieldKind(Generic[T]):
    """What a value may be."""

    name: str
    read: Callable[[Any], T | None]  #: returns the value; None: it is of another kind


def _text(value: Any) -> str | None:
    """Return a text; JSON can spell lone surrogates, which no text of UTF-8 has."""
    return (
        value if isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value) else None
    )


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
        return None
    return int(value) if value == int(value) else None


def _log_probability(value: Any) -> float | None:
    """Return the logarithm of a probability; of integers beyond a float's range, −∞."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or value > ROUNDED
    ):
        return None
    return float(value) if value > -LARGEST else -inf


TEXT = FieldKind("a text", _text)
COUNT = FieldKind("a number from 0", _count)
BYTE = FieldKind("a byte", lambda value: n if (n := _count(value)) is not None and n < 256 else None)
LOG_PROBABILITY = FieldKind("a log-probability, which is 0 or less", _log_probability)
OBJECT: FieldKind[dict[str, Any]] = FieldKind(
    "an object", lambda value: value if isinstance(value, dict) else None
)
LIST: FieldKind[list[Any]] = FieldKind(
    "a list", lambda value: value if isinstance(value, list) else None
)


@dataclass(frozen=True)
class ResponseFields:
    """An object of JSON. What is null is not there."""

    values: dict[str, Any] = field(repr=False)
    name: str  #: that of the file, in messages
    path: str = ""  #: where it is in the file, such as `choices[0].`

    def read(self, key: str, kind: FieldKind[T]) -> T | None:
        """Return a field; None: it is not there. Raise an OptionError if it is of another kind."""
        value = self.values.get(key)
        return None if value is None else self._checked(key, value, kind)

    def items(self, key: str, kind: FieldKind[T]) -> list[T]:
        """Return the items of a list, each of a kind; none if it is not there."""
        values = self.read(key, LIST)
        return [self._checked(f"{key}[{i}]", each, kind) for i, each in enumerate(values or [])]

    def object(self, key: str) -> ResponseFields:
        """Return an object in it; an empty one if it is not there."""
        return ResponseFields(self.read(key, OBJECT) or {}, self.name, f"{self.path}{key}.")

    def objects(self, key: str) -> list[ResponseFields]:
        """Return the objects of a list in it."""
        return [
            ResponseFields(each, self.name, f"{self.path}{key}[{i}].")
            for i, each in enumerate(self.items(key, OBJECT))
        ]

    def wrong(self, what: str) -> OptionError:
        """Return the error for what no server writes."""
        return OptionError(
            f"{self.name} has another shape than a server's response: {self.path}{what}.", hint=SHAPE
        )

    def _checked(self, key: str, value: Any, kind: FieldKind[T]) -> T:
        found = kind.read(value)
        if found is None:
            raise self.wrong(f"{key} is {described(value)}, not {kind.name}")
        return found
