"""Results as tables for people: as many columns as the terminal has room for."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnscope.results import HeadWeights, Trace
from attnscope.views.columns import Column, check_columns, columns_of, in_order
from attnscope.views.heading import heading, summary
from attnscope.views.text import break_expression, shorten

GAP = 2  # between two columns
NARROWEST = 15  # that an expression is broken into


def print_table(result: Trace | HeadWeights, console: Console, *, wide: bool = False) -> None:
    """Print a result: what it is about, a row for each tensor, and what there is to add.

    Args:
        result: a trace, or a head's weights.
        console: where; piped output is as wide as it needs to be, and never cut.
        wide: all columns, in as many tables as the terminal's width demands.
    """
    title, *about = heading(result)
    _line(console, Text(title, style="bold"))
    for line in about:
        _line(console, Text(line))
    _print(columns_of(result), console, wide)
    if isinstance(result, Trace):
        _line(console, Text("\n" + summary(result), style="dim"))
        for finding in result.findings:
            where = f"line {finding.line}: " if finding.line else ""
            _line(console, Text(f"! {where}{finding.message}", style="yellow"))
    if result.checks:
        _print(check_columns(result.checks), console)


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=not console.is_terminal)


def _print(columns: list[Column], console: Console, wide: bool = False) -> None:
    """Print columns, the most wanted first: those that fit, or all, in several tables if need be."""
    shown = [column for column in columns if column.cells and (wide or not column.wide)]
    if not console.is_terminal:
        _print_table(in_order(shown), console)
    elif wide:
        for part in _split(in_order(shown), console.width):
            _print_table(part, console)
    else:
        _print_table(in_order(_choose(shown, console.width)), console)


def _choose(columns: list[Column], width: int) -> list[Column]:
    """As many columns as fit, the most wanted first."""
    room = width + GAP
    chosen = []
    for column in columns:
        needed = GAP + (min(_width(column), NARROWEST) if column.flexible else _width(column))
        if needed <= room:
            chosen.append(column)
            room -= needed
    for column in chosen:
        if column.flexible:
            _fit(column, min(_width(column), NARROWEST) + room, elide=True)
    return chosen


def _split(columns: list[Column], width: int) -> list[list[Column]]:
    """All columns, in parts that fit; each part begins with the first column, the name."""
    name, *others = columns
    parts = [[name]]
    for column in others:
        if column.flexible:
            _fit(column, max(NARROWEST, width // 4), elide=False)
        if sum(_width(each) + GAP for each in [*parts[-1], column]) > width + GAP:
            parts.append([name])
        parts[-1].append(column)
    return parts


def _fit(column: Column, width: int, *, elide: bool) -> None:
    for cell in column.cells:
        text, style = cell[0]
        cell[0] = "\n".join(break_expression(shorten(text, width) if elide else text, width)), style


def _width(column: Column) -> int:
    lines = [line for text in column.texts() for line in text.split("\n")]
    return max(map(len, [column.title, *lines]))


def _print_table(columns: list[Column], console: Console) -> None:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=True,
            min_width=_width(column),
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(_cell(column, cell) for column, cell in zip(columns, cells, strict=True)))
    # What nobody looks at in a terminal is never cut, whatever width Rich assumes.
    assumed = console.width
    console.width = max(assumed, sum(_width(column) + GAP for column in columns))
    console.print()
    console.print(table)
    console.width = assumed


def _cell(column: Column, cell: list[tuple[str, str]]) -> Text:
    text = Text()
    for i, (piece, style) in enumerate(cell):
        text.append(column.joint if i else "", "dim").append(piece, style)
    return text
