"""A head's circuits: their ranks and norms in a table, and their singular values as lines of bars."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from rich.console import Console

from attnscope.results import Circuit, HeadWeights
from attnscope.views.columns import Column, check_columns
from attnscope.views.heading import heading
from attnscope.views.records import markdown, markdown_table
from attnscope.views.table import GAP, print_columns, print_heading
from attnscope.views.text import can_show, number_text

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-:=+*#"
"""Eight heights, for a console whose encoding has no bars."""

WIDEST, NARROWEST = 32, 15
"""How many bars stand side by side at most; and where there is little room: as wide as their title."""


def print_circuits(
    circuits: list[Circuit], d_head: int, console: Console, *, wide: bool = False
) -> None:
    """Print a row for each circuit.

    Args:
        circuits: of one head.
        d_head: its width, which no rank exceeds.
        console: where; bars are ASCII where its encoding has no others.
        wide: all columns, however narrow the terminal is.
    """
    bars = BARS if can_show(BARS, console.encoding) else ASCII_BARS
    columns = circuit_columns(circuits, d_head, bars)
    if console.is_terminal:
        taken = sum(max(map(len, [column.title, *column.texts()])) + GAP for column in columns[:-1])
        room = max(NARROWEST, min(WIDEST, console.width - taken))
        columns = circuit_columns(circuits, d_head, bars, room)
    print_columns(columns, console, wide)


def print_head_circuits(head: HeadWeights, console: Console, *, wide: bool = False) -> None:
    """Print whose circuits they are, the circuits, and comparisons with references."""
    print_heading(heading(head), console)
    print_circuits(head.circuits, head.d_head, console, wide=wide)
    if head.checks:
        print_columns(check_columns(head.checks), console, wide)


def circuits_text(head: HeadWeights) -> str:
    """The same as Markdown."""
    tables = [markdown_table(circuit_columns(head.circuits, head.d_head))]
    tables += [markdown_table(check_columns(head.checks))] if head.checks else []
    return markdown(heading(head), *tables)


def circuit_columns(
    circuits: list[Circuit], d_head: int, bars: str = BARS, room: int = WIDEST
) -> list[Column]:
    """The columns of circuits, the most wanted first: for table, CSV and Markdown.

    Args:
        circuits: of one head.
        d_head: its width.
        bars: what singular values are drawn with, the lowest first.
        room: how many bars stand side by side at most.
    """

    def measure(title: str, key: str) -> Column:
        raw = [getattr(circuit, key) for circuit in circuits]
        return Column(title, key, [[(number_text(x), "")] for x in raw], raw, right=True)

    names = [circuit.name for circuit in circuits]
    ranks = [circuit.effective_rank for circuit in circuits]
    lines = [sparkline(circuit.singular_values, bars, room) for circuit in circuits]
    of_d_head = [[(f"{rank:.1f}", "cyan"), (f"of {d_head}", "dim")] for rank in ranks]
    values = [" ".join(map(repr, circuit.singular_values)) for circuit in circuits]
    return [
        Column("circuit", "name", [[(name, "bold")] for name in names], names),
        Column("effective rank", "effective_rank", of_d_head, ranks, right=True),
        measure("norm", "norm"),
        measure("largest σ", "spectral_norm"),
        Column("singular values", "singular_values", [[(line, "")] for line in lines], values),
    ]


def sparkline(values: Sequence[float], bars: str = BARS, room: int = WIDEST) -> str:
    """Values as a line of bars, from 0 to the largest; where there are too many, the mean of neighbours.

    >>> sparkline([4.0, 3.0, 2.0, 0.0])
    '█▆▅▁'

    Args:
        values: none below 0. One that is not finite makes the line empty.
        bars: what stands for a height, the lowest first.
        room: how many bars there may be.
    """
    pooled = _pooled(values, room)
    if not all(map(isfinite, pooled)):
        return ""
    highest = max(pooled, default=0.0)
    top = len(bars) - 1
    return "".join(bars[round(value / highest * top) if highest else 0] for value in pooled)


def _pooled(values: Sequence[float], room: int) -> list[float]:
    """At most `room` means of neighbours, each of as many of them as the next, give or take one."""
    n = min(len(values), room)
    edges = [i * len(values) // n for i in range(n + 1)] if n else []
    parts = [values[start:stop] for start, stop in pairwise(edges)]
    return [sum(part) / len(part) for part in parts]
