"""Draw metrics of all heads: a panel for each metric, with a row for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from textwrap import wrap
from typing import TYPE_CHECKING

from attnscope.base.errors import AttnscopeError, OptionError, no_such_part
from attnscope.document.figure import (
    BETWEEN_LABELS,
    GREY,
    SHORTEST,
    check_matplotlib,
    draw_numbers,
    drawable,
)
from attnscope.model.heads.grid import Grid, by_stack
from attnscope.model.heads.ranking import several_stacks
from attnscope.model.heads.result import HeadMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SMALL, LARGE = 2.4, 6.0  # inches of a panel, at most: of one among several, and of a single one
CELL, LARGE_CELL = 0.22, 0.5  # inches, at most, likewise
BESIDE, BELOW = 1.15, 0.8  # inches between panels: for scales and layers, and for heads and titles
DIGIT = 0.02  # inches to add for each digit between numbers side by side
MOST_BESIDE = 5  # panels of a stack, if there are several stacks
ABOVE = 0.4  # inches from panels to the lines above them
LETTER, LINE, NARROWEST = 0.05, 0.13, 76  # inches of a letter and of a line; letters of a line
EVERY = (1, 2, 5, 10, 20, 50)  # possible distances between labelled layers or heads


def plot(table: HeadMetrics, metrics: Sequence[str] | None) -> Figure:
    """Draw metrics as `HeadMetrics.plot` documents."""
    check_matplotlib()
    from matplotlib import pyplot

    figure = pyplot.figure()
    try:
        draw_metrics(figure, table, drawn_metrics(table) if metrics is None else metrics)
    except AttnscopeError:
        pyplot.close(figure)
        raise
    return figure


def drawn_metrics(table: HeadMetrics) -> list[str]:
    """Return the metrics that a figure shows: the one that ranks the heads, else all that are shown."""
    return [table.sort] if table.sort else table.shown_metrics or list(table.metrics)


def draw_metrics(figure: Figure, table: HeadMetrics, metrics: Sequence[str]) -> None:
    """Draw a panel for each metric, each on its own colour scale; each stack begins a new row."""
    if not metrics:
        raise OptionError("metrics is an empty list.", hint=f"metrics={[*table.metrics][:1]}")
    for each in metrics:
        if each not in table.metrics:
            raise no_such_part(each, table.metrics, "this table")
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
    write_title(figure, table, metrics, ABOVE)


def write_title(
    figure: Figure, table: HeadMetrics, metrics: Sequence[str], above: float, more: Sequence[str] = ()
) -> None:
    """Write the title, and below it what the numbers are, `above` inches from the panels.

    The figure has its final size.
    """
    wide, high = figure.get_size_inches()
    letters = max(NARROWEST, int(wide / LETTER))
    texts = [*table.figure_lines(metrics), *more]
    lines = [line for text in texts for line in wrap(drawable(text), letters)]
    for i, line in enumerate(reversed(lines)):
        y = 1 + (above + LINE * i) / high
        figure.text(0, y, line, size="small", color=GREY, parse_math=False)
    y = 1 + (above + LINE * len(lines)) / high
    figure.text(0, y, drawable(table.title), weight="bold", parse_math=False)


def _draw(figure: Figure, grid: Grid, left: float, top: float, cell: float) -> Axes:
    """Draw one metric in cells of `cell` inches, with its scale; heads without a value are grey."""
    size = len(grid.heads) * cell, len(grid.layers) * cell
    axes = draw_numbers(
        figure, grid.values, left, top, size, signed=grid.signed, scaled=not grid.is_empty
    )
    number_axis(axes.xaxis, grid.heads, cell, BETWEEN_LABELS + DIGIT * len(str(grid.heads[-1])))
    number_axis(axes.yaxis, grid.layers, cell, BETWEEN_LABELS)
    axes.set(xlabel="head", ylabel="layer")
    if grid.is_empty:
        axes.text(0.5, 0.5, grid.without, color=GREY, ha="center", va="center", transform=axes.transAxes)
    return axes


def number_axis(axis: Axis, numbers: list[int], cell: float, least: float) -> None:
    """Label layers or heads; skip some if labels would be closer than `least` inches."""
    every = next((each for each in EVERY if each * cell >= least), EVERY[-1])
    shown = range(0, len(numbers), every)
    axis.set_ticks(list(shown), labels=[str(numbers[i]) for i in shown])
