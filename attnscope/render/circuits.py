"""A head's circuits as columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from attnscope.render.columns import Column
from attnscope.render.text import number_text
from attnscope.results.weights import Circuit

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-:=+*#"
"""Eight heights, for a console whose encoding has no bars."""

WIDEST, NARROWEST = 32, 15
"""How many bars stand side by side at most; and where there is little room: as wide as their title."""


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
