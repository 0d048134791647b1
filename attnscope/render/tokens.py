"""Tokens as people read them."""

from __future__ import annotations

from attnscope.text import printable

NAMED = {"\n": "⏎", "\t": "⇥", " ": "␣", "": "∅"}
"""What a token is shown as that would not be seen."""


def label(text: str) -> str:
    r"""A token's text on one line: no space before it, nothing invisible in it.

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
