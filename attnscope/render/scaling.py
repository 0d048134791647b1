"""What all views of the experiment about the scale share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log

from attnscope.render.columns import Column
from attnscope.render.text import GAP
from attnscope.results.scaling import Scaling, ScalingRow

MEASURES = {
    "variance": ("variance", 1),
    "entropy": ("entropy", 2),
    "largest_weight": ("largest weight", 3),
    "gradient_norm": ("gradient", 2),
}
"""What is measured, by its key: its heading for people, and how many decimals they read."""


SCALED = {False: ("without", "red"), True: ("with", "green")}
"""How rows without the scale and with it are called and coloured."""


def heading(result: Scaling) -> list[str]:
    """A title, and below it the sizes, and what else decides the numbers."""
    return [
        "scaling",
        " · ".join(f"{axis} {size}" for axis, size in result.sizes.items()),
        f"scores with and without the scale 1/√d_K · {result.dtype} · seed {result.seed}",
    ]


def legend(result: Scaling) -> list[str]:
    """What the columns are."""
    bound = _figure(log(result.sizes["n_K"]), MEASURES["entropy"][1])
    return [
        f"variance: of all scores · entropy (nats, at most ln n_K = {bound}), largest weight:"
        " mean of the rows",
        "gradient: norm of ∂attention/∂scores of a row, median of the rows",
    ]


def columns(result: Scaling) -> list[Column]:
    """A column for each thing that was measured, and a row for each width and scale."""
    rows = result.rows

    def column(title: str, key: str, text: Callable[[ScalingRow], str], *, right: bool = True) -> Column:
        raw = [getattr(row, key) for row in rows]
        return Column(title, key, [[(text(row), "")] for row in rows], raw, right=right)

    return [
        column("d_K", "d_K", lambda row: str(row.d_K)),
        column("scale", "scaled", lambda row: SCALED[row.scaled][0], right=False),
        *(column(title, key, partial(_text, key=key)) for key, (title, _) in MEASURES.items()),
        Column("", "gradient_norm_mean", [], [row.gradient_norm_mean for row in rows]),
    ]


def _pairs(result: Scaling) -> list[Column]:
    """A column for each thing that was measured: two numbers side by side, and a row for each width."""
    halves = [[row for row in result.rows if row.scaled is scaled] for scaled in SCALED]
    columns = [Column("\nd_K", "d_K", [[(str(row.d_K), "bold")] for row in halves[0]], [], right=True)]
    for key, (title, _) in MEASURES.items():
        shown = []  # the halves of the column: each its name, and below it its numbers, equally long
        for (name, style), half in zip(SCALED.values(), halves, strict=True):
            texts = [name, *(_text(row, key) for row in half)]
            width = max(map(len, texts))
            shown.append([(text.rjust(width), style) for text in texts])
        names, *cells = [list(pair) for pair in zip(*shown, strict=True)]
        below = (" " * GAP).join(name for name, _ in names)
        above = f" {title} ".center(max(len(below), len(title) + 4), "─")
        columns.append(Column(f"{above}\n{below}", key, cells, [], right=True, joint=" " * GAP))
    return columns


def _text(row: ScalingRow, key: str) -> str:
    """One measured number, as people read it."""
    return _figure(getattr(row, key), MEASURES[key][1])


def _figure(number: float, decimals: int) -> str:
    """A number to some decimals; to two digits, if these would show hardly anything of it."""
    small = abs(number) < 10**-decimals
    return f"{number:.2g}" if small else f"{number:.{decimals}f}"
