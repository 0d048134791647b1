"""Print a head's circuits: a table of ranks and norms, with singular values as bars."""

from __future__ import annotations

from rich.console import Console

from attnscope.render.circuits import ASCII_BARS, BARS, NARROWEST, WIDEST, circuit_columns
from attnscope.render.columns import check_columns
from attnscope.render.heading import heading
from attnscope.render.terminal.table import print_columns, print_heading
from attnscope.render.text import GAP, can_show
from attnscope.results.weights import Circuit, HeadWeights


def print_circuits(
    circuits: list[Circuit], d_head: int, console: Console, *, wide: bool = False
) -> None:
    """Print a row for each circuit.

    Args:
        circuits: the circuits of one head.
        d_head: the head's width, which bounds every rank.
        console: the console; bars are ASCII if its encoding lacks the block characters.
        wide: whether to show all columns, however narrow the terminal is.
    """
    bars = BARS if can_show(BARS, console.encoding) else ASCII_BARS
    columns = circuit_columns(circuits, d_head, bars)
    if console.is_terminal:
        taken = sum(max(map(len, [column.title, *column.texts()])) + GAP for column in columns[:-1])
        room = max(NARROWEST, min(WIDEST, console.width - taken))
        columns = circuit_columns(circuits, d_head, bars, room)
    print_columns(columns, console, wide)


def print_head_circuits(head: HeadWeights, console: Console, *, wide: bool = False) -> None:
    """Print the head's name, its circuits, and comparisons with references."""
    print_heading(heading(head), console)
    print_circuits(head.circuits or [], head.d_head, console, wide=wide)
    if head.checks:
        print_columns(check_columns(head.checks), console, wide)
