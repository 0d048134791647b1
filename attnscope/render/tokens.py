"""Format tokens for people."""

from __future__ import annotations

from attnscope.text import printable

NAMED = {"\n": "⏎", "\t": "⇥", " ": "␣", "": "∅"}
"""Symbols for tokens that would be invisible."""


def label(text: str) -> str:
    r"""Return a token's text on one line, without its leading space, with invisible characters escaped.

    >>> label(" cat"), label("\n"), label(" "), label("a\x1b[1m")
    ('cat', '⏎', '␣', 'a\\x1b[1m')
    """
    if len(text) > 1 and text[0] == " ":
        text = text[1:]
    if text in NAMED:
        return NAMED[text]
    if text.isprintable():
        return text
    return "".join(NAMED["\n"] if each == "\n" else printable(each) for each in text)
