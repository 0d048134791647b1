"""Metrics of heads as grids: a row for each layer, a column for each head, a colour for each value."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from attnscope.document.columns import Column
from attnscope.document.pieces import shown_columns
from attnscope.models.heads.result import HeadMetrics, head_name
from attnscope.render.grids import Grid, by_stack
from attnscope.render.ranking import head_columns, leader_columns, shown
from attnscope.text import printable
from attnscope.units import MISSING, counted

MOST_CELLS = 20_000
"""The most cells of all grids of an output; of a larger table, as many metrics as fit."""

MOST_ROWS = 50
"""The most heads of a ranking."""


@dataclass(frozen=True)
class GridView:
    """A grid for the template.

    Attributes:
        metric, range, leader: the metric's name, its range, and the head of its largest value.
        heads: the numbers of the columns.
        rows: for each row the number of its layer, and for each cell its share of the largest value, in
            per cent, and its title.
    """

    metric: str
    range: str
    leader: str
    heads: list[int]
    rows: list[tuple[int, list[tuple[int, str]]]]


def grids(table: HeadMetrics) -> tuple[dict[str, list[GridView]], list[str]]:
    """Return the grids of each stack; and a notice if there is no room for all metrics."""
    metrics = table.shown_metrics if table.sort is None else [table.sort]
    n = max(1, MOST_CELLS // max(1, len(table.rows)))
    views = {}
    for stack, rows in by_stack(table).items():
        of_stack = [Grid.of(rows, name, powers=table.powers) for name in metrics[:n]]
        views[stack] = [_view(grid) for grid in of_stack if not grid.is_empty]
    left_out = metrics[n:]
    notice = (
        f"without a grid: {', '.join(left_out)}; table.ranked({left_out[0]!r}) shows it"
        if left_out
        else ""
    )
    return views, [notice] if notice else []


def _view(grid: Grid) -> GridView:
    top = max((value for value in grid.values.flat if not isnan(value)), default=0.0)
    rows = []
    for layer, values in zip(grid.layers, grid.values.tolist(), strict=True):
        cells = [
            (
                _share(value, top),
                f"{head_name(layer, head)}: {MISSING if isnan(value) else grid.text(value)}",
            )
            for head, value in zip(grid.heads, values, strict=True)
        ]
        rows.append((layer, cells))
    return GridView(grid.metric, grid.range(), grid.leader(), grid.heads, rows)


def _share(value: float, top: float) -> int:
    """Return a value as per cent of the largest."""
    return 0 if isnan(value) or top <= 0 else max(0, round(100 * value / top))


def ranking(table: HeadMetrics) -> tuple[list[Column], str]:
    """Return the table of heads, or of the first heads of each metric; and a line on those left out."""
    if not table.shown_metrics:
        return [], ""
    if table.sort is None and table.top is None:
        return shown_columns(leader_columns(table)), ""
    rows = shown(table)
    left_out = len(rows) - MOST_ROWS
    more = f"… {counted(left_out, 'more head')}: table.to_pandas()" if left_out > 0 else ""
    return shown_columns(head_columns(table, rows[:MOST_ROWS], table.sort)), more


def order(table: HeadMetrics) -> str:
    """Describe the order of the ranking, if there is one."""
    if table.sort is None:
        return ""
    meaning = printable(table.metrics[table.sort])
    return f"by {table.sort}, the {'smallest' if table.reverse else 'largest'} first: {meaning}"
