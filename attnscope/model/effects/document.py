"""The document of effects: the prediction first, then the heads, then what else adds to the logit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isnan
from typing import Any

from attnscope.base.units import MISSING, counted, number_text
from attnscope.document.blocks import Block, Plot, Table
from attnscope.document.columns import Column
from attnscope.model.effects.drawing import PositionsDrawing, draw_positions
from attnscope.model.effects.options import MEANINGS, STRONGEST, Kind
from attnscope.model.effects.result import DirectSum, HeadEffects
from attnscope.model.heads.document import document as document_of_heads
from attnscope.model.heads.ranking import NumberFormat, several_stacks, shown
from attnscope.model.heads.result import HeadRow


def document(table: HeadEffects) -> list[Block]:
    """Build the heading, the heads, the parts of the logit, and notices."""
    more: list[Block] = [PositionsDrawing(table)] if table.positions else []
    if table.direct is not None:
        more.append(Table(part_columns(table)))
    plot = Plot(partial(draw_positions, table=table)) if table.positions else None
    return document_of_heads(table, *more, plot=plot)


def remarks(table: HeadEffects) -> list[str]:
    """Return lines about the prediction, the sums and the estimates."""
    lines = [metric_line(table)]
    if table.top_answers:
        best = ", ".join(f"{token!r} {share:.1%}" for token, share in table.top_answers)
        lines.append(f"the model's likeliest answers: {best}")
    if table.blocked is not None:
        change = number_text(table.blocked)
        lines.append(f"with all selected heads blocked at once, the metric changes by {change}")
    if table.direct is not None:
        lines.append(direct_line(table.direct))
    if table.correlation is not None:
        lines.append(
            f"first order, an estimate, correlates with the exact effects: {table.correlation:.3f}"
        )
    if table.resolution:
        lines.append(resolution_line(table))
    if table.partial:
        lines.append("partial: the run was interrupted")
    return lines


ROUNDING = 1e-5
"""The largest relative difference between a logit and the sum of its parts that is not worth saying."""


def direct_line(direct: DirectSum) -> str:
    """Say what heads and all parts add to the logit, and how far the sum is off."""
    limit = ROUNDING * max(1.0, abs(direct.value))
    logit = "the logit before its soft cap" if direct.capped else "the logit"
    equal = f"that is {logit}"
    if abs(direct.off) > limit:
        equal = f"{logit} is {number_text(direct.value)}, {abs(direct.off):.1g} off"
    heads, total = number_text(direct.heads), number_text(direct.value + direct.off)
    return f"direct effects: all heads add {heads}, and all parts {total}: {equal}"


def metric_line(table: HeadEffects) -> str:
    """Return what the metric is, of which answers, and its size without a change."""
    if table.metric == MEANINGS[Kind.DISTANCE]:
        return f"metric: {table.metric}, which is 0"
    answers = table.answer and f" {table.answer!r}" + (
        f" against {table.against!r}" if table.against else ""
    )
    line = f"{table.metric}{answers and ':'}{answers}: {number_text(table.baseline)}"
    if table.corrupted is not None:
        line += f"; on the corrupted text {number_text(table.corrupted)}"
    return line


def resolution_line(table: HeadEffects) -> str:
    """Say how small an effect is that rounding to 16 bits may have made, and how many are smaller."""
    sizes = ", ".join(f"{name} {size:.2g}" for name, size in table.resolution.items())
    n = sum(bool(table.unresolved(row)) for row in table.rows)
    marked = f"{counted(n, 'head')} with smaller ones" if n else "no head has a smaller one"
    return f"resolution in {table.dtype}, below which effects are rounding: {sizes}; {marked}"


def part_columns(table: HeadEffects) -> list[Column]:
    """Return the columns of what adds to the residual stream beside heads."""
    assert table.direct is not None
    parts = {"all heads": table.direct.heads, **_strongest_parts(table.direct.parts, table.top)}
    values = list(parts.values())
    text = NumberFormat.of(table, values, digits=4)
    return [
        Column("part", "part", [[(name, "bold")] for name in parts], list(parts), lead=True),
        Column("direct", "direct", [[(text(each), "")] for each in values], values, right=True),
    ]


def _strongest_parts(parts: dict[str, float], top: int | None) -> dict[str, float]:
    """Return the parts with the strongest MLPs alone, and the sum of the others; None: all of them."""
    layers = [name for name in parts if name.startswith("MLP ")]
    if top is None or len(layers) <= top + 1:
        return parts
    strongest = sorted(layers, key=lambda name: -abs(parts[name]))[:top]
    others = [name for name in layers if name not in strongest]
    rest = {f"{len(others)} other MLPs": sum(parts[name] for name in others)}
    kept = {name: value for name, value in parts.items() if name not in others}
    return {**{name: kept.pop(name) for name in list(kept) if name != "biases"}, **rest, **kept}


def further_columns(table: HeadEffects, rows: list[HeadRow]) -> list[Column]:
    """Return the columns of where each head is strongest, and of what may be rounding."""
    columns = _strongest_columns(table, rows) if table.positions else []
    if table.resolution:
        names = [", ".join(table.unresolved(row)) for row in rows]
        cells = [[(each, "dim")] for each in names]
        columns.append(Column("below resolution", "below_resolution", cells, names))
    return columns


def _strongest_columns(table: HeadEffects, rows: list[HeadRow]) -> list[Column]:
    """Return the position at which each head is strongest, and its token."""
    column = table.sort or next(iter(table.positions))
    places: list[int | None] = []
    for row in rows:
        effects = table.at_places(row, column).tolist()
        known = [(abs(effect), -i) for i, effect in enumerate(effects) if not isnan(effect)]
        places.append(table.places[-max(known)[1]] if known else None)
    tokens = ["" if place is None else table.token(place) for place in places]
    cells = [[(MISSING if place is None else str(place), "")] for place in places]
    return [
        Column("at", "at", cells, places, right=True),
        Column("token", "token", [[(repr(each), "dim")] for each in tokens], tokens),
    ]


def columns_of_positions(table: HeadEffects) -> list[Column]:
    """Return columns with a row for each position of each head that is shown, for programs."""
    rows = shown(table)
    places = [(row, i) for row in rows for i in range(len(table.places))]

    def column(key: str, raw: list[Any]) -> Column:
        return Column(key, key, [], raw)

    names = ("stack", "layer", "head") if several_stacks(table) else ("layer", "head")
    columns = [column(name, [getattr(row, name) for row, _ in places]) for name in names]
    columns.append(column("position", [table.places[i] for _, i in places]))
    columns.append(column("token", [table.token(table.places[i]) for _, i in places]))
    for name in table.positions:
        effects = [number for row in rows for number in table.at_places(row, name).tolist()]
        columns.append(column(name, [None if isnan(each) else each for each in effects]))
        if size := table.resolution.get(name):
            resolved = [None if isnan(each) else abs(each) > size for each in effects]
            columns.append(column(f"{name}_resolved", resolved))
    return columns


def figure_lines(table: HeadEffects, metrics: Sequence[str]) -> list[str]:
    """Return what a figure says below its title: the metric, and what its columns are."""
    prompts = [f"means over {counted(table.prompts, 'prompt')}"] if table.prompts > 1 else []
    meanings = {name: table.metrics[name].removesuffix(STRONGEST) for name in metrics}
    lines = [metric_line(table), *prompts, *(f"{name}: {each}" for name, each in meanings.items())]
    if table.resolution:
        lines.append(f"grey: {table.without}, in {table.dtype}")
    return lines
