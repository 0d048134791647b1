"""The columns of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attnscope.document.axes import dims_pieces, shape_pieces
from attnscope.document.columns import Column, stats_columns
from attnscope.observe.trace import Step, Trace
from attnscope.units import bytes_text, count_text

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
    _mark(columns, [i for i, step in enumerate(trace.steps) if id(step) in marked])
    return columns


def _mark(columns: list[Column], rows: list[int]) -> None:
    """Show the names, axes and memory of some rows in bold."""
    for column in columns:
        for i in rows if column.key in MARKED else []:
            column.cells[i] = [(text, f"bold {style}".rstrip()) for text, style in column.cells[i]]


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

    line = column(
        "line", "line", _line_text, right=True, wide=not is_user_code, style="dim", lead=is_user_code
    )
    fresh = column("fresh", "fresh_bytes", _fresh_text, right=True, wide=not is_user_code)
    columns = [
        column(
            "name", "name", lambda step: "  " * step.depth * is_user_code + step.name, essential=True
        ),
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
            [_shape_cell(step) for step in steps],
            [" ".join(map(str, step.shape)) for step in steps],
            essential=True,
            joint="×",
        ),
        *([line] if is_user_code else []),
        *stats_columns([step.stats for step in steps]),
        column("times", "times", _times_text, right=True, lead=is_user_code),
        _memory_column(steps),
        column("how", "how", _how_text, style="dim", flexible=True),
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


def _memory_column(steps: Sequence[Step]) -> Column:
    """Return the column with the memory that each step adds."""
    return Column("memory", "memory", [[(_memory_text(step), "")] for step in steps], [], right=True)


def _memory_text(step: Step) -> str:
    """Format the memory that a step adds."""
    return bytes_text(step.bytes) if step.owns_memory else "view" if step.view_of else "same"


def _shape_cell(step: Step) -> list[tuple[str, str]]:
    """Return the sizes of a step's axes, or the number of tensors that it consists of."""
    if step.members:
        return [(f"{len(step.members)} tensors", "")]
    return shape_pieces(step.dims, step.shape)


def _how_text(step: Step) -> str:
    """Return the expression of a step, or the names of the steps that it consists of."""
    return step.how if step.members is None else _members_text(step.members)


def _members_text(members: Mapping[str, str]) -> str:
    """List the names of steps; `weights=attention` where it is returned by another name.

    >>> _members_text({"0": "Q", "1": "K", "scores": "scores", "weights": "attention"})
    'Q, K, scores, weights=attention'
    """
    return ", ".join(
        name if label == name or label.split(".")[-1].isdigit() else f"{label}={name}"
        for label, name in members.items()
    )


def _times_text(step: Step) -> str:
    return f"× {step.times}" if step.times > 1 else ""


def _line_text(step: Step) -> str:
    return str(step.line or "")


def _view_text(step: Step, *, strides: bool) -> str:
    """Name the step whose memory a view shares; and its strides, if it is not contiguous."""
    if step.same_as:
        return f"same tensor as {step.same_as}"
    known = strides and step.strides
    order = f"strides {' '.join(map(str, step.strides or ()))}" if known else "not contiguous"
    parts = [f"view of {step.view_of}"] if step.view_of else []
    return ", ".join(parts if step.contiguous else [*parts, order])


def _fresh_text(step: Step) -> str:
    return bytes_text(step.fresh_bytes) if step.fresh_bytes else ""
