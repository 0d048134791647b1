"""Rank the heads of a model by a metric, and list their metrics as the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, isfinite, isnan, log10
from typing import Any, TypeGuard

from attnscope.base.units import MISSING
from attnscope.document.columns import Column
from attnscope.document.styles import AXIS_STYLES
from attnscope.model.heads.result import HeadMetrics, HeadRow, head_name

HEAD_STYLE = AXIS_STYLES["n_head"]
LEADERS = 3  # heads that are named for each metric
MOST_DECIMALS = 4
TINY = 1e-3  # of effects: a column whose largest number is below it is written with powers of ten


def ranked(
    table: HeadMetrics, sort: str | None = None, *, reverse: bool = False, top: int | None = None
) -> list[HeadRow]:
    """Sort the heads of a table by a metric, the largest value first, or the strongest if signed.

    Heads without a value come last. Heads with equal values keep their order, as do all without a
    metric.
    """
    rows = table.rows
    if sort is not None:
        sign = 1 if reverse else -1
        values = [row.values[sort] for row in rows]
        known = [
            (sign * (abs(value) if table.signed else value), row)
            for value, row in zip(values, rows, strict=True)
            if value is not None and not isnan(value)
        ]
        known.sort(key=lambda pair: pair[0])
        ranks = {id(row) for _, row in known}
        rows = [row for _, row in known] + [row for row in rows if id(row) not in ranks]
    return rows[:top]


def shown(table: HeadMetrics) -> list[HeadRow]:
    """Return the heads that views of a table show, in the order of its ranking."""
    return ranked(table, table.sort, reverse=table.reverse, top=table.top)


def is_known(value: float | None) -> TypeGuard[float]:
    """Check that a value is a finite number."""
    return value is not None and isfinite(value)


def several_stacks(table: HeadMetrics) -> bool:
    """Check whether a table has several stacks, so that layer and head do not identify a head."""
    return len(table.layers) > 1


def place(table: HeadMetrics, row: HeadRow) -> str:
    """Return a head's name, `L3 H7`; with its stack if there are several."""
    name = head_name(row.layer, row.head)
    return f"{row.stack} {name}" if several_stacks(table) else name


def decimals(values: Sequence[float | None], digits: int = 3) -> int:
    """Return the number of decimals that show `digits` significant digits of the largest value."""
    largest = max((abs(value) for value in values if is_known(value)), default=0.0)
    before = floor(log10(largest)) if largest else digits
    return min(MOST_DECIMALS, max(digits - 2, digits - 1 - before))


@dataclass(frozen=True)
class NumberFormat:
    """The format of the values of one metric."""

    decimals: int
    #: whether whole numbers have no decimals, and numbers that these decimals cannot show are written
    #: with a power of ten
    powers: bool = False
    tiny: bool = False  #: whether all numbers but 0 are written with a power of ten

    @classmethod
    def of(
        cls,
        table: HeadMetrics,
        values: Sequence[float | None],
        errors: Sequence[float | None] = (),
        digits: int = 3,
    ) -> NumberFormat:
        """Return the format of a column: as many decimals for each value as the largest has `digits`."""
        places = decimals(values, digits)
        if any(map(is_known, errors)):
            places = max(places, decimals(errors, 2))
        largest = max((abs(value) for value in values if is_known(value)), default=0.0)
        tiny = table.signed and not table.powers and 0 < largest < TINY
        return cls(places, table.powers, tiny)

    def __call__(self, value: float) -> str:
        """Format a value."""
        if self.tiny:
            return f"{value:.1e}" if value else "0"
        if self.powers and (isinstance(value, int) or value == 0):
            return f"{value:.0f}"
        if self.powers and abs(value) < 10.0**-self.decimals:
            return f"{value:.1e}"
        text = f"{value:.{self.decimals}f}"
        return text if float(text) else text.removeprefix("-")


def table(table: HeadMetrics) -> list[Column]:
    """Return a row for each head that is shown."""
    return head_columns(table, shown(table), table.sort)


def head_columns(table: HeadMetrics, rows: list[HeadRow], sort: str | None = None) -> list[Column]:
    """List the columns of a table of heads: their location, and each metric, that of `sort` first."""

    def where(key: str, style: str = "", **options: Any) -> Column:
        raw = [getattr(row, key) for row in rows]
        return Column(key, key, [[(str(each), style)] for each in raw], raw, **options)

    columns = [where("stack", lead=True)] if several_stacks(table) else []
    columns += [where("layer", "bold", right=True, lead=True), where("head", HEAD_STYLE, right=True)]
    for metric in sorted(table.metrics, key=lambda name: name != sort):
        of_metric = _metric_columns(table, rows, metric, "bold" if metric == sort else "")
        if metric not in table.shown_metrics:  # only for programs
            of_metric = [replace(column, cells=[]) for column in of_metric]
        columns += of_metric
    return [*columns, *table.further_columns(rows)]


def _metric_columns(table: HeadMetrics, rows: list[HeadRow], metric: str, style: str) -> list[Column]:
    """Return the column of a metric, with a separate column of standard errors for programs."""
    values, errors = [row.values[metric] for row in rows], [row.errors[metric] for row in rows]
    text = NumberFormat.of(table, values, errors)
    of_error = NumberFormat(text.decimals, tiny=text.tiny)
    margins = [f"±{of_error(error)}" if is_known(error) else "" for error in errors]
    width = max(map(len, margins), default=0)
    cells = []
    for value, margin in zip(values, margins, strict=True):
        shown = (MISSING, "dim") if value is None else (text(value), style)
        cells.append([shown, (margin.rjust(width), "dim")] if width else [shown])
    columns = [Column(metric, metric, cells, values, right=True)]
    if table.has_errors:
        columns.append(Column("", f"{metric}_error", [], errors))
    return columns


def leader_columns(table: HeadMetrics) -> list[Column]:
    """Return the columns of a table with the largest heads and the meaning of each metric, one a row."""
    names = table.shown_metrics
    columns = [Column("metric", "metric", [[(name, "bold")] for name in names], [])]
    leaders = [ranked(table, name, top=LEADERS) for name in names]
    for rank in range(min(LEADERS, len(table.rows))):
        pieces = [
            _leader(table, rows[rank], name, rows) for name, rows in zip(names, leaders, strict=True)
        ]
        left, right = (max(map(len, side)) for side in zip(*pieces, strict=True))
        cells = [[(where.rjust(left), HEAD_STYLE), (value.rjust(right), "")] for where, value in pieces]
        columns.append(Column(f"#{rank + 1}", f"{rank + 1}", cells, []))
    meanings = [[(table.metrics[name], "dim")] for name in names]
    return [*columns, Column("meaning", "meaning", meanings, [], flexible=True, below=True)]


def _leader(table: HeadMetrics, row: HeadRow, metric: str, leaders: list[HeadRow]) -> tuple[str, str]:
    """Return a head's name and its value."""
    value = table.drawn(row, metric)
    if value is None or isnan(value):
        return "", MISSING
    if (table.powers or table.signed) and value == 0:  # not a leader: most heads have it
        return "", ""
    text = NumberFormat.of(table, [each.values[metric] for each in leaders])
    return place(table, row), text(value)
