"""Text that comes from data, as it may be shown."""

from __future__ import annotations

import unicodedata

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode that steer a terminal, or that nobody sees: controls, formats (bidi overrides
among them), lone surrogates, line and paragraph separators."""
JOINERS = "\u200c\u200d"
"""Formats that are part of words in some scripts, and of some emoji; they change nothing else."""
LONG = 80
"""Characters of an argument, a name or a path that a message repeats."""


def printable(text: object) -> str:
    r"""A text on one line, with escapes for what would steer a terminal and for what nobody sees.

    Names, settings and messages that come from files may hold anything: escape sequences, newlines,
    overrides of the direction of writing. Escapes are Python's. What is printable stays as it is.

    >>> printable("W\x1b[31m\nK\u202e")
    'W\\x1b[31m\\nK\\u202e'
    """
    whole = str(text)
    return whole if whole.isprintable() else "".join(map(_escaped, whole))


def printable_lines(text: str) -> str:
    r"""A text of several lines, which stay lines, with escapes for all else; tabs become spaces.

    >>> printable_lines("if x:\n\treturn '\x1b[2J'")
    "if x:\n        return '\\x1b[2J'"
    """
    return "\n".join(printable(line.removesuffix("\r").expandtabs(8)) for line in text.split("\n"))


def shortened(text: object, length: int = LONG) -> str:
    """What a message repeats of an argument, a name or a path: its beginning and its end, if it is long.

    >>> shortened("a" * 30 + "b" * 30, 21)
    'aaaaaaaaaa…bbbbbbbbbb'
    """
    whole = str(text)
    if len(whole) <= length:
        return whole
    end = (length - 1) // 2
    return f"{whole[: length - 1 - end]}…{whole[len(whole) - end :]}"


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in HIDDEN or character in JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")
