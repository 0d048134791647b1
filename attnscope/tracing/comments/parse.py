"""Parsing of shape comments: `# Q_split: [n_batch, n_head, n_Q, d_head]`, `# (B, T, C)`.

Most comments are not about shapes, and must not be misread. A shape is a bracketed list of words,
numbers and products at the beginning of the comment, after a name and a colon, or after an arrow;
it must not be followed by the rest of an expression.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from attnscope.tracing.axes.expressions import Expression, parse_expression

ANY: Literal["_"] = "_"  # any one axis
REST: Literal["..."] = "..."  # any axes, or none

Axis: TypeAlias = Expression | Literal["_", "..."]


@dataclass(frozen=True)
class Shape:
    """A shape in a comment: its text, its axes, and the text of each axis."""

    text: str
    axes: tuple[Axis, ...]
    entries: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """A claim that some names, or the values bound on its line, have one of several shapes."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]

    @property
    def text(self) -> str:
        """The shapes as written in the comment."""
        return " or ".join(shape.text for shape in self.shapes)


@dataclass(frozen=True)
class ShapeComment:
    """The part of a comment about shapes, from `start` to `end` in its text.

    Attributes:
        claims: its claims; several, if it lists several names with their shapes.
        plain: whether it has the format that attnscope writes: nothing but names and brackets.
    """

    start: int
    end: int
    claims: tuple[Claim, ...]
    plain: bool


_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[[^\[\]]*\])*"
_NAMES = re.compile(rf"({_NAME}(?:\s*,\s*{_NAME})*)\s*:\s*")
_COLON = re.compile(r"\s*:\s*")
_RESERVED_NAMES = {"type"}  # `# type: (int) -> int` is for type checkers
_LEAD = re.compile(r"(?:->|→|=>|shapes?\s*[:=]|size\s*[:=])\s*")
_BETWEEN = re.compile(r"\s*(->|→|=>|x|×|@|\*|·|\+|or)\s*(?=[(\[])")
_NEXT = re.compile(r"\s*[,;]\s*")
_CLOSED_BY = {"(": ")", "[": "]"}
_AFTER = re.compile(r"\s*$|[,;:.](?:\s|$)|\s+(?!->|→|=>|[@×*·+/]|x\s*[(\[])")
"""The text that may follow a shape: words, but nothing that makes it part of an expression."""


def shape_comments(
    comment: str, known: Container[str] = (), names: Collection[str] = ()
) -> list[ShapeComment]:
    """Return the parts of a comment that are about shapes.

    Args:
        comment: the comment with its `#`; another `#` begins another part.
        known: words that are axes. Any other single word in brackets may not be one: `(optional)`.
        names: the names bound in the scope. Other names are recognized too, if they are simple.
    """
    starts = [match.end() for match in re.finditer(r"#+[\s:]*", comment)]
    ends = [match.start() for match in re.finditer(r"\s*#+", comment)][1:]
    parts = []
    for start, end in zip(starts, [*ends, len(comment)], strict=True):
        claims = list(_claims(comment[:end], start, known, names))
        if claims and _AFTER.match(comment[:end], claims[-1][1]):
            whole = tuple(claim for claim, _, _ in claims)
            parts.append(ShapeComment(start, claims[-1][1], whole, all(plain for _, _, plain in claims)))
    return parts


def _claims(
    text: str, start: int, known: Container[str], names: Collection[str]
) -> Iterator[tuple[Claim, int, bool]]:
    """Parse claims separated by commas; where each ends, and whether it is plain."""
    named = _subjects(text, start, names)[0] != ()
    while True:
        subjects, start = _subjects(text, start, names) if named else ((), start)
        if named and not subjects:
            return
        found = _alternatives(text, start, known, named=named)
        if found is None:
            bare = _bare(text[start:], known) if named else None
            if bare is not None:
                yield Claim(subjects, (bare,)), len(text), False
            return
        shapes, end, plain = found
        yield Claim(subjects, shapes), end, plain
        comma = _NEXT.match(text, end)
        if comma is None:
            return
        start = comma.end()


def _subjects(text: str, start: int, names: Collection[str]) -> tuple[tuple[str, ...], int]:
    """Parse optional names with a colon before a shape; return them and where they end."""
    for name in sorted(names, key=len, reverse=True):
        if text.startswith(name, start) and (colon := _COLON.match(text, start + len(name))):
            return (name,), colon.end()
    match = _NAMES.match(text, start)
    if match is None or _LEAD.match(text, start) or match[1] in _RESERVED_NAMES:
        return (), start
    return tuple(re.findall(_NAME, match[1])), match.end()


def _alternatives(
    text: str, start: int, known: Container[str], *, named: bool
) -> tuple[tuple[Shape, ...], int, bool] | None:
    """Parse shapes separated by `or`; of an expression, the shapes after its arrow."""
    lead = _LEAD.match(text, start)
    plain = lead is None
    found = _bracketed(text, lead.end() if lead else start, known, named=named, is_sure=not plain)
    if found is None:
        return None
    shapes, end = [found[0]], found[1]
    operands = False
    while (between := _BETWEEN.match(text, end)) is not None:
        found = _bracketed(text, between.end(), known, is_sure=True)
        if found is None:
            break
        shape, end = found
        if between[1] == "or":
            shapes.append(shape)
        elif between[1] in ("->", "→", "=>"):
            shapes, operands, plain = [shape], False, False
        else:
            operands = True
    return None if operands or not _AFTER.match(text, end) else (tuple(shapes), end, plain)


def _bracketed(
    text: str, start: int, known: Container[str], *, named: bool = False, is_sure: bool = False
) -> tuple[Shape, int] | None:
    """Parse a bracketed list of axes; return it and where it ends."""
    closing = _CLOSED_BY.get(text[start : start + 1])
    if closing is None:
        return None
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] in "([") - (text[end] in ")]")
        if depth == 0:
            break
    if depth or text[end] != closing:
        return None
    inside = text[start + 1 : end].strip()
    entries = [entry.strip() for entry in inside.split(",")] if inside else []
    is_tuple = len(entries) > 1 and not entries[-1]  # `(T,)`
    entries = entries[:-1] if is_tuple else entries
    axes = _axes(entries)
    if axes is None:
        return None
    is_sure = is_sure or is_tuple or (named and closing == "]")
    if not is_sure and not _is_surely_a_shape(axes, known, named=named, small=closing == "]"):
        return None
    return Shape(text[start : end + 1], axes, tuple(entries)), end + 1


def _bare(text: str, known: Container[str]) -> Shape | None:
    """Parse `B x T x C`, or `B T C`, in which every word must look like an axis."""
    text = text.strip()
    entries = re.split(r"\s+[x×]\s+", text)
    if len(entries) == 1:
        entries = text.split()
        if not all(_looks_like_an_axis(entry, known) or entry.isdecimal() for entry in entries):
            return None
    axes = _axes(entries)
    return Shape(text, axes, tuple(entries)) if axes is not None and len(axes) > 1 else None


def _axes(entries: list[str]) -> tuple[Axis, ...] | None:
    axes = [_axis(entry) for entry in entries]
    whole = tuple(axis for axis in axes if axis is not None)
    return whole if len(whole) == len(axes) and whole.count(REST) <= 1 else None


def _axis(entry: str) -> Axis | None:
    if entry in ("_", "?", "-1"):
        return ANY
    return REST if entry in ("...", "…") else parse_expression(entry)


def _is_surely_a_shape(
    axes: tuple[Axis, ...], known: Container[str], *, named: bool, small: bool
) -> bool:
    """Return whether a list is a shape, unlike `[1]`, `(a)`, `(optional)`, `(Vaswani, 2017)`."""
    words = [axis.words if isinstance(axis, Expression) else set() for axis in axes]
    if len(axes) == 1:
        likely = all(_looks_like_an_axis(word, known, small=small or named) for word in words[0])
        return likely and (named or bool(words[0]))
    if len(axes) == 2 and len(words[0]) == 1 and isinstance(axes[1], Expression) and not words[1]:
        (word,) = words[0]
        is_cited = word.istitle() and len(word) > 1 and 1900 < axes[1].size({}) < 2100
        return word in known or not is_cited
    return True


def _looks_like_an_axis(word: str, known: Container[str], *, small: bool = True) -> bool:
    """Return whether a word looks like an axis: `T`, `n_head`, `d1`; lower-case letters if `small`."""
    if word in known or "_" in word or any(letter.isdigit() for letter in word):
        return True
    return len(word) == 1 and (small or word.isupper())
