"""What a model reads: tokens, or the patches of an image; and the one that a user names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled, spelled_any
from attnscope.base.text import nearest, shortened


@dataclass(frozen=True)
class Token:
    """One token of the sequence of queries or of keys."""

    #: as the tokenizer decodes it, including a leading space; `##` marks the continuation of a word in
    #: BERT's vocabulary; for an image patch, its row and column.
    text: str
    #: 0; in a pair of texts, 1 for tokens of the second.
    segment: int = 0
    #: whether the tokenizer or the model added it: `[CLS]`, `</s>`.
    special: bool = False
    generated: bool = False


@dataclass(frozen=True)
class Picture:
    """The image that a vision model attended to."""

    #: rows, columns: the size of the grid of patches; their tokens come row by row.
    rows: int
    columns: int
    #: how many tokens come before the patches, such as `[CLS]`.
    first: int
    #: the image after cropping and resizing for the model, as the bytes of a PNG file.
    png: bytes = field(repr=False)


# The query that a user names.

LONGEST_WORD = 32
"""The largest number of tokens of a word that are joined."""
LISTED = 8
"""The maximal number of positions that an error lists."""


def query_position(
    query: int | str | None,
    tokens: Sequence[Token],
    hint: str | None = None,
) -> int | None:
    """Return the position of a query; None stays None.

    >>> query_position("cat", [Token("the"), Token(" cat")]), query_position("1", [])
    (1, 1)

    Args:
        tokens: the tokens of the sequence; if some were generated, these alone are queries.
    """
    if not isinstance(query, str):
        return query
    if re.fullmatch(r"\s*-?\d{1,9}\s*", query):
        return int(query)
    generated = any(token.generated for token in tokens)
    numbers: Sequence[int]
    places = [i for i, token in enumerate(tokens) if token.generated or not generated]
    found = _spans(query, [_letters(tokens[i].text) for i in places])
    positions = [(places[first], places[last]) for first, last in found]
    if len(positions) == 1 and positions[0][0] == positions[0][1]:
        return positions[0][0]
    name = repr(shortened(query))
    if not positions:
        any_query = f"a position, counted from 0; {spelled(top=1)} lists the queries"
        near = nearest(query, [_letters(tokens[i].text) for i in places if not tokens[i].special])
        raise OptionError(
            f"{name} is not a token among the queries.",
            hint=spelled(query=near) if near else hint or any_query,
        )
    if len(positions) == 1:
        numbers = range(positions[0][0], positions[0][1] + 1)
        parts = " ".join(tokens[i].text.strip() for i in numbers)
        message = f"{name} is {len(numbers)} tokens: {parts}."
    else:
        numbers = [first for first, _ in positions]
        message = f"{name} occurs {len(numbers)} times among the queries."
    listed = [str(number) for number in numbers[:LISTED]]
    raise OptionError(message, hint=spelled_any("query", listed))


def _letters(token: str) -> str:
    """Return a token's text without the marks of a word's beginning or continuation, in lower case."""
    return token.strip(" Ġ▁").removeprefix("##").removesuffix("</w>").lower()


def _spans(word: str, tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first and last position of each token, or of adjacent tokens, that spell a word."""
    word, found = _letters(word), []
    for first in range(len(tokens)):
        spelled = ""
        for last in range(first, min(first + LONGEST_WORD, len(tokens))):
            spelled += tokens[last]
            if spelled == word:
                found.append((first, last))
            if not tokens[first] or not word.startswith(spelled) or spelled == word:
                break
    return found


# The positions that a user names.


def parse_positions(text: str, tokens: Sequence[Token], option: str) -> list[int]:
    """Return the positions that a text lists, in order: numbers, ranges, `last` or tokens, and commas.

    A negative number counts from the end. A token means each position at which it stands.

    >>> parse_positions("0-1,last", [Token("a"), Token(" b"), Token(" c")], "at")
    [0, 1, 2]
    >>> parse_positions("b", [Token("a"), Token(" b"), Token(" c")], "at")
    [1]
    """
    n, found = len(tokens), set()
    for part in text.split(","):
        name = part.strip()
        span = re.fullmatch(r"(-?\d+|last)(?:-(\d+|last))?", name)
        if span is not None:
            first, last = (_position(each or span[1], n, option) for each in span.groups())
            if last < first:
                forwards = spelled(**{option: f"{last}-{first}"})
                raise OptionError(f"{spelled(option, name)} goes backwards.", hint=forwards)
            found |= set(range(first, last + 1))
            continue
        places = {i for i, token in enumerate(tokens) if token.text.strip() == name and name}
        if not places:
            raise OptionError(
                f"{spelled(option)}: {shortened(name)!r} is not a token of the text, nor a position.",
                hint=f"{spelled(**{option: '0-3'})}, last, or a token",
            )
        found |= places
    return sorted(found)


def _position(text: str, n: int, option: str) -> int:
    """Return a position that a number or `last` means."""
    number = n - 1 if text == "last" else int(text)
    number += n if number < 0 else 0
    if not 0 <= number < n:
        raise OptionError(f"{spelled(option)}: there is no position {text}: the text has {n} tokens.")
    return number
