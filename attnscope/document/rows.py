"""A table in HTML whose rows open to show details, such as those of tensors; and small histograms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.base.units import number_text
from attnscope.document.columns import Column
from attnscope.document.html import rendered
from attnscope.document.result import Stats

if TYPE_CHECKING:
    import numpy as np
    from markupsafe import Markup

GAP = 2  # characters between two columns
PICTURE = 16  # characters

Details = list[tuple[str, str]]
"""Labels and texts."""


@dataclass
class Rows:
    """A table whose rows open."""

    columns: list[Column]  #: the columns, from left to right
    details: list[Details]  #: of each row
    findings: list[list[str]]  #: of each row: messages that are shown below it
    other: list[str] = field(default_factory=list)  #: messages that belong to no row
    gap: range = range(0)  #: the rows that are left out
    pictures: list[Markup] = field(default_factory=list)  #: of each row, as SVG; empty: none

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


BINS, HEIGHT = 48, 16  # of a histogram; its height in pixels


def histogram(values: np.ndarray | None) -> Markup:
    """Return the histogram of an array's finite values, from the smallest to the largest.

    A line marks 0, if it is between them.
    """
    import numpy as np
    from markupsafe import Markup

    finite = np.array([]) if values is None else values[np.isfinite(values)].astype("float64")
    if not finite.size:
        return Markup("")
    counts, edges = np.histogram(finite, bins=BINS)
    low, high = float(edges[0]), float(edges[-1])
    heights = np.ceil(counts / counts.max() * HEIGHT).astype(int)
    bars = "".join(f"M{i} {HEIGHT}v-{height}h1V{HEIGHT}z" for i, height in enumerate(heights) if height)
    zero = (
        f'<path class="zero" d="M{-low / (high - low) * BINS:.1f} 0V{HEIGHT}"/>'
        if low < 0 < high
        else ""
    )
    title = f"{number_text(low)} to {number_text(high)}, {BINS} bins"
    return Markup(
        f'<svg class="histogram" viewBox="0 0 {BINS} {HEIGHT}" preserveAspectRatio="none" role="img">'
        f'<title>{title}</title>{zero}<path d="{bars}"/></svg>'
    )
