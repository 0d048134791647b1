"""Parsing of shapes in text: `# Q: [n_batch, n_head, n_Q, d_head]`, `# (B, T, C)`, `# (B x T x C)`.

Most comments are not about shapes, and must not be misread. A shape is a bracketed list of words,
numbers and products at the beginning of the comment, after a name and a colon, or after an arrow;
it must not be followed by the rest of an expression. What only resembles one is `shape_like`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from attnscope.observe.axes.expressions import Expression, parse_expression

ANY: Literal["_"] = "_"  # any one axis
REST: Literal["..."] = "..."  # any axes, or none

Axis: TypeAlias = Expression | Literal["_", "..."]


@dataclass(frozen=True)
class Shape:
    """A shape in a comment."""

    text: str
    axes: tuple[Axis, ...]
    #: the text of each axis; `*name` for axes of any number that have a name together
    entries: tuple[str, ...]
    broadcast: frozenset[int] = frozenset()  #: the indices of axes that may also have size 1

    @property
    def words(self) -> set[str]:
        """The words in its axes."""
        return {word for axis in self.axes if isinstance(axis, Expression) for word in axis.words}


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
    """The part of a comment about shapes, from `start` to `end` in its text."""

    start: int
    end: int
    claims: tuple[Claim, ...]


_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[[^\[\]]*\])*"
_NAMES = re.compile(rf"({_NAME}(?:\s*,\s*{_NAME})*)\s*:\s*")
_COLON = re.compile(r"\s*:\s*")
_RESERVED_NAMES = {"type"}  # `# type: (int) -> int` is for type checkers
_LEAD = re.compile(r"(?:->|→|=>|shapes?\s*[:=]|size\s*[:=])\s*")
_BETWEEN = re.compile(r"\s*(->|→|=>|x|×|@|\*|·|\+|or)\s*(?=[(\[])")
_NEXT = re.compile(r"\s*[,;]\s*")
_SIGNS: dict[str, Axis] = {"_": ANY, "?": ANY, "-1": ANY, "...": REST, "…": REST}
_CLOSED_BY = {"(": ")", "[": "]"}
_TIMES = re.compile(r"\s+[x×]\s+")
_LIST = re.compile(r"(?<![\w.)\]])(?:\(([^()\[\]]*)\)|\[([^()\[\]]*)\])")
_SHAPE_OF = re.compile(r"(?:shapes?|sizes?|dim(?:ension)?s?)\b(?:\s*(?:is|of|[:=]))?\s*$", re.IGNORECASE)
_TENSOR = re.compile(r"[\w.]*Tensor$")
INDICES = {"i", "j", "k", "u", "v", "x", "y", "z"}
"""Words that alone make a list of indices or coordinates, and no shape: `(i, j)`."""
_USUAL = re.compile(
    r"(?:n|num)?(?:batch|bsz|seq|seqs|token|tokens|len|length|time|steps?|heads?|hidden|embed|embd|emb|model"
    r"|channels?|features?|feat|width|height|query|queries|keys?|values?|vocab|src|tgt|source|target|patches"
    r"|groups?|layers?|inner|chunks?|blocks?|windows?|dims?|sizes?)*"
)
"""What the words of most shapes consist of."""
_AFTER = re.compile(r"\s*$|[,;:.](?:\s|$)|\s+(?!->|→|=>|[@×*·+/]|x\s*[(\[])")
"""The text that may follow a shape: words, but nothing that makes it part of an expression."""


def shape_comments(
    comment: str, known: Container[str] = (), names: Collection[str] = ()
) -> list[ShapeComment]:
    """Return the parts of a comment that are about shapes.

    Words that are not `known` axes may be none if alone in brackets: `(optional)`. `names` are bound in
    the scope; others are recognized too, if they are simple. Each `#` begins another part.
    """
    parts = []
    for start, end in text_spans(comment):
        claims = list(_claims(comment[:end], start, known, names))
        if claims and _AFTER.match(comment[:end], claims[-1][1]):
            parts.append(ShapeComment(start, claims[-1][1], tuple(claim for claim, _ in claims)))
    return parts


def text_spans(comment: str) -> list[tuple[int, int]]:
    """Find where the texts of a comment begin and end, each of which follows a `#`."""
    starts = [match.end() for match in re.finditer(r"#+[\s:]*", comment)]
    if not starts:
        return []
    ends = [match.start() for match in re.finditer(r"\s*#+", comment)][1:]
    return list(zip(starts, [*ends, len(comment)], strict=True))


def _claims(
    text: str, start: int, known: Container[str], names: Collection[str]
) -> Iterator[tuple[Claim, int]]:
    """Parse claims separated by commas; and where each ends."""
    named = _subjects(text, start, names)[0] != ()
    while True:
        subjects, start = _subjects(text, start, names) if named else ((), start)
        if named and not subjects:
            return
        found = _alternatives(text, start, known, named=named)
        if found is None:
            bare = _bare(text[start:], known) if named else None
            if bare is not None:
                yield Claim(subjects, (bare,)), len(text)
            return
        shapes, end = found
        yield Claim(subjects, shapes), end
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
) -> tuple[tuple[Shape, ...], int] | None:
    """Parse shapes separated by `or`; of an expression, the shapes after its arrow."""
    lead = _LEAD.match(text, start)
    found = _bracketed(text, lead.end() if lead else start, known, named=named, is_sure=lead is not None)
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
            shapes, operands = [shape], False
        else:
            operands = True
    return None if operands or not _AFTER.match(text, end) else (tuple(shapes), end)


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
    entries = _entries(inside, known) if inside else []
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


def _entries(inside: str, known: Container[str]) -> list[str]:
    """Divide a list into its entries: `B, T, C`, `B x T x C`, or `B T C`, if these look like axes."""
    entries = [entry.strip() for entry in inside.split(",")]
    if len(entries) == 1:
        entries = _TIMES.split(inside)
    if len(entries) == 1:
        words = [word for word in inside.split() if word not in (ANY, REST, "…")]
        named = [word for word in words if not word.isdecimal()]
        if named and all(_looks_like_an_axis(word, known) for word in named):
            entries = inside.split()
    return entries


def _axes(entries: list[str]) -> tuple[Axis, ...] | None:
    axes: list[Axis] = []
    for entry in entries:
        axis = _SIGNS.get(entry) or parse_expression(entry)
        if axis is None or (axis == REST and REST in axes):
            return None
        axes.append(axis)
    return tuple(axes)


def _is_surely_a_shape(
    axes: tuple[Axis, ...], known: Container[str], *, named: bool, small: bool
) -> bool:
    """Check whether a list is a shape, unlike `[1]`, `(a)`, `(optional)`, `(Vaswani, 2017)`."""
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
    """Check whether a word looks like an axis: `T`, `n_head`, `d1`; lower-case letters if `small`."""
    if word in known or "_" in word or any(letter.isdigit() for letter in word):
        return True
    return len(word) == 1 and (small or word.isupper())


# What only resembles a shape, and shapes in prose.


def is_plausible(shape: Shape, known: Container[str]) -> bool:
    """Check whether all words of a shape look like names of axes, and are not just indices."""
    unknown = {word for word in shape.words if word not in known}
    if unknown and unknown == shape.words and unknown <= INDICES:
        return False
    return all(
        _looks_like_an_axis(word, known) or len(word) <= 2 or _USUAL.fullmatch(word.lower())
        for word in unknown
    )


def shape_like(comment: str, known: Container[str]) -> bool:
    """Check whether a comment contains a list that may be meant as a shape."""
    if re.match(r"#+\s*(type|noqa)\b", comment) or "$" in comment:  # $ begins a formula
        return False
    for match in _LIST.finditer(comment):
        entries = _entries((match[1] or match[2] or "").strip().removesuffix(","), known)
        axes = _axes(entries)
        if axes is not None and len(axes) > 1:
            shape = Shape(match[0], axes, tuple(entries))
            if shape.words and is_plausible(shape, known):
                return True
    return False


def shapes_in_prose(text: str, known: Container[str]) -> tuple[list[Shape], bool]:
    """Return the shapes in a sentence, and whether it may have others, which cannot be read.

    A list is a shape at the beginning, after `shape` or a type, or if it has three entries or square
    brackets, and its words are such as axes are called.
    """
    text = text.replace("`", " ")
    shapes, others = [], False
    for match in re.finditer(r"[(\[]", text):
        before = text[: match.start()]
        is_said = bool(_SHAPE_OF.search(before) or _TENSOR.search(before))
        if not is_said and re.search(r"[\w.)\]]$", before):
            continue  # a call or an item
        if re.search(r"\b(tuple|list|dict)s?\s+(of|with)?\s*$", before, re.IGNORECASE):
            others = True
            continue
        found = _bracketed(text, match.start(), known, named=True, is_sure=is_said)
        shape = found[0] if found is not None else None
        if shape is None or not is_plausible(shape, known):
            others |= is_said and "," in text[match.start() :]
            continue
        is_list = len(shape.axes) > 1 and bool(shape.words)
        stands_out = not before.strip(" \t-:") or match[0] == "[" or len(shape.axes) > 2
        if is_said or (is_list and stands_out):
            shapes.append(shape)
        else:
            others |= is_list
    return shapes, others
