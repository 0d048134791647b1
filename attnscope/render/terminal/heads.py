"""Print metrics of a model's heads on a console."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.comparison.map_differences import MapDifferences
from attnscope.document.terminal import (
    print_columns,
    print_heading,
    print_line,
    print_notices,
)
from attnscope.models.heads.result import HeadMetrics, HeadRow
from attnscope.render.heads import heads_heading
from attnscope.render.ranking import head_columns, leader_columns, shown
from attnscope.render.terminal.map_differences import print_changed_maps
from attnscope.render.terminal.metric_grid import print_grids
from attnscope.units import counted

FEW = 12
"""Up to this number, heads are listed in a table and not drawn as a grid; so are those of one layer."""


def print_heads(table: HeadMetrics, console: Console, *, wide: bool = False) -> None:
    """Print heads ranked by one metric, or every metric at a glance.

    Args:
        table: the measured metrics, and how its heads are ranked; a grid of that metric follows.
        console: the console; piped tables are never truncated.
        wide: whether to show all columns, in as many tables as the terminal's width requires.
    """
    print_heading(heads_heading(table), console)
    rows, sort = shown(table), table.sort
    ordered, few = sort is not None or table.top is not None, _are_few(table.rows)
    if ordered:
        print_line(console, Text(_order(table, rows), "dim"))
    if ordered or (few and table.shown_metrics):
        print_columns(head_columns(table, rows, sort), console, wide)
    if table.shown_metrics and not few and (sort is not None or not ordered):
        print_grids(table, console, table.shown_metrics if sort is None else [sort])
    if not ordered and table.shown_metrics:
        print_columns(leader_columns(table), console, wide)
    if isinstance(table, MapDifferences):
        print_changed_maps(table, console, wide=wide)
    print_notices(console, table.notices)


def _are_few(rows: list[HeadRow]) -> bool:
    return len(rows) <= FEW or len({(row.stack, row.layer) for row in rows}) == 1


def _order(table: HeadMetrics, rows: list[HeadRow]) -> str:
    """Describe which heads a table shows, and in which order."""
    which = counted(len(table.rows), "head")
    if len(rows) < len(table.rows):
        which = f"{len(rows):,} of {which}"
    if table.sort is None:
        return which
    at_the_top = "smallest" if table.reverse else "largest"
    return f"{which} by {table.sort}, the {at_the_top} at the top: {table.metrics[table.sort]}"
