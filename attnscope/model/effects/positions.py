"""Parse positions of a sequence: numbers, ranges, `last`, and tokens; and blocks of keys for queries."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnscope.base.errors import OptionError
from attnscope.base.text import shortened
from attnscope.model.run.tokens import Token


def parse_positions(text: str, tokens: Sequence[Token], flag: str) -> list[int]:
    """Return the positions that a text lists, in order: numbers, ranges, `last` or tokens, and commas.

    A negative number counts from the end. A token means each position at which it stands.

    >>> parse_positions("0-1,last", [Token("a"), Token(" b"), Token(" c")], "--at")
    [0, 1, 2]
    >>> parse_positions("b", [Token("a"), Token(" b"), Token(" c")], "--at")
    [1]
    """
    n, found = len(tokens), set()
    for part in text.split(","):
        name = part.strip()
        span = re.fullmatch(r"(-?\d+|last)(?:-(\d+|last))?", name)
        if span is not None:
            first, last = (_position(each or span[1], n, flag) for each in span.groups())
            if last < first:
                raise OptionError(f"{flag} {name} goes backwards.", hint=f"{flag} {last}-{first}")
            found |= set(range(first, last + 1))
            continue
        places = {i for i, token in enumerate(tokens) if token.text.strip() == name and name}
        if not places:
            raise OptionError(
                f"{flag}: {shortened(name)!r} is not a token of the text, nor a position.",
                hint=f"{flag} 0-3, last, or a token",
            )
        found |= places
    return sorted(found)


def _position(text: str, n: int, flag: str) -> int:
    """Return a position that a number or `last` means."""
    number = n - 1 if text == "last" else int(text)
    number += n if number < 0 else 0
    if not 0 <= number < n:
        raise OptionError(f"{flag}: there is no position {text}: the text has {n} tokens.")
    return number


def parse_blocks(
    text: str, keys: Sequence[Token], queries: Sequence[Token]
) -> list[tuple[list[int], list[int]]]:
    """Return the keys and the queries of each block in a text: `0-3>last`, several separated by `;`."""
    blocks = []
    for part in text.split(";"):
        left, arrow, right = part.partition(">")
        if not arrow:
            raise OptionError(
                f"--block {shortened(part.strip())!r} has no >.", hint="--block 'KEYS>QUERIES'"
            )
        blocks.append(
            (parse_positions(left, keys, "--block"), parse_positions(right, queries, "--block"))
        )
    return blocks
