"""The columns of a trace; in HTML, rows that open to show details, and findings below them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from attnscope.base.text import printable
from attnscope.base.units import bytes_text, count_text, flops_text, shape_text
from attnscope.document.blocks import Drawing
from attnscope.document.columns import Column, shown_columns, stats_columns
from attnscope.document.rows import Details, Rows, stats_text
from attnscope.document.styles import dims_pieces, shape_pieces
from attnscope.observe.trace import Step, Trace

MARKED = ("name", "dims", "shape", "memory", "bytes")
"""The columns that are bold in the rows of the largest tensors."""


def columns_of(trace: Trace) -> list[Column]:
    """Return the columns of a trace, the most important first; `in_order` sorts them for display.

    The first are those that identify a row. Columns that are empty, or the same in every row, are shown
    with `wide` only.
    """
    columns = _all_trace_columns(trace)
    is_user_code = trace.file is not None
    hidden = {"contiguous", "same_as"}  # people read both in the column `view`
    if not is_user_code:
        hidden |= {"times", "file"}
    if all(step.line is None for step in trace.steps):  # a dry run
        hidden |= {"fresh_bytes", "line"}
    for each in columns:
        if each.key in hidden:
            each.cells = []
        each.wide |= not any(each.texts())
    marked = {id(step) for step in trace.largest}
    rows = [i for i, step in enumerate(trace.steps) if id(step) in marked]
    for column in columns:
        for i in rows if column.key in MARKED else []:
            column.cells[i] = [(text, f"bold {style}".rstrip()) for text, style in column.cells[i]]
    return columns


def _all_trace_columns(trace: Trace) -> list[Column]:
    """Return every column that a trace may have."""
    steps = trace.steps
    is_user_code = trace.file is not None  # its line numbers and depth matter
    dtypes = {step.dtype for step in steps if not step.members}
    one_dtype = len(dtypes - {"bool"}) <= 1  # a mask is known by its name

    def column(title: str, key: str, text: Callable[[Step], str], **options: Any) -> Column:
        raw = [getattr(step, key) for step in steps]
        style = options.pop("style", "")
        return Column(title, key, [[(text(step), style)] for step in steps], raw, **options)

    def memory(step: Step) -> str:
        if step.is_computed_beside:
            return "inside"
        return bytes_text(step.bytes) if step.owns_memory else "view" if step.view_of else "same"

    def shape(step: Step) -> list[tuple[str, str]]:
        if step.members:
            return [(f"{len(step.members)} tensors", "")]
        return shape_pieces(step.dims, step.shape)

    def fresh_bytes(step: Step) -> str:
        return bytes_text(step.fresh_bytes) if step.fresh_bytes else ""

    beside = {"right": True, "wide": not is_user_code}
    line = column(
        "line", "line", lambda step: str(step.line or ""), style="dim", lead=is_user_code, **beside
    )
    fresh = column("fresh", "fresh_bytes", fresh_bytes, **beside)
    columns = [
        column("name", "name", lambda s: "  " * s.depth * is_user_code + s.name, essential=True),
        Column(
            "dims",
            "dims",
            [dims_pieces(step.dims) for step in steps],
            [None if step.dims is None else " ".join(step.dims) for step in steps],
            essential=True,
            flexible=True,
        ),
        Column(
            "shape",
            "shape",
            [shape(step) for step in steps],
            [" ".join(map(str, step.shape)) for step in steps],
            essential=True,
            joint="×",
        ),
        *([line] if is_user_code else []),
        *stats_columns([step.stats for step in steps]),
        column(
            "times",
            "times",
            lambda s: f"× {s.times}" if s.times > 1 else "",
            right=True,
            lead=is_user_code,
        ),
        Column("memory", "memory", [[(memory(step), "")] for step in steps], [], right=True),
        column(
            "how",
            "how",
            lambda s: s.how if s.members is None else _members_text(s.members),
            style="dim",
            flexible=True,
        ),
        *([fresh] if is_user_code else []),
        column("view", "view_of", partial(_view_text, strides=is_user_code)),
        column("FLOPs", "flops", lambda step: count_text(step.flops), right=True),
        column("dtype", "dtype", lambda step: step.dtype, wide=one_dtype),
        column("size", "bytes", lambda step: bytes_text(step.bytes), right=True, wide=True),
        column("contiguous", "contiguous", str),
        column("same as", "same_as", str),
        *([] if is_user_code else [fresh, line]),
        column("file", "file", lambda step: step.file or "", wide=True),
        Column("depth", "depth", [], [step.depth for step in steps] if is_user_code else []),
    ]
    if any(step.members for step in steps):
        raw = [None if step.members is None else _members_text(step.members) for step in steps]
        columns.append(Column("members", "members", [], raw))
    if any(step.why for step in steps):
        sentence = column("why", "why", lambda step: step.why or "", style="dim italic", below=True)
        columns.append(sentence)
    return columns


def _members_text(members: Mapping[str, str]) -> str:
    """List the names of steps; `weights=attention` where it is returned by another name.

    >>> _members_text({"0": "Q", "1": "K", "scores": "scores", "weights": "attention"})
    'Q, K, scores, weights=attention'
    """
    return ", ".join(
        name if label == name or label.split(".")[-1].isdigit() else f"{label}={name}"
        for label, name in members.items()
    )


def _view_text(step: Step, *, strides: bool) -> str:
    """Name the step whose memory a view shares; and its strides, if it is not contiguous."""
    if step.same_as:
        return f"same tensor as {step.same_as}"
    known = strides and step.strides
    order = f"strides {' '.join(map(str, step.strides or ()))}" if known else "not contiguous"
    parts = [f"view of {step.view_of}"] if step.view_of else []
    return ", ".join(parts if step.contiguous else [*parts, order])


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
            own = [i for i, s in enumerate(steps) if s.line == finding.line and s.file is None]
            texts = rows.findings[own[-1]] if own and finding.line else rows.other
            texts.append(printable(finding.text))
        if len(steps) > MOST:
            rows.gap = range(MOST // 2, len(steps) - MOST // 2)
            for i in rows.gap:
                rows.other += rows.findings[i]
        return rows.html()


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
