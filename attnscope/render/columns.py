"""The columns of results, for people and for programs.

Table, CSV and Markdown share these columns, so that they contain the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.render.styles import BLUE, CYAN, GOOD, GREEN, MAGENTA, ORANGE, WRONG
from attnscope.render.text import number_text, shape_text
from attnscope.results.common import Check, Stats
from attnscope.results.trace import Step, Trace
from attnscope.results.weights import HeadWeights, WeightSlice
from attnscope.text import LEFT_TO_RIGHT_MARK, printable
from attnscope.units import bytes_text, count_text

# A colour for each kind of axis, the same for its name and for its size.
AXIS_STYLES = {
    "n_batch": BLUE,
    "n_head": MAGENTA,
    "n_kv_head": MAGENTA,
    "n_Q": CYAN,
    "n_K": ORANGE,
    "n_past": ORANGE,
    "n_new": ORANGE,
    "n_V": ORANGE,
}
WIDTH_STYLE = GREEN


MARKED = ("name", "dims", "shape", "memory", "bytes")
"""The columns that are bold in the rows of the largest tensors."""


@dataclass
class Column:
    """One column of a table.

    Attributes:
        title: its heading for people.
        key: its heading for programs.
        cells: its content for people; a cell consists of pieces of text, each with a style, joined by
            `joint`. Empty: not for people.
        raw: its content for programs. Empty: not for programs.
        right: aligned at the right, as numbers are.
        wide: shown only if all columns are requested.
        essential: identifies its row, and so is the last to be left out.
        flexible: can be broken into lines: names of axes; or expressions and sentences, which can be
            shortened, too.
        lead: stands at the left, beside the name, in each part of a table that is split.
        below: contains sentences, printed below their rows; if flexible, beside them if they fit.
    """

    title: str
    key: str
    cells: list[list[tuple[str, str]]]
    raw: list[Any]
    right: bool = False
    wide: bool = False
    essential: bool = False
    flexible: bool = False
    lead: bool = False
    below: bool = False
    joint: str = " "

    def texts(self) -> list[str]:
        """Return the cells as plain text."""
        return [self.joint.join(text for text, _ in cell) for cell in self.cells]

    def printable(self) -> Column:
        """Escape unprintable characters, so that each cell is one line: names may contain anything."""
        cells = [
            [(printable(text, LEFT_TO_RIGHT_MARK), style) for text, style in cell] for cell in self.cells
        ]
        return replace(self, cells=cells)


def columns_of(result: Trace | HeadWeights) -> list[Column]:
    """Return the columns of a result, the most important first; `in_order` sorts them for display.

    The first are those that identify a row. Columns that are empty, or the same in every row, are shown
    with `wide` only.
    """
    return _trace_columns(result) if isinstance(result, Trace) else _head_columns(result)


def _trace_columns(trace: Trace) -> list[Column]:
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
    marked = {id(step) for step in largest(trace)}
    _mark(columns, [i for i, step in enumerate(trace.steps) if id(step) in marked])
    return columns


def _mark(columns: list[Column], rows: list[int]) -> None:
    """Show the names, axes and memory of some rows in bold."""
    for column in columns:
        for i in rows if column.key in MARKED else []:
            column.cells[i] = [(text, f"bold {style}".rstrip()) for text, style in column.cells[i]]


def largest(trace: Trace) -> list[Step]:
    """Return the largest tensors that the code computes, all of the same size; without any, inputs."""
    owners = [step for step in trace.steps if owns_memory(step)]
    computed = [step for step in owners if not is_input(step)] or owners
    most = max((step.bytes for step in computed), default=0)
    return [step for step in computed if step.bytes == most]


def owns_memory(step: Step) -> bool:
    """Return whether a step owns memory: it is not a view, nor another name of a tensor."""
    return not (step.view_of or step.same_as or step.members)


def is_input(step: Step) -> bool:
    """Return whether a step is an input of the traced code itself, not an argument of a call in it."""
    return step.how == "input" and step.depth == 0


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
        *_stats_columns([step.stats for step in steps]),
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


ORDER = (
    *("name", "how", "tensor", "dims", "shape", "axis", "start", "stop", "head_shape"),
    *("dtype", "memory", "bytes", "fresh_bytes", "flops", "view_of", "line"),
    *("max_abs_diff", "tolerance", "ok", "times"),
)
"""The order of columns from left to right, by key; other columns follow in their own order."""


def in_order(columns: list[Column]) -> list[Column]:
    """Sort columns from left to right."""
    place = {key: i for i, key in enumerate(ORDER)}
    return sorted(columns, key=lambda each: (not each.lead, place.get(each.key, len(place))))


def _head_columns(head: HeadWeights) -> list[Column]:
    weights = head.weights
    common = common_prefix(head)
    types = [w.quantised for w in weights]
    quantised = [Column("quantised", "quantised", [], list(types))] if any(types) else []

    def column(title: str, key: str, text: Callable[[WeightSlice], str], **options: Any) -> Column:
        raw = [_plain(getattr(slice_, key)) for slice_ in weights]
        style = options.pop("style", "")
        return Column(title, key, [[(text(slice_), style)] for slice_ in weights], raw, **options)

    return [
        column("name", "name", lambda w: w.name, style="bold"),
        column("tensor", "tensor", lambda w: w.tensor.removeprefix(common)),
        column("shape", "shape", lambda w: shape_text(w.shape)),
        column("slice", "axis", _slice_text),
        column("of head", "head_shape", lambda w: shape_text(w.head_shape), style=CYAN),
        Column("shared", "shared", [], [w.shared for w in weights]),
        Column("start", "start", [], [w.start for w in weights]),
        Column("stop", "stop", [], [w.stop for w in weights]),
        *_stats_columns([w.stats for w in weights]),
        column("dtype", "dtype", lambda w: w.stored_as, wide=len({w.stored_as for w in weights}) == 1),
        *quantised,
    ]


def common_prefix(head: HeadWeights) -> str:
    """Return the common prefix of the names of a head's tensors, up to a dot."""
    names = [slice_.tensor.split(".") for slice_ in head.weights]
    prefix = ""
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        prefix += parts[0] + "."
    return prefix


def check_columns(checks: list[Check]) -> list[Column]:
    """Return the columns of comparisons with a reference."""
    verdicts = {
        True: ("holds", GOOD),
        False: ("FAILS", WRONG),
        None: ("undecided", "dim"),
    }

    def size(title: str, key: str) -> Column:
        raw = [getattr(check, key) for check in checks]
        cells = [[("–", "dim") if x is None else (f"{x:.2g}", "")] for x in raw]
        return Column(title, key, cells, raw, right=True, wide=all(x is None for x in raw))

    columns = [
        Column("check", "name", [[(c.name, "bold")] for c in checks], [c.name for c in checks]),
        Column("verdict", "ok", [[verdicts[c.ok]] for c in checks], [c.ok for c in checks]),
        size("largest difference", "max_abs_diff"),
        size("tolerance", "tolerance"),
    ]
    if any(check.note for check in checks):
        raw = [check.note for check in checks]
        columns.append(
            Column("note", "note", [[(note, "dim")] for note in raw], raw, flexible=True, below=True)
        )
    return columns


def _stats_columns(stats: Sequence[Stats | None]) -> list[Column]:
    """Return six columns of statistics, or none at all; NaN and inf are for `wide` if all are 0."""
    if not any(stats):
        return []
    known = [each or Stats(None, None, None, None, 0, 0) for each in stats]
    columns = []
    for key in ("min", "mean", "max", "std"):
        raw = [getattr(each, key) for each in known]
        columns.append(Column(key, key, [[(number_text(x), "")] for x in raw], raw, right=True))
    for key, title in (("nan", "NaN"), ("inf", "inf")):
        raw = [getattr(each, key) for each in known]
        cells = [[(str(x), WRONG if x else "dim")] for x in raw]
        columns.append(Column(title, key, cells, raw, right=True, wide=not any(raw)))
    return columns


def _memory_text(step: Step) -> str:
    """Format the memory that a step adds."""
    return bytes_text(step.bytes) if owns_memory(step) else "view" if step.view_of else "same"


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


def dims_pieces(dims: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the axes' names, each in its colour; nothing if they are unknown."""
    return [(axis, _axis_style(axis)) for axis in dims or ()]


def shape_pieces(dims: Sequence[str] | None, shape: Sequence[int]) -> list[tuple[str, str]]:
    """Return the axes' sizes, each in the colour of its axis, or `scalar`."""
    axes = zip(dims or ("",) * len(shape), shape, strict=True)
    return [(str(size), _axis_style(axis)) for axis, size in axes] or [("scalar", "")]


def _axis_style(axis: str) -> str:
    is_width = axis.split("·")[-1].startswith("d_")  # so is n_head·d_head, the width of merged heads
    return AXIS_STYLES.get(axis, WIDTH_STYLE if is_width else "")


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


def _slice_text(slice_: WeightSlice) -> str:
    if slice_.axis is None:
        return "all"
    kind = "columns" if slice_.axis == 1 else "rows" if len(slice_.shape) == 2 else "entries"
    return f"{kind} {slice_.start}:{slice_.stop}{', shared' if slice_.shared else ''}"


def _plain(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value
