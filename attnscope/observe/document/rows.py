"""The tensors of a trace in HTML: rows that open to show details, and findings below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.document.blocks import Drawing
from attnscope.document.columns import shown_columns
from attnscope.document.result import Finding
from attnscope.document.rows import Details, Rows, stats_text
from attnscope.observe.document.columns import columns_of
from attnscope.observe.trace import Step, Trace
from attnscope.text import printable
from attnscope.units import bytes_text, flops_text, shape_text

MOST = 400
"""The most rows of an output; of a longer trace, the first and the last ones are shown."""

IN_DETAILS = {"why", "fresh_bytes", "view_of", "min", "mean", "max", "std"}
"""The columns of a trace that stand in the details of its rows."""


@dataclass(frozen=True)
class TraceRows(Drawing):
    """A row for each tensor of a trace, with its findings."""

    trace: Trace

    def html(self) -> str:
        """Return the rows; a finding stands below the last tensor that its line computed."""
        steps = self.trace.steps
        columns = shown_columns(each for each in columns_of(self.trace) if each.key not in IN_DETAILS)
        rows = Rows(columns, [_details(step) for step in steps], [[] for _ in steps])
        for finding in self.trace.findings or []:
            place = _row_of(finding, steps)
            texts = rows.other if place is None else rows.findings[place]
            texts.append(printable(finding.text))
        if len(steps) > MOST:
            rows.gap = range(MOST // 2, len(steps) - MOST // 2)
            for i in rows.gap:
                rows.other += rows.findings[i]
        return rows.html()


def _row_of(finding: Finding, steps: Sequence[Step]) -> int | None:
    """Return the index of the last tensor that the finding's line computed."""
    own = [i for i, step in enumerate(steps) if step.line == finding.line and step.file is None]
    return own[-1] if own and finding.line else None


def _details(step: Step) -> Details:
    """List what a table has no room for."""
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
