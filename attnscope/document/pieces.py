"""Pieces of text with styles, as the terminal's views compose them, for the templates."""

from __future__ import annotations

from itertools import pairwise

from rich.text import Text

from attnscope.base.text import LEFT_TO_RIGHT_MARK, printable
from attnscope.document import styles

Piece = tuple[str, str]
"""A text and its style in the terminal: `("n_Q", "bold #0089a4")`."""

NAMES = ("BLUE", "CYAN", "GREEN", "MAGENTA", "ORANGE", "RED")
COLOURS = {getattr(styles, name): name.lower() for name in NAMES}
"""The names of the terminal's colours, for which the style sheet has one each in light and in dark."""


def classes(style: str) -> str:
    """Return the classes of the style sheet for a style of the terminal.

    >>> classes(f"bold {styles.CYAN}")
    'bold cyan'
    """
    return " ".join(COLOURS.get(word, word) for word in style.split())


def pieces_of(text: Text) -> list[Piece]:
    """Split a text into pieces of one style each.

    >>> pieces_of(Text.assemble("line ", ("7", "bold red")))
    [('line ', ''), ('7', 'bold red')]
    """
    ends = sorted({0, len(text), *(end for span in text.spans for end in (span.start, span.end))})
    pieces = []
    for start, end in pairwise(ends):
        styles = [text.style, *(span.style for span in text.spans if span.start <= start < span.end)]
        style = " ".join(str(each) for each in styles if str(each) not in ("", "none"))
        pieces.append((printable(text.plain[start:end], f"{LEFT_TO_RIGHT_MARK}\n"), style))
    return pieces
