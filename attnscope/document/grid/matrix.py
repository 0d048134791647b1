"""Parts of pictures of matrices in characters: their room, labels of rows, and panels side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from attnscope.document.grid.colours import MARKS, ColourScale
from attnscope.document.grid.heatmap import PIPED

PLAIN = ColourScale(0.0, (), "", "utf-8", MARKS)
"""The characters of Markdown, which has no colours."""


@dataclass(frozen=True)
class Frame:
    """The room for a picture, and the colours and characters that can be shown."""

    width: int  #: the most characters of a line
    rows: int  #: the most rows
    scale: ColourScale

    @classmethod
    def of(cls, console: Console, rows: int, scale: ColourScale) -> Frame:
        """Return the room of a console: on a terminal, its width, and so many rows."""
        if console.is_terminal:
            return cls(console.width, rows, scale)
        return cls(max(console.width, PIPED), PIPED, scale)


def labelled(labels: Sequence[Text], lines: Iterable[Text]) -> list[Text]:
    """Put the labels of rows before their lines; the first line, with positions, has none."""
    indent = indent_of(labels)
    padded = (label + Text(" " * (indent - label.cell_len)) for label in [Text(), *labels])
    return [label + line for label, line in zip(padded, lines, strict=True)]


def indent_of(labels: Iterable[Text]) -> int:
    """Return the width of labels and of a blank behind them."""
    return 1 + max(label.cell_len for label in labels)


def side_by_side(panels: Iterable[Sequence[Text]], step: int) -> list[Text]:
    """Put panels side by side; each begins `step` characters after the one before."""
    lines = []
    for parts in zip_longest(*panels, fillvalue=Text()):
        line = Text()
        for i, part in enumerate(parts):
            line.append(" " * (i * step - line.cell_len)).append_text(part)
        lines.append(line)
    return lines
