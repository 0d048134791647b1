"""A head's circuits: a table of ranks and norms, with singular values as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from rich.console import Console

from attnscope.base.units import number_text
from attnscope.document.blocks import Drawing, Table
from attnscope.document.columns import Column
from attnscope.document.html import html_document
from attnscope.document.markdown import markdown_table
from attnscope.document.styles import CYAN
from attnscope.document.terminal import print_columns
from attnscope.document.text import GAP, can_show
from attnscope.model.files.result import Circuit

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-:=+*#"
"""Eight heights, for a console whose encoding lacks the block characters."""

WIDEST, NARROWEST = 32, 15
"""The largest number of bars side by side; and the smallest, which is the width of their title."""


@dataclass(frozen=True)
class CircuitTable(Drawing):
    """A row for each circuit.

    Attributes:
        circuits: the circuits of one head.
        d_head: the head's width, which bounds every rank.
    """

    circuits: list[Circuit]
    d_head: int

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print as many bars as fit; they are ASCII if the encoding lacks the block characters."""
        bars = BARS if can_show(BARS, console.encoding) else ASCII_BARS
        columns = circuit_columns(self.circuits, self.d_head, bars)
        if console.is_terminal:
            taken = sum(max(map(len, [column.title, *column.texts()])) + GAP for column in columns[:-1])
            room = max(NARROWEST, min(WIDEST, console.width - taken))
            columns = circuit_columns(self.circuits, self.d_head, bars, room)
        print_columns(columns, console, wide)

    def html(self) -> str:
        """Return the table."""
        return html_document([Table(circuit_columns(self.circuits, self.d_head))])

    def markdown(self) -> list[str]:
        """Return the table."""
        return [markdown_table(circuit_columns(self.circuits, self.d_head))]


def circuit_columns(
    circuits: list[Circuit], d_head: int, bars: str = BARS, room: int = WIDEST
) -> list[Column]:
    """Return the columns of circuits for table, CSV and Markdown, the most important first.

    Args:
        circuits: the circuits of one head.
        d_head: the head's width.
        bars: the characters for the bars of singular values, the lowest first.
        room: the largest number of bars side by side.
    """

    def measure(title: str, key: str) -> Column:
        raw = [getattr(circuit, key) for circuit in circuits]
        return Column(title, key, [[(number_text(x), "")] for x in raw], raw, right=True)

    names = [circuit.name for circuit in circuits]
    ranks = [circuit.effective_rank for circuit in circuits]
    lines = [sparkline(circuit.singular_values, bars, room) for circuit in circuits]
    of_d_head = [[(f"{rank:.1f}", CYAN), (f"of {d_head}", "dim")] for rank in ranks]
    values = [" ".join(map(repr, circuit.singular_values)) for circuit in circuits]
    return [
        Column("circuit", "name", [[(name, "bold")] for name in names], names),
        Column("effective rank", "effective_rank", of_d_head, ranks, right=True),
        measure("norm", "norm"),
        measure("largest σ", "spectral_norm"),
        Column("singular values", "singular_values", [[(line, "")] for line in lines], values),
    ]


def sparkline(values: Sequence[float], bars: str = BARS, room: int = WIDEST) -> str:
    """Draw values as a line of bars, from 0 to the largest; too many values are averaged in groups.

    >>> sparkline([4.0, 3.0, 2.0, 0.0])
    '█▆▅▁'

    Args:
        values: nonnegative values. The line is empty if one of them is not finite.
        bars: the character for each height, the lowest first.
        room: the largest number of bars.
    """
    pooled = _pooled(values, room)
    if not all(map(isfinite, pooled)):
        return ""
    highest = max(pooled, default=0.0)
    top = len(bars) - 1
    return "".join(bars[round(value / highest * top) if highest else 0] for value in pooled)


def _pooled(values: Sequence[float], room: int) -> list[float]:
    """Average neighbours into at most `room` groups whose sizes differ by at most one."""
    n = min(len(values), room)
    edges = [i * len(values) // n for i in range(n + 1)] if n else []
    parts = [values[start:stop] for start, stop in pairwise(edges)]
    return [sum(part) / len(part) for part in parts]
