"""Text that comes from data, as it may be shown."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode that steer a terminal, or that nobody sees: controls, formats (bidi overrides
among them), lone surrogates, line and paragraph separators."""
JOINERS = "\u200c\u200d"
"""Formats that are part of words in some scripts, and of some emoji; they change nothing else."""
LEFT_TO_RIGHT_MARK = "\u200e"
"""Ends a word that is read from the right. Without it, terminals that turn such words around would turn
around what stands between two of them as well: columns would change places."""
LONG = 80
"""Characters of an argument, a name or a path that a message repeats, where it is too long."""
TOO_LONG = 200


def printable(text: object, own: str = "") -> str:
    r"""A text on one line, with escapes for what would steer a terminal and for what nobody sees.

    Names, settings and messages that come from files may hold anything: escape sequences, newlines,
    overrides of the direction of writing. Escapes are Python's. What is printable stays as it is.

    >>> printable("W\x1b[31m\nK\u202e")
    'W\\x1b[31m\\nK\\u202e'

    Args:
        text: anything.
        own: characters that do not come from data, and stay.
    """
    whole = str(text)
    if whole.isprintable():
        return whole
    return "".join(each if each in own else _escaped(each) for each in whole)


def printable_lines(text: str, own: str = "") -> str:
    r"""A text of several lines, which stay lines, with escapes for all else; tabs become spaces.

    >>> printable_lines("if x:\n\treturn '\x1b[2J'")
    "if x:\n        return '\\x1b[2J'"

    Args:
        text: its lines end with a newline, alone or after a carriage return.
        own: characters that do not come from data, and stay.
    """
    return "\n".join(printable(line.removesuffix("\r").expandtabs(), own) for line in text.split("\n"))


def json_printable(document: str) -> str:
    r"""A JSON document with JSON's escapes for what `printable` escapes: it says the same.

    >>> json_printable('["\x9b", "\u202e"]')
    '["\\u009b", "\\u202e"]'

    Args:
        document: as `json.dumps` makes it, which escapes what comes before the space.
    """
    if document.isascii() and "\x7f" not in document:
        return document
    return re.sub(
        r"[^\n -~]",
        lambda found: found[0] if _escaped(found[0]) == found[0] else json.dumps(found[0])[1:-1],
        document,
    )


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


def without_long_echoes(message: str, arguments: Iterable[str]) -> str:
    """A message in which long arguments of the command line are shortened, and all long words.

    >>> without_long_echoes("there is no folder " + "x" * 500 + ".", ["x" * 500]) == (
    ...     "there is no folder " + "x" * 40 + "…" + "x" * 39 + "."
    ... )
    True

    Args:
        message: what is told.
        arguments: of the command line. Their parts after `=` and before `:` are looked for as well.
    """
    parts = {part for argument in arguments for part in (argument, *re.split("[=:]", argument))}
    for part in sorted((part for part in parts if len(part) > TOO_LONG), key=len, reverse=True):
        message = message.replace(part, shortened(part))
    return re.sub(rf"\S{{{TOO_LONG + 1},}}", lambda found: shortened(found[0]), message)


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in HIDDEN or character in JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")
