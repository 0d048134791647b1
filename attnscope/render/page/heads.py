"""The metrics of heads as the page's data: the same numbers, in the order of the metrics, for each head.

A head of the page has a map, metrics, or both.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from attnscope.results.heads import HeadRow, HeadTable
from attnscope.results.maps import AttentionMaps

VALUE_DIGITS = 6
ERROR_DIGITS = 3


def with_measured(stacks: list[AttentionMaps], heads: HeadTable) -> list[AttentionMaps]:
    """The stacks that have maps, and after them those that only have metrics: without tokens or maps."""
    mapped = {stack.stack for stack in stacks}
    measured = {row.stack for row in heads.rows} - mapped
    return stacks + [
        AttentionMaps(heads.model, name, n_layer, n_head, n_head, [], [], [])
        for name, (n_layer, n_head) in heads.layers.items()
        if name in measured
    ]


def metrics_data(heads: HeadTable | None) -> list[dict[str, str]]:
    """What each metric is called, and what it means."""
    metrics = {} if heads is None else heads.metrics
    return [{"name": name, "meaning": meaning} for name, meaning in metrics.items()]


def heads_data(
    mapped: list[dict[str, Any]], heads: HeadTable | None, stack: str
) -> list[dict[str, Any]]:
    """A stack's heads by layer and then by head: those that have a map, a row of the table, or both.

    Args:
        mapped: what the page knows of the heads that have a map.
        heads: the table, if there is one.
        stack: whose rows of it are wanted.
    """
    if heads is None:
        return mapped
    by_place = {(each["layer"], each["head"]): each for each in mapped}
    for row in heads.rows:
        if row.stack == stack:
            each = by_place.setdefault((row.layer, row.head), {"layer": row.layer, "head": row.head})
            each.update(_numbers(row, heads.metrics))
    return [by_place[place] for place in sorted(by_place)]


def _numbers(row: HeadRow, metrics: dict[str, str]) -> dict[str, list[float | None]]:
    """A head's values, one for each metric or None; and their standard errors, if it has any."""
    numbers = {"values": [_rounded(row.values.get(name), VALUE_DIGITS) for name in metrics]}
    if any(error is not None for error in row.errors.values()):
        numbers["errors"] = [_rounded(row.errors.get(name), ERROR_DIGITS) for name in metrics]
    return numbers


def _rounded(number: float | None, digits: int) -> float | None:
    """A number to so many significant digits; JSON has none that is infinite or not a number."""
    return None if number is None or not isfinite(number) else float(f"{number:.{digits}g}")
