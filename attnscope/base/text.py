"""Making text from files and arguments safe and short enough to show."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories that control a terminal or are invisible: controls, formats (including bidi
overrides), lone surrogates, line and paragraph separators."""
JOINERS = "\u200c\u200d"
"""Format characters that are part of words in some scripts and of some emoji, and harmless."""
LEFT_TO_RIGHT_MARK = "\u200e"
"""Ends a right-to-left word. Without it, terminals that reverse such words would also reverse the text
between two of them, and swap table columns."""
LONG = 80
"""The length to which messages shorten an argument, a name or a path that is too long."""
TOO_LONG = 200


def printable(text: object, keep: str = "") -> str:
    r"""Escape the characters of a text that would control a terminal or are invisible.

    Names, settings and messages from files may contain anything: escape sequences, newlines,
    overrides of the writing direction. Escapes are Python's; printable characters stay as they are.

    >>> printable("W\x1b[31m\nK\u202e")
    'W\\x1b[31m\\nK\\u202e'

    Args:
        text: any value.
        keep: characters to leave as they are, because attnscope added them itself.
    """
    whole = str(text)
    if whole.isprintable():
        return whole
    return "".join(each if each in keep else _escaped(each) for each in whole)


def printable_lines(text: str, keep: str = "") -> str:
    r"""Escape a text line by line, as `printable` does; newlines stay, and tabs become spaces.

    >>> printable_lines("if x:\n\treturn '\x1b[2J'")
    "if x:\n        return '\\x1b[2J'"

    Args:
        text: lines that end in a newline, with or without a carriage return.
        keep: characters to leave as they are, because attnscope added them itself.
    """
    return "\n".join(printable(line.removesuffix("\r").expandtabs(), keep) for line in text.split("\n"))


def json_printable(document: str) -> str:
    r"""Escape, in JSON's way, what `printable` escapes; the meaning of the document stays the same.

    >>> json_printable('["\x9b", "\u202e"]')
    '["\\u009b", "\\u202e"]'

    Args:
        document: from `json.dumps`, which already escapes the control characters below the space.
    """
    if document.isascii() and "\x7f" not in document:
        return document
    return re.sub(
        r"[^\n -~]",
        lambda found: found[0] if _escaped(found[0]) == found[0] else json.dumps(found[0])[1:-1],
        document,
    )


def encodable_json(document: str, encoding: str | None) -> str:
    """Escape characters of a JSON document that are not printable, or not in an encoding."""
    document = json_printable(document)
    try:
        document.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return re.sub(r"[^\x00-\x7f]", lambda character: json.dumps(character[0])[1:-1], document)
    return document


def shortened(text: object, length: int = LONG) -> str:
    """Shorten a long argument, name or path for a message to its beginning and its end.

    >>> shortened("a" * 30 + "b" * 30, 21)
    'aaaaaaaaaa…bbbbbbbbbb'
    """
    whole = str(text)
    if len(whole) <= length:
        return whole
    end = (length - 1) // 2
    return f"{whole[: length - 1 - end]}…{whole[len(whole) - end :]}"


def described(value: object) -> str:
    """Return a value as a message shows it: on one line, and tensors and arrays by their shape.

    >>> described([1, 2])
    '[1, 2]'
    """
    shape = getattr(value, "shape", None)
    if not shape:
        return shortened(" ".join(repr(value).split()))
    return f"of type {type(value).__name__} and shape {tuple(shape)}"


def without_long_echoes(message: str, arguments: Iterable[str]) -> str:
    """Shorten long command-line arguments, and all other long words, in a message.

    >>> without_long_echoes("there is no folder " + "x" * 500 + ".", ["x" * 500]) == (
    ...     "there is no folder " + "x" * 40 + "…" + "x" * 39 + "."
    ... )
    True

    Args:
        message: the message.
        arguments: of the command line. Their parts between `=` and `:` are shortened as well.
    """
    parts = {part for argument in arguments for part in (argument, *re.split("[=:]", argument))}
    for part in sorted((part for part in parts if len(part) > TOO_LONG), key=len, reverse=True):
        message = message.replace(part, shortened(part))
    return re.sub(rf"\S{{{TOO_LONG + 1},}}", lambda found: shortened(found[0]), message)


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in HIDDEN or character in JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a name resembles most; None if it resembles none.

    Case, hyphens and underscores do not matter. A choice that begins with the name is near, too.

    >>> nearest("casual", ["causal", "window"]), nearest("n_q", ["nq", "nk"]), nearest("x", ["nq"])
    ('causal', 'nq', None)
    """
    by_letters = {re.sub(r"[-_]", "", each).lower(): each for each in choices}
    letters = re.sub(r"[-_]", "", name).lower()
    longer = [each for each in by_letters if len(letters) > 2 and each.startswith(letters)]
    near = [letters] if letters in by_letters else longer[:1] if len(longer) == 1 else []
    near = near or get_close_matches(letters, by_letters, n=1, cutoff=0.7)
    return by_letters[near[0]] if near else None


def alternatives(words: Iterable[str], word: str = "or") -> str:
    """Join words: `a, b or c`."""
    *some, last = [*words] or [""]
    return f"{', '.join(some)} {word} {last}" if some else last
