"""Segments that the user defines: by marks, by a regular expression, or by ranges of characters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import Any

from attnscope.base.errors import OptionError
from attnscope.base.text import described, shortened
from attnscope.base.units import counted
from attnscope.model.answers.segments.chat import RESERVED, numbered

SYNTAX = "docs=[1],[2],[3]; question=/Q: (.*)/; intro=0-25"  #: an example of each kind

OF_PICTURES = re.compile(r"(picture|video) \d+", re.ASCII)
"""The names of segments of pictures and videos."""

MOST_PARTS = 1000  #: the most parts that a definition may have, since each is a row and a colour


@dataclass(frozen=True)
class Definition:
    """A definition of segments."""

    name: str
    #: each begins a part, which ends before the next mark; the last one ends before a blank line, or
    #: with the text
    marks: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None  #: each match is a part, or its first group if it has one
    ranges: tuple[tuple[int, int], ...] = ()  #: first and end (exclusive) of each part, in characters
    text: str | None = None  #: a part that reads so, once in the text


@dataclass(frozen=True)
class Stretch:
    """A part of a text."""

    name: str
    nth: int  #: which of several texts it is in
    #: first, end: its characters, end exclusive
    first: int
    end: int


def read_definitions(segments: Any) -> list[Definition]:
    r"""Read definitions of segments.

    `NAME=DEFINITION; NAME=DEFINITION; …`, where DEFINITION is one of

    - `MARK,MARK,…`: a part begins at each mark, which occurs once, and ends before the next; the last
      one ends before a blank line, or with the text;
    - `/REGEX/`: each match is a part, or its first group; `/REGEX/ims` with flags, `\/` for a slash;
    - `FIRST-END,FIRST-END,…`: characters, counted from 0, END not included.

    Args:
        segments: such a text; or a dict from names to lists of `(first, end)`, to a compiled regular
            expression, or to a text that occurs once.
    """
    if isinstance(segments, str):
        found = _parsed(segments)
    elif isinstance(segments, dict):
        found = [_of_value(str(name), value) for name, value in segments.items()]
    else:
        raise OptionError(f"--segments is {described(segments)}.", hint=f"'{SYNTAX}'")
    if not found:
        raise OptionError("--segments is empty.", hint=f"'{SYNTAX}'")
    names = [each.name for each in found]
    for name in names:
        reserved = name in RESERVED or OF_PICTURES.fullmatch(name)
        if not name or reserved or names.count(name) > 1:
            why = " twice" if names.count(name) > 1 else ", which other segments have"
            raise OptionError(
                f"--segments has the name {shortened(repr(name))}{why}."
                if name
                else "--segments has a segment without a name.",
                hint=f"'{SYNTAX}'",
            )
    return found


def _parsed(text: str) -> list[Definition]:
    found, rest = [], text.strip().strip(";").strip()
    while rest:
        name, equals, rest = rest.partition("=")
        name, rest = name.strip(), rest.lstrip()
        if not equals or not rest:
            raise OptionError(
                f"--segments: {shortened(repr(name))} has no definition.", hint=f"'{SYNTAX}'"
            )
        if rest.startswith("/"):
            match = re.match(r"/((?:\\.|[^/\\])*)/([a-z]*)\s*(?:;|$)", rest, re.DOTALL)
            if match is None:
                raise OptionError(
                    f"--segments: the regular expression of {name} does not end in a / before ; or the"
                    " end.",
                    hint=r"NAME=/REGEX/, with \/ for a slash in it",
                )
            found.append(Definition(name, pattern=_compiled(name, match[1], match[2])))
            rest = rest[match.end() :].lstrip()
            continue
        definition, _, rest = rest.partition(";")
        rest = rest.lstrip()
        parts = [each.strip() for each in definition.split(",")]
        if "" in parts:
            raise OptionError(f"--segments: {name} has an empty mark.", hint=f"'{SYNTAX}'")
        if all(re.fullmatch(r"\d+-\d+", each, re.ASCII) for each in parts):
            ranges = [
                (int(first), int(end)) for first, _, end in (each.partition("-") for each in parts)
            ]
            found.append(Definition(name, ranges=_checked(name, ranges)))
        else:
            found.append(Definition(name, marks=tuple(parts)))
    return found


def _compiled(name: str, regex: str, flags: str = "") -> re.Pattern[str]:
    if set(flags) - set("ims"):
        raise OptionError(
            f"--segments: the regular expression of {name} has the flags {flags!r}.", hint="i, m or s"
        )
    try:
        return re.compile(
            regex.replace(r"\/", "/"), sum(re.RegexFlag[each.upper()] for each in set(flags))
        )
    except (re.error, OverflowError) as error:
        raise OptionError(
            f"--segments: {name} has {shortened(repr(regex), 40)}, which is not a regular expression:"
            f" {error}."
        ) from error


def _of_value(name: str, value: Any) -> Definition:
    if isinstance(value, str) and value:
        return Definition(name, text=value)
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        return Definition(name, pattern=value)
    try:
        ranges = [(index(first), index(end)) for first, end in value]
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"segments: {name} is {described(value)}.",
            hint="[(first, end), …] of whole numbers, or a text that occurs once",
        ) from error
    return Definition(name, ranges=_checked(name, ranges))


def _checked(name: str, ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    for first, end in ranges:
        if not 0 <= first < end:
            raise OptionError(
                f"--segments: {name} has the range {first}-{end}, which has no characters.",
                hint="FIRST-END, where FIRST is counted from 0 and END is not included",
            )
    if not ranges:
        raise OptionError(f"--segments: {name} has no range.", hint="[(first, end), …]")
    return tuple(ranges)


def find_stretches(definitions: list[Definition], texts: list[str], of: str) -> list[Stretch]:
    """Find the parts that definitions name in one text, or in the contents of several messages.

    They are in the order of the texts, and do not overlap.
    """
    found: list[Stretch] = []
    for each in definitions:
        parts = sorted(_parts(each, texts, of))
        if len(parts) > MOST_PARTS:
            raise OptionError(
                f"--segments: {each.name} has {counted(len(parts), 'part')}, more than {MOST_PARTS:,}.",
                hint="a longer mark, or a regular expression that matches less",
            )
        names = numbered([each.name] * len(parts))
        found += [Stretch(name, *part) for name, part in zip(names, parts, strict=True)]
    found.sort(key=lambda part: (part.nth, part.first, part.end))
    for one, other in pairwise(found):
        if one.nth == other.nth and other.first < one.end:
            raise OptionError(
                f"--segments: {one.name} (characters {one.first}-{one.end}) and {other.name}"
                f" ({other.first}-{other.end}) overlap in {of}.",
                hint="segments that share no character",
            )
    return found


def _parts(definition: Definition, texts: list[str], of: str) -> list[tuple[int, int, int]]:
    name = definition.name
    if definition.pattern is not None:
        group = min(1, definition.pattern.groups)
        spans = [
            (nth, *match.span(group))
            for nth, text in enumerate(texts)
            for match in definition.pattern.finditer(text)
        ]
        parts = [span for span in spans if span[1] < span[2]]
        if not parts:
            what = "matches nothing but empty texts" if spans else "matches nothing"
            raise OptionError(
                f"--segments: {name}=/{shortened(definition.pattern.pattern, 40)}/ {what} in {of}."
            )
        return parts
    if definition.ranges:
        if len(texts) != 1:
            raise OptionError(
                f"--segments: {name} has ranges of characters, but there are {len(texts)} messages.",
                hint="marks or a regular expression: 'docs=[1],[2]', 'docs=/…/'",
            )
        for first, end in definition.ranges:
            if end > len(texts[0]):
                raise OptionError(
                    f"--segments: {name} has the range {first}-{end}, but {of} has"
                    f" {counted(len(texts[0]), 'character')}."
                )
        return [(0, first, end) for first, end in definition.ranges]
    if definition.text is not None:
        nth, first = _once(definition.text, texts, name, of)
        return [(nth, first, first + len(definition.text))]
    places = sorted(_once(mark, texts, name, of) for mark in definition.marks)
    parts = []
    for i, (nth, first) in enumerate(places):
        text = texts[nth]
        if i + 1 < len(places) and places[i + 1][0] == nth:
            end = places[i + 1][1]
        else:
            blank = re.compile(r"\n[^\S\n]*\n").search(text, first)
            end = blank.start() if blank else len(text)
        parts.append((nth, first, end))
    return parts


def _once(mark: str, texts: list[str], name: str, of: str) -> tuple[int, int]:
    """Return where a mark is: the text, and the character in it."""
    places = [
        (nth, match.start())
        for nth, text in enumerate(texts)
        for match in re.finditer(f"(?={re.escape(mark)})", text)
    ]
    if len(places) == 1:
        return places[0]
    shown = shortened(repr(mark), 40)
    if not places:
        raise OptionError(f"--segments: {name}: {shown} does not occur in {of}.", hint=f"'{SYNTAX}'")
    where = ", ".join(str(first) for _, first in places[:4]) + ", …" * (len(places) > 4)
    raise OptionError(
        f"--segments: {name}: {shown} occurs {len(places)} times in {of}, at characters {where}; a mark"
        " occurs once.",
        hint=f"more of the text, such as {texts[places[0][0]][places[0][1] :][: len(mark) + 8]!r};"
        f" or {name}=/REGEX/",
    )
