"""Prepare the metrics of heads as the page's data: for each head, a list in the order of the metrics.

A head of the page has a map, metrics, or both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from attnscope.document.grid.axes import AxisToken
from attnscope.document.page.protocols import PageHead, PageMetrics, PageRow, PageStack
from attnscope.document.result import Check

VALUE_DIGITS = 6
ERROR_DIGITS = 3


@dataclass
class MeasuredStack:
    """A stack whose heads have metrics, but neither maps nor tokens."""

    model: str
    stack: str
    n_layer: int
    n_head: int
    n_kv_head: int
    maps: tuple[PageHead, ...] = ()
    query_tokens: tuple[AxisToken, ...] = ()
    key_tokens: tuple[AxisToken, ...] = ()
    first_query: int = 0
    pooling: None = None
    left_out: tuple[int, ...] = ()
    picture: None = None
    of_heads: bool = True
    label: str = "weight"
    meaning: str = ""
    unit: None = None
    checks: list[Check] | None = None
    notices: list[str] = field(default_factory=list)


def with_measured(stacks: list[PageStack], heads: PageMetrics) -> list[PageStack]:
    """Append stacks that only have metrics, without tokens or maps, to those that have maps."""
    mapped = {stack.stack for stack in stacks}
    measured = {row.stack for row in heads.rows} - mapped
    return stacks + [
        MeasuredStack(heads.title, name, n_layer, n_head, n_head)
        for name, (n_layer, n_head) in heads.layers.items()
        if name in measured
    ]


def metrics_data(heads: PageMetrics | None) -> list[dict[str, str]]:
    """Return the name and the meaning of each metric."""
    metrics = {} if heads is None else heads.metrics
    return [{"name": name, "meaning": meaning} for name, meaning in metrics.items()]


def heads_data(
    mapped: list[dict[str, Any]], heads: PageMetrics | None, stack: str
) -> list[dict[str, Any]]:
    """Return a stack's heads in order: those that have a map, a row of the table, or both."""
    if heads is None:
        return mapped
    by_place = {(each["layer"], each["head"]): each for each in mapped}
    for row in heads.rows:
        if row.stack == stack:
            each = by_place.setdefault((row.layer, row.head), {"layer": row.layer, "head": row.head})
            each.update(_numbers(row, heads))
    return [by_place[place] for place in sorted(by_place)]


def _numbers(row: PageRow, heads: PageMetrics) -> dict[str, list[Any]]:
    """Return a head's value for each metric, or None; their standard errors, and which are not drawn."""
    metrics = list(heads.metrics)
    numbers: dict[str, list[Any]] = {
        "values": [_rounded(row.values.get(name), VALUE_DIGITS) for name in metrics]
    }
    if any(error is not None for error in row.errors.values()):
        numbers["errors"] = [_rounded(row.errors.get(name), ERROR_DIGITS) for name in metrics]
    hidden = [row.values.get(name) is not None and heads.drawn(row, name) is None for name in metrics]
    return numbers | ({"hidden": hidden} if any(hidden) else {})


def _rounded(number: float | None, digits: int) -> float | None:
    """Round to significant digits; infinities and NaN, which JSON lacks, become None."""
    return None if number is None or not isfinite(number) else float(f"{number:.{digits}g}")
