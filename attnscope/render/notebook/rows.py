"""Rows of a table that open to show details: the tensors of a trace, the weights of a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.render.columns import Column, columns_of
from attnscope.render.notebook.histogram import histogram
from attnscope.render.notebook.pieces import grows, shown_columns, width
from attnscope.render.text import number_text, shape_text
from attnscope.results.common import Finding, Stats
from attnscope.results.trace import Step, Trace
from attnscope.results.weights import HeadWeights, WeightSlice
from attnscope.text import printable
from attnscope.units import bytes_text, flops_text

if TYPE_CHECKING:
    from markupsafe import Markup

GAP = 2  # characters between two columns
PICTURE = 16  # characters
MOST = 400
"""The most rows of an output; of a longer trace, the first and the last ones are shown."""

IN_DETAILS = {"why", "fresh_bytes", "view_of", "min", "mean", "max", "std"}
"""The columns of a trace that stand in the details of its rows."""

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
            "minmax(var(--least),1fr)" if grows(each) else f"{width(each)}ch" for each in self.columns
        ]
        return " ".join(["1ch", *tracks, *[f"{PICTURE}ch"] * bool(self.pictures)])

    @property
    def width(self) -> int:
        """The width of the table without the column that grows, in characters."""
        widths = [0 if grows(each) else width(each) for each in self.columns]
        return len("▸") + sum(GAP + each for each in widths) + (GAP + PICTURE) * bool(self.pictures)

    @property
    def numbers(self) -> list[int]:
        """The indices of the rows that are shown."""
        return [i for i in range(len(self.details)) if i not in self.gap]


def trace_rows(trace: Trace) -> Rows:
    """Return a row for each tensor of a trace, with its findings."""
    columns = shown_columns(each for each in columns_of(trace) if each.key not in IN_DETAILS)
    rows = Rows(columns, [_details(step) for step in trace.steps], [[] for _ in trace.steps])
    for finding in trace.findings or []:
        place = _row_of(finding, trace.steps)
        texts = rows.other if place is None else rows.findings[place]
        texts.append(finding_text(finding))
    if len(trace.steps) > MOST:
        rows.gap = range(MOST // 2, len(trace.steps) - MOST // 2)
        for i in rows.gap:
            rows.other += rows.findings[i]
    return rows


def head_rows(head: HeadWeights) -> Rows:
    """Return a row for each weight of a head, with a histogram of its values."""
    from attnscope.arrays import numbers

    columns = shown_columns(each for each in columns_of(head) if each.key not in {"mean", "std"})
    pictures = [
        histogram(None if each.array is None else numbers(each.array, each.dtype))
        for each in head.weights
    ]
    details = [_weight_details(each) for each in head.weights]
    return Rows(columns, details, [[] for _ in details], pictures=pictures if any(pictures) else [])


def _weight_details(weight: WeightSlice) -> Details:
    stored = f"{shape_text(weight.shape)} {weight.stored_as}"
    end = "" if weight.axis is None else f", {weight.start}:{weight.stop} along axis {weight.axis}"
    details = {
        "tensor": weight.tensor,
        "stored": f"{stored}{', as in × out' if weight.transposed else ''}{end}",
        "of the head": f"{shape_text(weight.head_shape)}  {' '.join(weight.dims)}".rstrip(),
        "rows": "in llama.cpp's order, here in that of transformers" if weight.reordered else "",
        "shared": "by all heads" if weight.shared else "",
        "values": stats_text(weight.stats),
    }
    return [(label, printable(text)) for label, text in details.items() if text]


def finding_text(finding: Finding) -> str:
    """Return a finding's line and its message."""
    return f"{f'line {finding.line}: ' if finding.line else ''}{printable(finding.message)}"


def _row_of(finding: Finding, steps: Sequence[Step]) -> int | None:
    """Return the index of the last tensor that the finding's line computed."""
    own = [i for i, step in enumerate(steps) if step.line == finding.line and step.file is None]
    return own[-1] if own and finding.line else None


def _details(step: Step) -> Details:
    """Return what a table has no room for."""
    place = f"{step.file or 'line'}{':' if step.file else ' '}{step.line}" if step.line else ""
    times = f", {step.times} times in a loop" if step.times > 1 else ""
    layout = "contiguous" if step.contiguous else "not contiguous"
    strides = f"{layout}, {' '.join(map(str, step.strides))}" if step.strides else layout
    origin = f"view of {step.view_of}" if step.view_of else ""
    origin = f"same tensor as {step.same_as}" if step.same_as else origin
    size = f"{shape_text(step.shape)} {step.dtype}, {bytes_text(step.bytes)}"
    details = {
        "expression": "" if step.how == "input" else step.how,
        "why": step.why or "",
        "place": f"{place}{times}" if place else "",
        "size": "" if step.members else size,
        "strides": "" if step.members else strides,
        "memory": origin,
        "allocated": bytes_text(step.fresh_bytes) if step.fresh_bytes else "",
        "cost": flops_text(step.flops) if step.flops else "",
        "values": "" if step.stats is None else stats_text(step.stats),
    }
    return [(label, printable(text)) for label, text in details.items() if text]


def stats_text(stats: Stats) -> str:
    """Return the statistics of a tensor on one line."""
    numbers = {name: getattr(stats, name) for name in ("min", "mean", "max", "std")}
    parts = [f"{name} {number_text(number)}" for name, number in numbers.items()]
    return " · ".join([*parts, f"{stats.nan} NaN", f"{stats.inf} inf"])
