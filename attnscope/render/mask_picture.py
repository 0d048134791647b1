"""Draw a mask with characters: its pairs, or cells of many pairs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import ceil

from rich.text import Text

from attnscope.render import axes
from attnscope.render.colours import MARKS, Scale
from attnscope.render.masks import cell_size, tokens_of
from attnscope.render.styles import CYAN, ORANGE
from attnscope.render.text import can_show
from attnscope.results.maps import Token
from attnscope.results.masks import AttentionMask
from attnscope.results.planes import EMPTY, FULL, PARTIAL, Plane

STYLES = {EMPTY: "dim", PARTIAL: ORANGE, FULL: CYAN}
PAIRS, CELLS, ASCII = "·▒■", "·▒█", ".+#"
"""The characters for nothing, some and all of a pair or a cell; and in encodings that lack them."""

LONGEST = 24  # the most terminal cells of a query's token

PLAIN = Scale(0.0, (), "", "utf-8", MARKS)
"""The characters of a document without colours."""


@dataclass(frozen=True)
class Frame:
    """The room for a picture.

    Attributes:
        width: the most characters of a line.
        rows: the most rows.
        cell: the size of cells; None: as small as fits.
        scale: the characters that can be shown.
    """

    width: int
    rows: int
    cell: int | None
    scale: Scale


def picture(mask: AttentionMask, plane: Plane, frame: Frame) -> tuple[list[Text], list[Text]]:
    """Return the lines of a picture of one plane, and sentences that explain it.

    The lines are a ruler, and one for each row of cells.
    """
    scale = frame.scale
    queries = tokens_of(mask.query_tokens, plane)
    size = cell_size(mask, frame.cell, frame.rows, max(1, frame.width - 1 - len(str(plane.n_Q))))
    labels = _labels(queries, plane.n_Q, size, frame)
    indent = 1 + max(label.cell_len for label in labels)
    if frame.cell is None:
        size = cell_size(mask, None, frame.rows, max(1, frame.width - indent))
        labels = _labels(queries, plane.n_Q, size, frame)
        indent = 1 + max(label.cell_len for label in labels)
    width = 2 if 2 * ceil(plane.n_K / size) <= frame.width - indent else 1
    lines = [Text(" " * indent) + axes.ruler(_groups(plane.n_K, size), width)]
    for label, row in zip(labels, plane.grid(size, size), strict=True):
        line = label + Text(" " * (indent - label.cell_len))
        lines.append(line.append_text(_cells(row, width, size, scale)))
    for line in lines:
        line.rstrip()
    keys = tokens_of(mask.key_tokens, plane)
    differ = keys is not None and queries is not None and size == 1 and keys != queries
    return lines, [legend(size, scale), *([axes.listed(keys or [], scale)] if differ else [])]


def _labels(tokens: list[Token] | None, n: int, size: int, frame: Frame) -> list[Text]:
    """Return the labels of rows: the positions of their queries, and as many tokens as fit."""
    return axes.row_labels(_groups(n, size), tokens, min(LONGEST, frame.width // 4), frame.scale)


def _groups(n: int, size: int) -> list[range]:
    """Return the positions in each cell along an axis."""
    return [range(first, min(first + size, n)) for first in range(0, n, size)]


def _marks(size: int, scale: Scale) -> str:
    """Return the characters for nothing, some and all of a cell."""
    marks = PAIRS if size == 1 else CELLS
    return marks if can_show(marks, scale.encoding) else ASCII


def _cells(row: list[int], width: int, size: int, scale: Scale) -> Text:
    """Return the cells of a row; of cells with several pairs, neighbours touch."""
    marks, line = _marks(size, scale), Text()
    for kind, equal in groupby(row):
        text = marks[kind].ljust(width) if size == 1 else marks[kind] * width
        line.append(text * len(list(equal)), STYLES[kind])
    return line


def legend(size: int, scale: Scale) -> Text:
    """Return what rows, columns and characters mean."""
    marks = _marks(size, scale)
    nothing, some, everything = marks[EMPTY], marks[PARTIAL], marks[FULL]
    line = Text("rows are ").append("queries", axes.QUERY).append(", columns ").append("keys", axes.KEY)
    if size == 1:
        line.append("; ").append(everything, STYLES[FULL]).append(" visible, ")
        return line.append(nothing, STYLES[EMPTY]).append(" hidden")
    line.append(f"; a cell is {size:,} {scale.marks.times} {size:,} pairs: ")
    line.append(everything, STYLES[FULL]).append(" all visible, ")
    line.append(some, STYLES[PARTIAL]).append(" some, ")
    return line.append(nothing, STYLES[EMPTY]).append(" none")
