"""Print a grid of weights in a terminal: a row for each query, a column for each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import isnan
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnscope.document.grid import axes
from attnscope.document.grid.colours import NOT_A_NUMBER, ColourScale, print_picture_line
from attnscope.document.grid.pooling import (
    SHOWN,
    TokenGrid,
    borders,
    first_tokens,
    groups,
    positions,
    smaller_without,
    span,
)
from attnscope.document.terminal import print_line, print_parts

if TYPE_CHECKING:
    import numpy as np

MOST_ROWS = 60  # on a terminal; more would not be visible at the same time
PIPED = 200  # columns that piped maps may have, so that tokens need not be truncated
SHORTEST = 4  # the least letters of a key written horizontally
TALLEST = 10  # the most letters of a key written vertically
TOKEN_CELLS = 24  # the most terminal cells of a query's token
EVERY = 5  # columns between positions in the ruler above the map
SMALLEST, FULL = 0.005, 0.995  # weights below are 0 %, and weights from here on are 100 %
HIDDEN = "; masked weights count as 0"


def print_heatmap(
    maps: TokenGrid,
    attention: np.ndarray,
    console: Console,
    *,
    unit: float | None = None,
    what: str = "weights",
) -> None:
    """Print a map, its colour scale, and sentences that explain it.

    Its cells contain numbers if two digits fit, otherwise colours or shades alone. If even these do not
    fit, the map is pooled: neighbouring tokens share a cell, which shows the largest of their weights.
    On a terminal, a map fits its width and has at most 60 rows; piped, it has all rows and up to 200
    columns.

    `unit` is the number that is 100 %, for numbers that are not weights, and so no shares of 1; None: 1.
    `what` says what the numbers are.
    """
    attention = attention if unit is None else attention / unit
    scale = ColourScale.of(console, attention)
    terminal = console.is_terminal
    room = console.width if terminal else max(console.width, PIPED)
    queries, _ = first_tokens(maps)
    rows = groups(queries, MOST_ROWS if terminal else len(queries))
    labels = _labels(maps, rows, min(TOKEN_CELLS, room // 4), scale)
    indent = 1 + max(label.cell_len for label in labels)
    layout = _layout(maps, room, indent, scale, packed=console.color_system is not None)
    cells, left_out = smaller_without(maps, attention, rows, [each.columns for each in layout.columns])
    columns = [replace(each, left_out=out) for each, out in zip(layout.columns, left_out, strict=True)]
    coloured = cells[:, [not out for out in left_out]]
    layout = replace(layout, columns=columns, scale=ColourScale.of(console, coloured))
    starts = borders(queries)
    lines = list(layout.head())
    for row, label, weights in zip(rows, labels, cells.tolist(), strict=True):
        if row.start in starts:
            lines.append(layout.divider())
        lines.append(layout.row(label, weights))
    for line in lines:
        print_picture_line(console, scale, line)
    print_line(console, Text())
    if scale.ramp or not layout.digits:
        legend = layout.scale.legend(console.width, percent=bool(layout.digits), unit=unit or 1.0)
        print_line(console, legend)
    has_full = layout.digits == 2 and bool((cells >= FULL).any())
    for sentence in _sentences(maps, rows, layout, has_full=has_full, unit=unit, what=what):
        print_parts(console, sentence, "; ")


class Keys(Enum):
    """The format of the keys above their columns."""

    ACROSS = "written across"
    DOWN = "written vertically, one letter per line"
    COUNTED = "as the positions of some of them"


@dataclass(frozen=True)
class GridColumn:
    """A column of a map."""

    columns: range  #: the columns of the attention matrix that are pooled into it
    keys: range  #: the positions of their keys
    text: str  #: the first key, as it is written
    style: str  #: the style of that text
    width: int  #: in terminal cells
    divided: bool  #: whether a further text begins with it, so that a line is drawn before it
    left_out: bool = False  #: whether it has no colour, because its keys belong to a sink


@dataclass(frozen=True)
class Geometry:
    """The layout of a map."""

    scale: ColourScale
    indent: int  #: terminal cells before the first column, for the queries
    columns: list[GridColumn]
    keys: Keys  #: how keys are written above them
    digits: int  #: the longest number in the cells; 0 if they contain none

    def head(self) -> Iterator[Text]:
        """Yield the lines with the keys above the map."""
        if self.keys is Keys.ACROSS:
            positions = [
                axes.centred(str(each.keys.start), each.width, self.scale, axes.KEY)
                for each in self.columns
            ]
            yield self.line(Text(), positions)
            tokens = [
                axes.centred(each.text, each.width, self.scale, each.style) for each in self.columns
            ]
            yield self.line(Text(), tokens)
            return
        yield self._ruler()
        if self.keys is Keys.DOWN:
            height = min(TALLEST, max(axes.height(each.text) for each in self.columns))
            letters = [
                axes.downwards(each.text, height, each.width, self.scale) for each in self.columns
            ]
            for line in zip(*letters, strict=True):
                cells = [
                    Text(letter, each.style) for letter, each in zip(line, self.columns, strict=True)
                ]
                yield self.line(Text(), cells)

    def _ruler(self) -> Text:
        """Return a line with the positions of some keys, each above its column."""
        line, free = Text(" " * self.indent), self.indent
        place, end = self.indent, self.indent + sum(each.width + each.divided for each in self.columns)
        for i, each in enumerate(self.columns):
            place += each.divided
            number = str(each.keys.start)
            if i % EVERY == 0 and place >= free and place + len(number) <= end:
                line.append(" " * (place - line.cell_len)).append(number, axes.KEY)
                free = place + len(number) + 1
            place += each.width
        return line

    def row(self, label: Text, weights: Iterable[float]) -> Text:
        """Return a row of the map, with a label of at most `indent` cells.

        Of two numbers without a blank between them, one is bold.
        """
        cells = []
        before, style = "", ""
        for weight, each in zip(weights, self.columns, strict=True):
            if self.digits:
                number = _percent(weight, self.scale, self.digits)
                touches = before.isdigit() and len(number) == each.width
                before, style = number, "bold" if touches and not style else ""
                text = number.rjust(each.width // 2 + 1).ljust(each.width)
                dim = f"dim {style}"
                cells.append(Text(text, dim) if each.left_out else self.scale.cell(weight, text, style))
            elif each.left_out:
                cells.append(Text(self.scale.marks.left_out * each.width, "dim"))
            else:
                cells.append(self.scale.blank(weight, each.width))
        return self.line(label, cells)

    def divider(self) -> Text:
        """Return the line between the queries of two texts."""
        rule = self.scale.marks.horizontal
        rules = [Text(rule * each.width, "dim") for each in self.columns]
        return self.line(Text(rule * self.indent, "dim"), rules, self.scale.marks.cross)

    def line(self, label: Text, cells: Iterable[Text], between: str | None = None) -> Text:
        """Join a label and the cells of all columns; between two texts comes `between`, or a bar."""
        line = label + Text(" " * (self.indent - label.cell_len))
        for cell, each in zip(cells, self.columns, strict=True):
            line.append(between or self.scale.marks.vertical if each.divided else "", "dim").append_text(
                cell
            )
        return line


def _labels(maps: TokenGrid, rows: list[range], width: int, scale: ColourScale) -> list[Text]:
    """Return the label of each row: its queries' positions, and as many tokens as fit into `width`."""
    spans = [span(positions(maps)[0], row) for row in rows]
    numbers = [axes.range_text(each, scale) for each in spans]
    tokens_of_rows = [
        maps.query_tokens[each.start - maps.first_query :][: min(len(each), width)] for each in spans
    ]
    texts = [axes.group_text(tokens, scale) for tokens in tokens_of_rows]
    number_width = max(map(cell_len, numbers))
    text_width = min(width, max(map(cell_len, texts)))
    labels = []
    for tokens, number, text in zip(tokens_of_rows, numbers, texts, strict=True):
        style = axes.token_style(tokens[0])
        label = Text(" " * (number_width - cell_len(number))).append(number, axes.QUERY).append(" ")
        labels.append(label + axes.left(text, text_width, scale, style))
    return labels


def _layout(maps: TokenGrid, room: int, indent: int, scale: ColourScale, *, packed: bool) -> Geometry:
    """Choose the most detailed layout that fits.

    If it is `packed`, numbers need no blank between them, because one of them can be bold.
    """
    (_, tokens), (_, places) = first_tokens(maps), positions(maps)
    starts = borders(tokens)
    room -= indent + len(starts)
    texts = [axes.token_text(token, scale) for token in tokens]
    digits = max(1, len(_percent(scale.top, scale)))
    shared = groups(tokens, len(tokens))
    across = _widths([cell_len(text) for text in texts], digits, room)
    each = room // len(tokens)  # the room of a column
    if across is not None:
        widths, keys = across, Keys.ACROSS
    elif each >= min(digits + 1, 3 - packed):
        digits = min(digits, max(2, each - 1))
        widths, keys = [min(digits + 1, each)] * len(tokens), Keys.DOWN
    elif each >= 2:
        widths, keys, digits = [2] * len(tokens), Keys.DOWN, 0
    else:
        shared = groups(tokens, max(1, room))
        width = max(1, min(2, room // len(shared)))
        widths, keys, digits = [width] * len(shared), Keys.COUNTED, 0
    columns = [
        GridColumn(
            each,
            span(places, each),
            texts[each.start],
            axes.token_style(tokens[each.start]),
            width,
            each.start in starts,
        )
        for each, width in zip(shared, widths, strict=True)
    ]
    return Geometry(scale, indent, columns, keys, digits)


def _widths(lengths: list[int], digits: int, room: int) -> list[int] | None:
    """Return the widths of columns whose keys are written horizontally; the longest are truncated first.

    They include a blank, and numbers of `digits` digits fit. None: too little would be left of the keys.
    """
    longest = max(lengths)
    for most in range(longest, min(SHORTEST, longest) - 1, -1):
        widths = [max(digits, min(length, most)) + 1 for length in lengths]
        if sum(widths) <= room:
            return widths
    return None


def _percent(weight: float, scale: ColourScale, digits: int = 3) -> str:
    if isnan(weight):
        return NOT_A_NUMBER
    if weight < SMALLEST:
        return scale.marks.small if weight > 0 else ""
    if weight >= FULL and digits < 3:
        return scale.marks.full
    return f"{100 * weight:.0f}"


def _sentences(
    maps: TokenGrid,
    rows: list[range],
    layout: Geometry,
    *,
    has_full: bool,
    unit: float | None,
    what: str,
) -> Iterator[Text]:
    """Yield sentences that explain a map."""
    marks = layout.scale.marks
    sentence = Text.assemble("rows are ", ("queries", axes.QUERY), ", columns ", ("keys", axes.KEY))
    if layout.digits:
        full = f", {marks.full} 100" if has_full else ""
        shares = f"{what} in %" if unit is None else f"{what} in % of the largest, {unit:.3g}"
        sentence.append(f"; {shares}, {marks.small} below 0.5, blank 0{full}")
    yield sentence
    coloured = layout.scale.ramp or not layout.digits
    if coloured and any(column.left_out for column in layout.columns):
        grey = "grey" if layout.digits else marks.left_out * layout.columns[0].width
        yield Text(f"columns of the sink are {grey}, and the scale leaves them out")
    n_Q, n_K = len(maps.query_tokens), len(maps.key_tokens)
    if (len(rows), len(layout.columns)) != (n_Q, n_K):
        kind = "max" if maps.pooling is None else maps.pooling.shown
        high = max(len(span(positions(maps)[0], row)) for row in rows)
        wide = max(len(column.keys) for column in layout.columns)
        yield Text(
            f"{_size(n_Q, n_K, layout.scale)} weights pooled to"
            f" {_size(len(rows), len(layout.columns), layout.scale)} cells: each shows {SHOWN[kind]} of"
            f" {_size(high, wide, layout.scale)}" + (HIDDEN if kind == "mean" else "")
        )
    elif layout.keys is Keys.COUNTED and maps.key_tokens != maps.query_tokens:
        yield axes.listed(maps.key_tokens, layout.scale)


def _size(high: int, wide: int, scale: ColourScale) -> str:
    return f"{high} {scale.marks.times} {wide}"
