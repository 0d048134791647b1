"""Read a plain prompt with segments that the user defines, and turn ranges of characters into tokens."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.spelling import spelled
from attnscope.base.text import described, shortened
from attnscope.base.units import counted
from attnscope.model.answers.prompt import Prompt, Segment, spans_of
from attnscope.model.answers.segments.chat import RESERVED, numbered
from attnscope.model.run.load import load_tokenizer
from attnscope.model.run.tokenize import encoded, pieces_of
from attnscope.model.run.tokenize import read_text as tokenize_text

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint


def read_text(
    checkpoint: Checkpoint,
    config: Any,
    text: str,
    segments: Any = None,
    *,
    name: str | None = None,
    truncate: bool = False,
) -> Prompt:
    """Tokenize a text, and find the segments in it.

    Text outside of all segments is the segment `text`; the tokens that the tokenizer adds are `special`.
    A token on a border belongs to the segment of most of its characters, the first of two with equally
    many. Without definitions, the whole text is one segment.
    """
    tokenizer = load_tokenizer(checkpoint)
    reading = tokenize_text(checkpoint, config, text, name=name, truncate=truncate, tokenizer=tokenizer)
    ids = reading.inputs["input_ids"][0].tolist()
    owners = owners_of_text(text, segments)
    result, ranges = encode_with_ranges(tokenizer, text, checkpoint.name, special=True)
    if list(result["input_ids"])[: len(ids)] != ids:  # tokens that follow a truncated text
        n_last = sum(result["special_tokens_mask"][len(ids) - 1 :])
        ranges = ranges[: len(ids) - n_last] + [(0, 0)] * n_last
    found, without = segments_of(owners, ranges[: len(ids)], "special")
    if len(ids) != sum(each.n_token for each in found):
        raise ModelError(f"the tokenizer of {checkpoint.name} gives other tokens the second time.")
    notices = reading.notices + notices_without_tokens(without)
    return Prompt(reading.inputs, reading.source, found, tokenizer=tokenizer, notices=notices)


def owners_of_text(text: str, segments: Any) -> list[str]:
    """Return the name of the segment of each character of a plain text; raise as `find_stretches`."""
    owners = ["text"] * len(text)
    if segments is not None:
        for part in find_stretches(read_definitions(segments), [text], "the text"):
            owners[part.first : part.end] = [part.name] * (part.end - part.first)
    return owners


def notices_without_tokens(names: list[str]) -> list[str]:
    """Return a notice for each segment that has no token of its own."""
    return [
        f"{name} has no token: it was cut off, or is less than half of each of its tokens."
        for name in names
        if name not in ("text", "template")
    ]


def encode_with_ranges(
    tokenizer: Any, text: str, name: str, *, special: bool
) -> tuple[Any, list[tuple[int, int]]]:
    """Tokenize a text, and find first and end (exclusive) of the characters of each token.

    Special tokens have no characters. Tokens that have the bytes of one character between them have that
    character each.
    """
    options: dict[str, Any] = {"add_special_tokens": special, "return_special_tokens_mask": True}
    if getattr(tokenizer, "is_fast", False):
        result = encoded(tokenizer, {"text": text}, return_offsets_mapping=True, **options)
        return result, [(first, end) for first, end in result.pop("offset_mapping")]
    result = encoded(tokenizer, {"text": text}, **options)
    added = result["special_tokens_mask"] if special else [0] * len(result["input_ids"])
    pieces = pieces_of(tokenizer, result["input_ids"])
    spelled = b"".join(piece for piece, is_added in zip(pieces, added, strict=True) if not is_added)
    blank = len(spelled) - len(text.encode())  # sentencepiece puts a blank before a text
    if spelled != b" " * blank + text.encode():
        raise ModelError(
            f"the tokenizer of {name} does not say which characters a token has, and its tokens do not"
            " spell the text: where segments begin is not known.",
            hint="a tokenizer with a tokenizer.json",
        )
    character = [i for i, letter in enumerate(text) for _ in letter.encode()]
    ranges, at = [], -blank
    for piece, is_added in zip(pieces, added, strict=True):
        end = at + (0 if is_added else len(piece))
        inside = character[max(at, 0) : max(end, 0)]
        ranges.append((inside[0], inside[-1] + 1) if inside else (0, 0))
        at = end
    return result, ranges


def segments_of(
    owners: list[str], ranges: list[tuple[int, int]], without: str
) -> tuple[list[Segment], list[str]]:
    """Divide tokens into segments: a token belongs to the segment of most of its characters.

    Of two with equally many, it belongs to the one that comes first in the token; tokens without
    characters are of the segment `without`. Return the segments, in the order of their first positions;
    and the names of those that have characters, but no token.
    """
    names = []
    for first, end in ranges:
        if first >= end:
            names.append(without)
        else:
            inside = owners[first:end]
            names.append(inside[0] if len(set(inside)) == 1 else Counter(inside).most_common(1)[0][0])
    positions: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        positions.setdefault(name, []).append(position)
    segments = [Segment(name, spans_of(own)) for name, own in positions.items()]
    return segments, [name for name in dict.fromkeys(owners) if name not in positions]


SYNTAX = "'docs=[1],[2],[3]; question=/Q: (.*)/; intro=0-25'"  #: an example of each kind

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


def _mistake(what: str, hint: str | None = None) -> OptionError:
    """Return the error for definitions that are wrong."""
    return OptionError(f"{spelled('segments')}{what}", hint=hint)


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

    Or a dict from names to lists of `(first, end)`, to a compiled regular expression, or to a text that
    occurs once.
    """
    if isinstance(segments, str):
        found = _parsed(segments)
    elif isinstance(segments, dict):
        found = [_of_value(str(name), value) for name, value in segments.items()]
    else:
        raise _mistake(f" is {described(segments)}.", SYNTAX)
    if not found:
        raise _mistake(" is empty.", SYNTAX)
    names = [each.name for each in found]
    for name in names:
        reserved = name in RESERVED or OF_PICTURES.fullmatch(name)
        if not name:
            raise _mistake(" has a segment without a name.", SYNTAX)
        if reserved or names.count(name) > 1:
            why = " twice" if names.count(name) > 1 else ", which other segments have"
            raise _mistake(f" has the name {shortened(repr(name))}{why}.", SYNTAX)
    return found


def _parsed(text: str) -> list[Definition]:
    found, rest = [], text.strip().strip(";").strip()
    while rest:
        name, equals, rest = rest.partition("=")
        name, rest = name.strip(), rest.lstrip()
        if not equals or not rest:
            raise _mistake(f": {shortened(repr(name))} has no definition.", SYNTAX)
        if rest.startswith("/"):
            match = re.match(r"/((?:\\.|[^/\\])*)/([a-z]*)\s*(?:;|$)", rest, re.DOTALL)
            if match is None:
                raise _mistake(
                    f": the regular expression of {name} does not end in a / before ; or the end.",
                    hint=r"NAME=/REGEX/, with \/ for a slash in it",
                )
            found.append(Definition(name, pattern=_compiled(name, match[1], match[2])))
            rest = rest[match.end() :].lstrip()
            continue
        definition, _, rest = rest.partition(";")
        rest = rest.lstrip()
        parts = [each.strip() for each in definition.split(",")]
        if "" in parts:
            raise _mistake(f": {name} has an empty mark.", SYNTAX)
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
        raise _mistake(f": the regular expression of {name} has the flags {flags!r}.", hint="i, m or s")
    try:
        return re.compile(
            regex.replace(r"\/", "/"), sum(re.RegexFlag[each.upper()] for each in set(flags))
        )
    except (re.error, OverflowError) as error:
        raise _mistake(
            f": {name} has {shortened(repr(regex), 40)}, which is not a regular expression: {error}."
        ) from error


def _of_value(name: str, value: Any) -> Definition:
    if isinstance(value, str) and value:
        return Definition(name, text=value)
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        return Definition(name, pattern=value)
    try:
        ranges = [(index(first), index(end)) for first, end in value]
    except (TypeError, ValueError) as error:
        raise _mistake(
            f": {name} is {described(value)}.",
            hint="[(first, end), …] of whole numbers, or a text that occurs once",
        ) from error
    return Definition(name, ranges=_checked(name, ranges))


def _checked(name: str, ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    for first, end in ranges:
        if not 0 <= first < end:
            raise _mistake(
                f": {name} has the range {first}-{end}, which has no characters.",
                hint="FIRST-END, where FIRST is counted from 0 and END is not included",
            )
    if not ranges:
        raise _mistake(f": {name} has no range.", hint="[(first, end), …]")
    return tuple(ranges)


def find_stretches(definitions: list[Definition], texts: list[str], of: str) -> list[Stretch]:
    """Find the parts that definitions name in one text, or in the contents of several messages.

    They are in the order of the texts, and do not overlap.
    """
    found: list[Stretch] = []
    for each in definitions:
        parts = sorted(_parts(each, texts, of))
        if len(parts) > MOST_PARTS:
            raise _mistake(
                f": {each.name} has {counted(len(parts), 'part')}, more than {MOST_PARTS:,}.",
                hint="a longer mark, or a regular expression that matches less",
            )
        names = numbered([each.name] * len(parts))
        found += [Stretch(name, *part) for name, part in zip(names, parts, strict=True)]
    found.sort(key=lambda part: (part.nth, part.first, part.end))
    for one, other in pairwise(found):
        if one.nth == other.nth and other.first < one.end:
            raise _mistake(
                f": {one.name} (characters {one.first}-{one.end}) and {other.name}"
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
            raise _mistake(f": {name}=/{shortened(definition.pattern.pattern, 40)}/ {what} in {of}.")
        return parts
    if definition.ranges:
        if len(texts) != 1:
            raise _mistake(
                f": {name} has ranges of characters, but there are {len(texts)} messages.",
                hint="marks or a regular expression: 'docs=[1],[2]', 'docs=/…/'",
            )
        for first, end in definition.ranges:
            if end > len(texts[0]):
                raise _mistake(
                    f": {name} has the range {first}-{end}, but {of} has"
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
        raise _mistake(f": {name}: {shown} does not occur in {of}.", SYNTAX)
    where = ", ".join(str(first) for _, first in places[:4]) + ", …" * (len(places) > 4)
    raise _mistake(
        f": {name}: {shown} occurs {len(places)} times in {of}, at characters {where}; a mark"
        " occurs once.",
        hint=f"more of the text, such as {texts[places[0][0]][places[0][1] :][: len(mark) + 8]!r};"
        f" or {name}=/REGEX/",
    )
