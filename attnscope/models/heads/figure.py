"""Draw metrics of all heads: a panel for each metric, with a row for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import TYPE_CHECKING

from attnscope.document.figure import (
    BETWEEN_LABELS,
    COLOURS,
    GREY,
    SIGNED_COLOURS,
    THIN,
    drawable,
)
from attnscope.models.heads.grid import Grid, by_stack
from attnscope.models.heads.ranking import several_stacks
from attnscope.models.heads.result import HeadMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SMALL, LARGE = 2.4, 6.0  # inches of a panel, at most: of one among several, and of a single one
CELL, LARGE_CELL = 0.22, 0.5  # inches, at most, likewise
BESIDE, BELOW = 1.15, 0.8  # inches between panels: for scales and layers, and for heads and titles
DIGIT = 0.02  # inches to add for each digit between numbers side by side
SHORTEST = 0.7  # inches, at least, of a colour scale; and of a panel, for its title
NO_VALUE = "0.85"  # a grey
MOST_BESIDE = 5  # panels of a stack, if there are several stacks
EVERY = (1, 2, 5, 10, 20, 50)  # possible distances between labelled layers or heads


def draw_metrics(figure: Figure, table: HeadMetrics, metrics: Sequence[str]) -> None:
    """Draw a panel for each metric, each on its own colour scale; each stack begins a new row.

    Args:
        figure: the figure to draw into.
        table: the measured metrics.
        metrics: the names of the metrics to draw, at least one.
    """
    stacks = by_stack(table)
    beside = min(len(metrics), MOST_BESIDE) if len(stacks) > 1 else ceil(sqrt(len(metrics)))
    places = []
    for i, (stack, rows) in enumerate(stacks.items()):
        for j, metric in enumerate(metrics):
            row, column = divmod(j, beside)
            title = f"{stack} · {metric}" if several_stacks(table) else metric
            place = i * ceil(len(metrics) / beside) + row, column
            places.append((place, title, Grid.of(table, rows, metric)))
    longest, largest = (LARGE, LARGE_CELL) if len(places) == 1 else (SMALL, CELL)
    n_layer = max(len(grid.layers) for *_, grid in places)
    n_head = max(len(grid.heads) for *_, grid in places)
    cell = min(largest, longest / max(n_layer, n_head))
    high, wide = (max(SHORTEST, cell * n) + gap for n, gap in ((n_layer, BELOW), (n_head, BESIDE)))
    figure.set_size_inches(beside * wide - BESIDE, (places[-1][0][0] + 1) * high - BELOW)
    for (row, column), title, grid in places:
        axes = _draw(figure, grid, column * wide, row * high, cell)
        axes.set_title(title, loc="left")
    _, height = figure.get_size_inches()
    figure.text(0, 1 + 0.4 / height, drawable(table.title), weight="bold", parse_math=False)


def _draw(figure: Figure, grid: Grid, left: float, top: float, cell: float) -> Axes:
    """Draw one metric and its colour scale; heads without a value are grey.

    Args:
        figure: the figure to draw into.
        grid: the metric.
        left, top: the position, in inches from the left and from the top.
        cell: the size of a head's square, in inches.
    """
    import numpy as np

    width, height = len(grid.heads) * cell, len(grid.layers) * cell
    axes = _axes(figure, left, top, width, height)
    axes.set_facecolor(NO_VALUE)
    sizes = np.abs(grid.values) if grid.signed else grid.values
    largest = max(0.0 if grid.is_empty else float(np.nanmax(sizes)), 0.0) or 1.0
    colours, lowest = (SIGNED_COLOURS, -largest) if grid.signed else (COLOURS, 0)
    image = axes.imshow(grid.values, colours, vmin=lowest, vmax=largest, aspect="auto")
    _number(axes.xaxis, grid.heads, cell, BETWEEN_LABELS + DIGIT * len(str(grid.heads[-1])))
    _number(axes.yaxis, grid.layers, cell, BETWEEN_LABELS)
    axes.set(xlabel="head", ylabel="layer")
    axes.tick_params(length=2, width=THIN)
    if grid.is_empty:
        axes.text(0.5, 0.5, "no value", color=GREY, ha="center", va="center", transform=axes.transAxes)
        return axes
    scale = _axes(figure, left + width + 0.1, top, 0.1, max(SHORTEST, min(height, 3.0)))
    bar = figure.colorbar(image, cax=scale, format="%.3g")
    bar.outline.set_linewidth(THIN)
    scale.tick_params(length=2, width=THIN)
    return axes


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at a position and of a size in inches, from the left and from the top."""
    all_width, all_height = figure.get_size_inches()
    box = left / all_width, 1 - (top + height) / all_height, width / all_width, height / all_height
    return figure.add_axes(box)


def _number(axis: Axis, numbers: list[int], cell: float, least: float) -> None:
    """Label layers or heads; skip some if labels would be closer than `least` inches."""
    every = next((each for each in EVERY if each * cell >= least), EVERY[-1])
    shown = range(0, len(numbers), every)
    axis.set_ticks(list(shown), labels=[str(numbers[i]) for i in shown])
