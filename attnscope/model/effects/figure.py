"""Draw effects at each position as a figure: a panel for each column, with a row for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.document.figure import CELL, MAX_INCHES, SHORTEST, draw_numbers, label_axis
from attnscope.model.effects.drawing import PositionGrid, grids_of
from attnscope.model.effects.result import HeadEffects
from attnscope.model.heads.figure import number_axis, write_title
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
