"""Pieces of text with styles, as the terminal's views compose them, for the templates."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from rich.cells import cell_len
from rich.text import Text

from attnscope.document import styles
from attnscope.document.columns import Column, in_order
from attnscope.text import LEFT_TO_RIGHT_MARK, printable

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


def shown_columns(columns: Iterable[Column]) -> list[Column]:
    """Return the columns for people, from left to right, without those shown on request only."""
    return in_order([each.printable() for each in columns if each.cells and not each.wide])


def grows(column: Column) -> bool:
    """Check whether a column takes the room that others leave, and is cut if there is none."""
    return column.flexible and not column.essential


def width(column: Column) -> int:
    """Return the width of a column in characters."""
    lines = [line for text in [column.title, *column.texts()] for line in text.split("\n")]
    return max(map(cell_len, lines))
