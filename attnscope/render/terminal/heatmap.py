"""One head's map in a terminal: queries downwards, keys across, each weight as a cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import isnan
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnscope.render import axes
from attnscope.render.colours import NOT_A_NUMBER, Scale
from attnscope.render.pooling import (
    SHOWN,
    borders,
    first_tokens,
    groups,
    positions,
    smaller_without,
    span,
)
from attnscope.render.terminal.patches import print_patches
from attnscope.render.terminal.row import print_row
from attnscope.render.terminal.table import print_line
from attnscope.results.maps import AttentionMap, AttentionMaps

if TYPE_CHECKING:
    import numpy as np

MOST_ROWS = 60  # on a terminal; of more, nobody sees the first and the last together
PIPED = 200  # columns that piped maps may have, for the sake of whole tokens
SHORTEST = 4  # letters of a key that are worth reading across
TALLEST = 10  # letters of a key written downwards
LONGEST = 24  # cells of a query's token
EVERY = 5  # columns from one position to the next, where keys are not written across
SMALLEST = 0.005  # weights below it are 0 %
HIDDEN = "; what a query cannot see is 0, and counts"


def print_heatmap(
    maps: AttentionMaps, map: AttentionMap, console: Console, *, query: int | None = None
) -> None:
    """Print what a head looks at: a map, a picture, or one query's weights as bars.

    A map has numbers in its cells where there is room for them, and else colours or shades alone.
    Where not even those have room, it is pooled: neighbouring tokens share a cell, which shows the
    largest of their weights.

    Args:
        maps: whose tokens they are.
        map: the head.
        console: where. On a terminal no line is wider than it, and a map has at most 60 rows; piped,
            it has all rows, and up to 200 columns.
        query: the position of the only query to show.
    """
    if maps.picture is not None:
        print_patches(maps, maps.picture, map.attention, console, query)
    elif query is not None:
        print_row(maps, map.attention, query, console)
    else:
        _print_map(maps, map.attention, console)


class Keys(Enum):
    """How the keys stand above their columns."""

    ACROSS = "written across"
    DOWN = "written downwards, one letter above the other"
    COUNTED = "as the positions of some of them"


@dataclass(frozen=True)
class Column:
    """A column of a map.

    Attributes:
        columns: of the map, those that share it.
        keys: the positions of their keys.
        text: the first of them, as it is written.
        style: of that text.
        width: in cells of the terminal.
        divided: whether another text begins with it, so that a line stands before it.
        left_out: whether it has no colour: its keys are those of a sink.
    """

    columns: range
    keys: range
    text: str
    style: str
    width: int
    divided: bool
    left_out: bool = False


@dataclass(frozen=True)
class Layout:
    """How a map is drawn.

    Attributes:
        scale: what weights look like.
        indent: cells before the first column, for the queries.
        columns: of the map.
        keys: how keys stand above them.
        numbers: whether the weights are written into the cells.
    """

    scale: Scale
    indent: int
    columns: list[Column]
    keys: Keys
    numbers: bool

    def head(self) -> Iterator[Text]:
        """The lines above the map, with the keys."""
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
        """The positions of keys, each above its column as far as there is room."""
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
        """A row of the map.

        Args:
            label: what stands before it, of at most `indent` cells.
            weights: one for each column.
        """
        cells = []
        for weight, each in zip(weights, self.columns, strict=True):
            if each.left_out and not self.numbers:
                cells.append(Text(self.scale.marks.left_out * each.width, "dim"))
            elif self.numbers:
                number = _percent(weight, self.scale).rjust(each.width // 2 + 1).ljust(each.width)
                cells.append(Text(number, "dim") if each.left_out else self.scale.cell(weight, number))
            else:
                cells.append(self.scale.blank(weight, each.width))
        return self.line(label, cells)

    def divider(self) -> Text:
        """The line between the queries of two texts."""
        rule = self.scale.marks.horizontal
        rules = [Text(rule * each.width, "dim") for each in self.columns]
        return self.line(Text(rule * self.indent, "dim"), rules, self.scale.marks.cross)

    def line(self, label: Text, cells: Iterable[Text], between: str | None = None) -> Text:
        """A label and the cells of all columns, with `between` between two texts, or a vertical line."""
        line = label + Text(" " * (self.indent - label.cell_len))
        for cell, each in zip(cells, self.columns, strict=True):
            line.append(between or self.scale.marks.vertical if each.divided else "", "dim").append_text(
                cell
            )
        return line


def _print_map(maps: AttentionMaps, attention: np.ndarray, console: Console) -> None:
    """Print the map, its scale, and what a reader must know of it."""
    scale = Scale.of(console, attention)
    terminal = console.is_terminal
    room = console.width if terminal else max(console.width, PIPED)
    queries, _ = first_tokens(maps)
    rows = groups(queries, MOST_ROWS if terminal else len(queries))
    labels = _labels(maps, rows, min(LONGEST, room // 4), scale)
    indent = 1 + max(label.cell_len for label in labels)
    layout = _layout(maps, room, indent, scale)
    cells, left_out = smaller_without(maps, attention, rows, [each.columns for each in layout.columns])
    columns = [replace(each, left_out=out) for each, out in zip(layout.columns, left_out, strict=True)]
    coloured = cells[:, [not out for out in left_out]]
    layout = replace(layout, columns=columns, scale=Scale.of(console, coloured))
    starts = borders(queries)
    lines = list(layout.head())
    for row, label, weights in zip(rows, labels, cells.tolist(), strict=True):
        if row.start in starts:
            lines.append(layout.divider())
        lines.append(layout.row(label, weights))
    for line in lines:
        if not scale.ramp:
            line.rstrip()
        console.print(line, soft_wrap=True)
    print_line(console, Text())
    if scale.ramp or not layout.numbers:
        print_line(console, layout.scale.legend(console.width))
    for sentence in _sentences(maps, rows, layout):
        print_line(console, sentence)


def _labels(maps: AttentionMaps, rows: list[range], width: int, scale: Scale) -> list[Text]:
    """What stands before each row: its queries' positions, and as many tokens as fit into `width`."""
    spans = [span(positions(maps)[0], row) for row in rows]
    numbers = [axes.range_text(each, scale) for each in spans]
    own = [maps.query_tokens[each.start - maps.first_query :][: min(len(each), width)] for each in spans]
    texts = [axes.group_text(tokens, scale) for tokens in own]
    number_width = max(map(cell_len, numbers))
    text_width = min(width, max(map(cell_len, texts)))
    labels = []
    for tokens, number, text in zip(own, numbers, texts, strict=True):
        style = axes.token_style(tokens[0])
        label = Text(" " * (number_width - cell_len(number))).append(number, axes.QUERY).append(" ")
        labels.append(label + axes.left(text, text_width, scale, style))
    return labels


def _layout(maps: AttentionMaps, room: int, indent: int, scale: Scale) -> Layout:
    """The layout that says most in the room there is.

    Args:
        maps: whose keys stand above it.
        room: columns of the terminal.
        indent: how many of them stand before the map.
        scale: what weights look like.
    """
    (_, tokens), (_, places) = first_tokens(maps), positions(maps)
    starts = borders(tokens)
    room -= indent + len(starts)
    texts = [axes.token_text(token, scale) for token in tokens]
    digits = max(1, len(_percent(scale.top, scale)))
    shared = groups(tokens, len(tokens))
    across = _widths([cell_len(text) for text in texts], digits, room)
    if across is not None:
        widths, keys, numbers = across, Keys.ACROSS, True
    elif len(tokens) * (digits + 1) <= room:
        widths, keys, numbers = [digits + 1] * len(tokens), Keys.DOWN, True
    elif len(tokens) * 2 <= room:
        widths, keys, numbers = [2] * len(tokens), Keys.DOWN, False
    else:
        shared = groups(tokens, max(1, room))
        width = max(1, min(2, room // len(shared)))
        widths, keys, numbers = [width] * len(shared), Keys.COUNTED, False
    columns = [
        Column(
            each,
            span(places, each),
            texts[each.start],
            axes.token_style(tokens[each.start]),
            width,
            each.start in starts,
        )
        for each, width in zip(shared, widths, strict=True)
    ]
    return Layout(scale, indent, columns, keys, numbers)


def _widths(lengths: list[int], digits: int, room: int) -> list[int] | None:
    """How wide columns are whose keys are written across: the longest keys are cut first.

    Args:
        lengths: of the keys.
        digits: of the longest number in a cell.
        room: for all columns together.

    Returns:
        The widths, a blank included; None where too little would be left of the keys.
    """
    longest = max(lengths)
    for most in range(longest, min(SHORTEST, longest) - 1, -1):
        widths = [max(digits, min(length, most)) + 1 for length in lengths]
        if sum(widths) <= room:
            return widths
    return None


def _percent(weight: float, scale: Scale) -> str:
    if isnan(weight):
        return NOT_A_NUMBER
    if weight < SMALLEST:
        return scale.marks.small if weight > 0 else ""
    return f"{100 * weight:.0f}"


def _sentences(maps: AttentionMaps, rows: list[range], layout: Layout) -> Iterator[Text]:
    """What a reader must know of a map."""
    marks = layout.scale.marks
    said = Text.assemble("rows are ", ("queries", axes.QUERY), ", columns ", ("keys", axes.KEY))
    if layout.numbers:
        said.append(f"; weights in %, {marks.small} below 0.5, blank 0")
    yield said
    coloured = layout.scale.ramp or not layout.numbers
    if coloured and any(column.left_out for column in layout.columns):
        grey = "grey" if layout.numbers else marks.left_out * 2
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


def _size(high: int, wide: int, scale: Scale) -> str:
    return f"{high} {scale.marks.times} {wide}"
