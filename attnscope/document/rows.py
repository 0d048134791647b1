"""A table in HTML whose rows open to show details: the tensors of a trace, the weights of a head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.document.columns import Column
from attnscope.document.html import rendered
from attnscope.document.result import Stats
from attnscope.units import number_text

if TYPE_CHECKING:
    from markupsafe import Markup

GAP = 2  # characters between two columns
PICTURE = 16  # characters

Details = list[tuple[str, str]]
"""Labels and texts."""


@dataclass
class Rows:
    """A table whose rows open.

    Attributes:
        columns: the columns, from left to right.
        details: of each row.
        findings: of each row: messages that are shown below it.
        other: messages that belong to no row.
        gap: the rows that are left out.
        pictures: of each row, as SVG; empty: none.
    """

    columns: list[Column]
    details: list[Details]
    findings: list[list[str]]
    other: list[str] = field(default_factory=list)
    gap: range = range(0)
    pictures: list[Markup] = field(default_factory=list)

    @property
    def tracks(self) -> str:
        """The widths of the columns, as tracks of a CSS grid: every row is a grid of its own."""
        tracks = [
            "minmax(var(--least),1fr)" if each.grows else f"{each.width}ch" for each in self.columns
        ]
        return " ".join(["1ch", *tracks, *[f"{PICTURE}ch"] * bool(self.pictures)])

    @property
    def width(self) -> int:
        """The width of the table without the column that grows, in characters."""
        widths = [0 if each.grows else each.width for each in self.columns]
        return len("▸") + sum(GAP + each for each in widths) + (GAP + PICTURE) * bool(self.pictures)

    @property
    def numbers(self) -> list[int]:
        """The indices of the rows that are shown."""
        return [i for i in range(len(self.details)) if i not in self.gap]

    def html(self) -> str:
        """Return the table as HTML."""
        return rendered('{% import "parts.html.j2" as parts %}{{ parts.rows(rows) }}', rows=self)


def stats_text(stats: Stats) -> str:
    """Return the statistics of a tensor on one line."""
    numbers = {name: getattr(stats, name) for name in ("min", "mean", "max", "std")}
    parts = [f"{name} {number_text(number)}" for name, number in numbers.items()]
    return " · ".join([*parts, f"{stats.nan} NaN", f"{stats.inf} inf"])
