"""How the heads of a model attend, as numbers: on a console, and as records for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from attnscope.results import HeadRow, HeadTable
from attnscope.text import printable
from attnscope.units import counted
from attnscope.views.metric_grid import print_grids
from attnscope.views.ranking import head_columns, leader_columns, ranked, several_stacks
from attnscope.views.records import csv_table, markdown, markdown_table, plain
from attnscope.views.table import print_columns, print_heading, print_line, print_notices

FEW = 12
"""So many heads, or those of one layer, are read in a table rather than seen in a grid."""


def heads_heading(table: HeadTable) -> list[str]:
    """A title, and below it how many heads there are, what they read, and what is missing of it."""
    sizes = [
        f"{stack} " * several_stacks(table) + f"{counted(n_layer, 'layer')} × {counted(n_head, 'head')}"
        for stack, (n_layer, n_head) in table.layers.items()
    ]
    read = [counted(table.sequences, "sequence"), counted(table.tokens, "token")]
    lines = [table.model, " · ".join([*sizes, *read])]
    if table.partial:
        lines.append("partial: the run ended before the corpus did")
    if table.skipped:
        lines.append(f"skipped: {counted(table.skipped, 'line')} without text")
    return lines


def print_heads(
    table: HeadTable,
    console: Console,
    *,
    sort: str | None = None,
    reverse: bool = False,
    top: int | None = None,
    wide: bool = False,
) -> None:
    """Print heads ranked by one metric, or every metric at a glance.

    Args:
        table: what was measured.
        console: where; piped tables are never cut.
        sort: the metric that decides the order; a grid of it follows.
        reverse: the smallest values first.
        top: only so many heads.
        wide: all columns, in as many tables as the terminal's width demands.
    """
    print_heading(heads_heading(table), console)
    rows = ranked(table, sort, reverse=reverse, top=top)
    ordered, few = sort is not None or top is not None, _are_few(table.rows)
    if ordered:
        print_line(console, Text(_order(table, rows, sort, reverse), "dim"))
    if ordered or few:
        left_out = print_columns(head_columns(table, rows, sort), console, wide)
        if left_out:
            print_line(console, Text(f"{counted(left_out, 'more metric')}: --wide", "dim"))
    if not few and (sort is not None or not ordered):
        print_grids(table, console, list(table.metrics) if sort is None else [sort])
    if not ordered:
        print_columns(leader_columns(table), console, wide)
    print_notices(console, table.notices)


def heads_record(
    table: HeadTable, *, sort: str | None = None, reverse: bool = False, top: int | None = None
) -> dict[str, Any]:
    """The heads as `attnscope.heads/1`, in the order of `ranked`."""
    heads = [
        {"stack": row.stack, "layer": row.layer, "head": row.head, **row.values, "errors": row.errors}
        for row in ranked(table, sort, reverse=reverse, top=top)
    ]
    return {
        "schema": "attnscope.heads/1",
        "model": table.model,
        "tokens": table.tokens,
        "sequences": table.sequences,
        "partial": table.partial,
        "skipped": table.skipped,
        "without_sink": table.without_sink,
        "stacks": {
            stack: {"n_layer": n_layer, "n_head": n_head}
            for stack, (n_layer, n_head) in table.layers.items()
        },
        "metrics": table.metrics,
        "heads": plain(heads),
        "notices": table.notices,
    }


def heads_csv(
    table: HeadTable, *, sort: str | None = None, reverse: bool = False, top: int | None = None
) -> str:
    """A line for each head, in the order of `ranked`, with the values and their standard errors."""
    return csv_table(head_columns(table, ranked(table, sort, reverse=reverse, top=top), sort))


def heads_markdown(
    table: HeadTable, *, sort: str | None = None, reverse: bool = False, top: int | None = None
) -> str:
    """The same rows as a Markdown table, with what was read above, and what metrics mean below."""
    columns = head_columns(table, ranked(table, sort, reverse=reverse, top=top), sort)
    meanings = "\n".join(f"- {name}: {meaning}" for name, meaning in table.metrics.items())
    return markdown(
        heads_heading(table), markdown_table(columns), meanings, *map(printable, table.notices)
    )


def _are_few(rows: list[HeadRow]) -> bool:
    return len(rows) <= FEW or len({(row.stack, row.layer) for row in rows}) == 1


def _order(table: HeadTable, rows: list[HeadRow], sort: str | None, reverse: bool) -> str:
    """Which heads a table shows, and in which order."""
    which = counted(len(table.rows), "head")
    if len(rows) < len(table.rows):
        which = f"{len(rows):,} of {which}"
    if sort is None:
        return which
    at_the_top = "smallest" if reverse else "largest"
    return f"{which} by {sort}, the {at_the_top} at the top: {table.metrics[sort]}"
