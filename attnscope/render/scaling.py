"""Parts common to all views of the experiment about the scale."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from operator import methodcaller

from attnscope.render.columns import Column
from attnscope.render.styles import GREEN, RED
from attnscope.render.text import GAP
from attnscope.results.scaling import MEASURES, Scaling, ScalingRow, rounded

TITLES = {
    "variance": "variance",
    "entropy": "entropy",
    "largest_weight": "largest weight",
    "gradient_norm": "gradient",
}
"""The headings of the measured quantities, by key."""

SCALED = {False: ("without", RED), True: ("with", GREEN)}
"""Names and colours of rows without and with the scale."""


def heading(result: Scaling) -> list[str]:
    """Return a title, and lines with the sizes and the options that determine the numbers."""
    distribution = "" if result.draw == "normal" else f"Q and K {result.draw} in [0, 1) · "
    return [
        "scaling",
        " · ".join(f"{axis} {size}" for axis, size in result.sizes.items()),
        f"scores with and without the scale 1/√d_K · {distribution}{result.dtype} · seed {result.seed}",
    ]


def legend(result: Scaling) -> list[str]:
    """Return lines that explain the columns."""
    bound = rounded(log(result.sizes["n_K"]), MEASURES["entropy"])
    return [
        f"variance: of all scores · entropy (nats, at most ln n_K = {bound}), largest weight:"
        " mean of the rows",
        "gradient: norm of ∂attention/∂scores of a row, median of the rows",
    ]


def columns(result: Scaling) -> list[Column]:
    """Return a column for each quantity, with two rows for each width: without and with the scale."""
    rows = result.rows

    def column(title: str, key: str, text: Callable[[ScalingRow], str], *, right: bool = True) -> Column:
        raw = [getattr(row, key) for row in rows]
        return Column(title, key, [[(text(row), "")] for row in rows], raw, right=right)

    return [
        column("d_K", "d_K", lambda row: str(row.d_K)),
        column("scale", "scaled", lambda row: SCALED[row.scaled][0], right=False),
        *(column(title, key, methodcaller("text", key)) for key, title in TITLES.items()),
        Column("", "gradient_norm_mean", [], [row.gradient_norm_mean for row in rows]),
    ]


def pairs(result: Scaling) -> list[Column]:
    """Return a column for each measured quantity, with two numbers side by side for each width."""
    halves = [[row for row in result.rows if row.scaled is scaled] for scaled in SCALED]
    columns = [Column("\nd_K", "d_K", [[(str(row.d_K), "bold")] for row in halves[0]], [], right=True)]
    for key, title in TITLES.items():
        shown = []  # the halves of the column: each its name, and below it its numbers, equally long
        for (name, style), half in zip(SCALED.values(), halves, strict=True):
            texts = [name, *(row.text(key) for row in half)]
            width = max(map(len, texts))
            shown.append([(text.rjust(width), style) for text in texts])
        names, *cells = [list(pair) for pair in zip(*shown, strict=True)]
        below = (" " * GAP).join(name for name, _ in names)
        above = f" {title} ".center(max(len(below), len(title) + 4), "─")
        columns.append(Column(f"{above}\n{below}", key, cells, [], right=True, joint=" " * GAP))
    return columns
