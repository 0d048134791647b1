"""Draw effects at each position: a row for each token, a column for each layer, or each head of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnscope.base.text import printable, shortened
from attnscope.base.units import number_text
from attnscope.document.blocks import Drawing
from attnscope.document.columns import Column
from attnscope.document.figure import CELL, MAX_INCHES, SHORTEST, draw_numbers, label_axis
from attnscope.document.grid.colours import ColourScale, print_picture_line
from attnscope.document.grid.pooling import chunks
from attnscope.document.html import rendered
from attnscope.document.markdown import markdown_table
from attnscope.document.terminal import print_line
from attnscope.model.effects.result import HeadEffects
from attnscope.model.heads.figure import number_axis, write_title
from attnscope.model.heads.result import HeadRow, head_name
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure


LETTERS = 2  # characters of a cell
LONGEST_TOKEN = 12
EVERY = 5  # columns between their numbers
MOST_CELLS = 12_000
"""The most cells of a picture in HTML; of longer texts, neighbouring positions share cells."""


@dataclass(frozen=True)
class PositionGrid:
    """The strongest effects of one column of the table, at each position."""

    column: str  #: the name of the column
    numbers: list[int]  #: those of layers; or if a single layer is selected, those of its heads
    of_heads: bool  #: whether these are heads
    values: np.ndarray  #: `n_position n_number`; NaN: none is known, or above the resolution
    heads: list[list[str]]  #: likewise, the names of the heads whose effects these are

    @classmethod
    def of(cls, table: HeadEffects, column: str) -> PositionGrid:
        """Select the strongest effect among the heads of each layer, at each position."""
        import numpy as np

        of_heads = len({row.layer for row in table.rows}) == 1

        def number_of(row: HeadRow) -> int:
            return row.head if of_heads else row.layer

        numbers = sorted({number_of(row) for row in table.rows})
        values = np.full((len(table.places), len(numbers)), np.nan)
        heads = [[""] * len(numbers) for _ in table.places]
        least = table.resolution.get(column, 0.0)
        for row, effects in zip(table.rows, table.positions[column], strict=True):
            j = numbers.index(number_of(row))
            for i, effect in enumerate(effects):
                if abs(effect) > least and not abs(effect) <= abs(values[i, j]):
                    values[i, j], heads[i][j] = effect, head_name(row.layer, row.head)
                elif effect == 0 and isnan(values[i, j]) and not least:
                    values[i, j] = 0.0
        return cls(column, numbers, of_heads, values, heads)

    @property
    def what(self) -> str:
        """What its cells are."""
        which = "each head" if self.of_heads else "the strongest head of each layer"
        return f"{which}, at each position"

    def pooled(self, most: int) -> tuple[list[range], np.ndarray, list[list[str]]]:
        """Return at most so many rows, each with the strongest of some neighbouring positions.

        Return the indices of the positions of each row; and `values` and `heads` of these rows.
        """
        import numpy as np

        rows = chunks(len(self.values), most)
        values = np.full((len(rows), len(self.numbers)), np.nan)
        heads = [[""] * len(self.numbers) for _ in rows]
        for i, row in enumerate(rows):
            sizes = np.nan_to_num(np.abs(self.values[row.start : row.stop]), nan=-1.0)
            for j, strongest in enumerate(sizes.argmax(axis=0) + row.start):
                values[i, j], heads[i][j] = self.values[strongest, j], self.heads[strongest][j]
        return rows, values, heads


def grids_of(table: HeadEffects) -> list[PositionGrid]:
    """Return the grids that are drawn: that of the column that ranks the heads, or of all columns."""
    names = list(table.positions) if table.sort is None else [table.sort]
    return [PositionGrid.of(table, name) for name in names]


@dataclass(frozen=True)
class PositionsDrawing(Drawing):
    """The strongest effects at each position."""

    table: HeadEffects

    def label(self, places: Sequence[int]) -> str:
        """Return a position with its token; of several, the first and the last."""
        text = shortened(printable(self.table.token(places[0]).strip()), LONGEST_TOKEN)
        if len(places) > 1:
            return f"{places[0]}–{places[-1]} {text}…"
        return f"{places[0]} {text}".rstrip()

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print a picture for each column."""
        for grid in grids_of(self.table):
            self._print(grid, console)

    def _print(self, grid: PositionGrid, console: Console) -> None:
        scale = ColourScale.of(console, grid.values, signed=True)
        labels = [self.label([place]) for place in self.table.places]
        corner = "position, head" if grid.of_heads else "position, layer"
        indent = max(map(len, [*labels, corner])) + 1
        print_line(console, Text())
        print_line(console, Text.assemble((grid.column, "bold"), f"  {grid.what}"))
        most = max(1, (console.width - indent) // LETTERS)
        for band in chunks(len(grid.numbers), -(-len(grid.numbers) // most)):
            header = Text(corner.ljust(indent), "dim")
            for i, number in enumerate(grid.numbers[band.start : band.stop]):
                header.append((str(number) if i % EVERY == 0 else "").ljust(LETTERS)[:LETTERS], "bold")
            print_picture_line(console, scale, header)
            cells = grid.values[:, band.start : band.stop].tolist()
            for name, effects in zip(labels, cells, strict=True):
                line = Text(name.ljust(indent))
                for effect in effects:
                    line.append_text(scale.blank(0.0 if isnan(effect) else effect, LETTERS))
                print_picture_line(console, scale, line)
        print_line(console, scale.legend(console.width))

    def html(self) -> str:
        """Return a grid for each column."""
        return rendered(TEMPLATE, grids=[self._svg(grid) for grid in grids_of(self.table)])

    def _svg(self, grid: PositionGrid) -> dict[str, Any]:
        """Return what a grid's drawing consists of; a cell is 1 wide and high."""
        import numpy as np

        rows, values, heads = grid.pooled(max(1, MOST_CELLS // len(grid.numbers)))
        top = float(np.nan_to_num(np.abs(values)).max(initial=0.0)) or 1.0
        places = self.table.places
        labels = [self.label([places[i] for i in row]) for row in rows]
        left = 0.6 * max(map(cell_len, labels)) + 0.5
        lines = [
            {
                "label": label,
                "cells": [
                    {
                        "share": f"{abs(effect) / top:.2f}",
                        "below": effect < 0,
                        "title": f"{label}, {head}: {number_text(effect)}",
                        "x": round(left + j, 2),
                    }
                    for j, (effect, head) in enumerate(zip(effects, of_row, strict=True))
                    if not isnan(effect) and effect
                ],
            }
            for label, effects, of_row in zip(labels, values.tolist(), heads, strict=True)
        ]
        every = 1 if len(grid.numbers) <= 2 * EVERY else EVERY
        return {
            "column": grid.column,
            "what": grid.what,
            "axis": "heads" if grid.of_heads else "layers",
            "top": number_text(top),
            "numbers": [(round(left + j + 0.5, 2), n) for j, n in enumerate(grid.numbers)][::every],
            "left": round(left - 0.3, 2),
            "width": round(left + len(grid.numbers), 2),
            "height": len(lines) + 1,
            "lines": lines,
        }

    def markdown(self) -> list[str]:
        """Return a table for each column, with a row for each position."""
        paragraphs = []
        for grid in grids_of(self.table):
            places = [[(self.label([place]), "")] for place in self.table.places]
            columns = [Column("position", "position", places, list(self.table.places), lead=True)]
            for j, number in enumerate(grid.numbers):
                name = f"{'head' if grid.of_heads else 'layer'} {number}"
                effects = grid.values[:, j].tolist()
                cells = [[("" if isnan(each) else number_text(each), "")] for each in effects]
                columns.append(Column(name, name, cells, effects, right=True))
            paragraphs += [f"{grid.column}: {grid.what}", markdown_table(columns)]
        return paragraphs


TEMPLATE = """\
<div class="grids">
{% for grid in grids %}
<figure><figcaption><span class="bold">{{ grid.column }}</span> <span class="soft">{{ grid.what }}</span><br><span class="soft">rows are positions, columns {{ grid.axis }}; colours from −{{ grid.top }} to {{ grid.top }}</span></figcaption>
<svg class="positions" viewBox="0 0 {{ grid.width }} {{ grid.height }}" width="{{ (15 * grid.width) | round(1) }}" height="{{ 15 * grid.height }}" role="img" aria-label="{{ grid.column }}: {{ grid.what }}">
<rect class="frame" x="{{ grid.left + 0.3 }}" y="1" width="{{ grid.width - grid.left - 0.3 }}" height="{{ grid.height - 1 }}"/>
{% for x, number in grid.numbers %}<text class="number" x="{{ x }}" y="0.8">{{ number }}</text>{% endfor %}
{% for line in grid.lines %}
{% set y = loop.index %}
<g><text x="{{ grid.left }}" y="{{ y + 0.75 }}">{{ line.label }}</text>{% for cell in line.cells %}<rect {% if cell.below %}class="below" {% endif %}x="{{ cell.x }}" y="{{ y }}" width="0.94" height="0.94" fill-opacity="{{ cell.share }}"><title>{{ cell.title }}</title></rect>{% endfor %}</g>
{% endfor %}
</svg></figure>
{% endfor %}
</div>
"""  # noqa: E501


# The same as a figure: a panel for each column.

LARGEST = 400  # rows: fewer than pixels, so that all are visible
BETWEEN = 0.9  # inches from a panel to the next, for its scale
ABOVE = 0.6  # inches from the top of panels to the title


def draw_positions(figure: Figure, table: HeadEffects) -> None:
    """Draw a panel for each column: positions downwards, layers across, or heads of a single layer."""
    grids = grids_of(table)
    n_row = min(len(table.places), LARGEST)
    height = max(SHORTEST, min(MAX_INCHES, CELL * n_row))
    wide = [max(3 * CELL, CELL * len(grid.numbers)) for grid in grids]
    width = sum(wide) + BETWEEN * (len(grids) - 1)
    figure.set_size_inches(width, height)
    left = 0.0
    for grid, each in zip(grids, wide, strict=True):
        _draw(figure, table, grid, left, (each, height), named=grid is grids[0])
        left += each + BETWEEN
    names = [grid.column for grid in grids]
    write_title(figure, table, names, ABOVE, [f"cells: {grids[0].what}"])


def _draw(
    figure: Figure,
    table: HeadEffects,
    grid: PositionGrid,
    left: float,
    size: tuple[float, float],
    *,
    named: bool,
) -> None:
    """Draw one column and its colour scale, `left` inches from the left, and of a size in inches.

    If the panel is `named`, its rows have tokens, which panels beside each other share.
    """
    width, height = size
    rows, values, _ = grid.pooled(LARGEST)
    axes = draw_numbers(figure, values, left, 0, size, signed=True)
    cell = width / len(grid.numbers)
    number_axis(axes.xaxis, grid.numbers, cell, 0.15 + 0.05 * len(str(grid.numbers[-1])))
    axes.set_xlabel("head" if grid.of_heads else "layer")
    places = [range(table.places[row.start], table.places[row.stop - 1] + 1) for row in rows]
    if named:
        tokens = [Token(table.token(each.start)) for each in places]
        label_axis(axes, tokens, places, height / len(rows), "y")
        axes.set_ylabel("position")
    else:
        axes.set_yticks([])
    axes.set_title(grid.column, loc="left")
