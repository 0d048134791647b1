"""What the columns of a result are: for people, and for programs.

Table, CSV and Markdown show the same columns, so that they hold the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.render.text import number_text, shape_text
from attnscope.results.common import Check, Stats
from attnscope.results.trace import Step, Trace
from attnscope.results.weights import HeadWeights, WeightSlice
from attnscope.text import LEFT_TO_RIGHT_MARK, printable
from attnscope.units import bytes_text, count_text

# A colour for each kind of axis, the same for its name and for its size.
AXIS_STYLES = {
    "n_batch": "blue",
    "n_head": "magenta",
    "n_kv_head": "magenta",
    "n_Q": "cyan",
    "n_K": "yellow",
    "n_past": "yellow",
    "n_new": "yellow",
    "n_V": "yellow",
}
WIDTH_STYLE = "green"


@dataclass
class Column:
    """One column.

    Attributes:
        title: its heading for people.
        key: its heading for programs.
        cells: what people read; a cell is pieces of text, each with a style, joined by `joint`.
            Empty: not for people.
        raw: what programs read. Empty: not for programs.
        right: numbers, aligned at the right.
        wide: shown only when all columns are asked for.
        flexible: an expression, that can be shortened and broken.
        lead: stands at the left, with the name, in each part of a table.
        below: a sentence, printed under its row; a flexible one, beside it where there is room.
    """

    title: str
    key: str
    cells: list[list[tuple[str, str]]]
    raw: list[Any]
    right: bool = False
    wide: bool = False
    flexible: bool = False
    lead: bool = False
    below: bool = False
    joint: str = " "

    def texts(self) -> list[str]:
        """The cells as plain text."""
        return [self.joint.join(text for text, _ in cell) for cell in self.cells]

    def printable(self) -> Column:
        """The column with what people read on one line each: names may hold anything."""
        cells = [
            [(printable(text, LEFT_TO_RIGHT_MARK), style) for text, style in cell] for cell in self.cells
        ]
        return replace(self, cells=cells)


def columns_of(result: Trace | HeadWeights) -> list[Column]:
    """The columns of a result, the most wanted first; `in_order` puts them side by side.

    Columns that say the same in every row, or nothing, are for `wide` only.
    """
    return _trace_columns(result) if isinstance(result, Trace) else _head_columns(result)


def _trace_columns(trace: Trace) -> list[Column]:
    columns = _all_trace_columns(trace)
    own = trace.file is not None
    hidden = {"contiguous", "same_as"}  # people read both in the column `view`
    if not own:
        hidden |= {"times", "file"}
    if all(step.line is None for step in trace.steps):  # a dry run
        hidden |= {"fresh_bytes", "line"}
    for each in columns:
        if each.key in hidden:
            each.cells = []
        each.wide |= not any(each.texts())
    return columns


def _all_trace_columns(trace: Trace) -> list[Column]:
    """Every column that a trace may have."""
    steps = trace.steps
    own = trace.file is not None  # code of the user's: its lines and its depth are of interest
    one_dtype = len({step.dtype for step in steps} - {"bool"}) <= 1  # a mask says in its name what it is

    def column(title: str, key: str, text: Callable[[Step], str], **options: Any) -> Column:
        raw = [getattr(step, key) for step in steps]
        style = options.pop("style", "")
        return Column(title, key, [[(text(step), style)] for step in steps], raw, **options)

    line = column("line", "line", _line_text, right=True, wide=not own, style="dim", lead=own)
    fresh = column("fresh", "fresh_bytes", _fresh_text, right=True, wide=not own)
    columns = [
        column("name", "name", lambda step: "  " * step.depth * own + step.name, style="bold"),
        *([line] if own else []),
        Column(
            "shape",
            "shape",
            [shape_pieces(step.dims, step.shape) for step in steps],
            [" ".join(map(str, step.shape)) for step in steps],
            joint="×",
        ),
        *_stats_columns([step.stats for step in steps]),
        Column(
            "dims",
            "dims",
            [dims_pieces(step.dims) for step in steps],
            [None if step.dims is None else " ".join(step.dims) for step in steps],
        ),
        column("times", "times", _times_text, right=True, lead=own),
        _memory_column(steps),
        column("how", "how", lambda step: step.how, style="dim", flexible=True),
        *([fresh] if own else []),
        column("view", "view_of", partial(_view_text, strides=own)),
        column("FLOPs", "flops", lambda step: count_text(step.flops), right=True),
        column("dtype", "dtype", lambda step: step.dtype, wide=one_dtype),
        column("size", "bytes", lambda step: bytes_text(step.bytes), right=True, wide=True),
        column("contiguous", "contiguous", str),
        column("same as", "same_as", str),
        *([] if own else [fresh, line]),
        column("file", "file", lambda step: step.file or "", wide=True),
        Column("depth", "depth", [], [step.depth for step in steps] if own else []),
    ]
    if any(step.why for step in steps):
        sentence = column("why", "why", lambda step: step.why or "", style="dim italic", below=True)
        columns.append(sentence)
    return columns


def _memory_column(steps: Sequence[Step]) -> Column:
    """What each step adds to the memory in use; the largest stands out."""
    largest = max(filter(_own, steps), key=lambda step: step.bytes, default=None)
    cells = [[(_memory_text(step), "bold red" if step is largest else "")] for step in steps]
    return Column("memory", "memory", cells, [], right=True)


ORDER = (
    *("name", "how", "tensor", "dims", "shape", "axis", "start", "stop", "head_shape"),
    *("dtype", "memory", "bytes", "fresh_bytes", "flops", "view_of", "line"),
    *("max_abs_diff", "tolerance", "ok", "times"),
)
"""How columns stand side by side, by their keys; the others follow as they come."""


def in_order(columns: list[Column]) -> list[Column]:
    """Columns as they stand side by side."""
    place = {key: i for i, key in enumerate(ORDER)}
    return sorted(columns, key=lambda each: (not each.lead, place.get(each.key, len(place))))


def _head_columns(head: HeadWeights) -> list[Column]:
    weights = head.weights
    common = common_prefix(head)

    def column(title: str, key: str, text: Callable[[WeightSlice], str], **options: Any) -> Column:
        raw = [_plain(getattr(slice_, key)) for slice_ in weights]
        style = options.pop("style", "")
        return Column(title, key, [[(text(slice_), style)] for slice_ in weights], raw, **options)

    return [
        column("name", "name", lambda w: w.name, style="bold"),
        column("tensor", "tensor", lambda w: w.tensor.removeprefix(common)),
        column("shape", "shape", lambda w: shape_text(w.shape)),
        column("slice", "axis", _slice_text),
        column("of head", "head_shape", lambda w: shape_text(w.head_shape), style="cyan"),
        Column("shared", "shared", [], [w.shared for w in weights]),
        Column("start", "start", [], [w.start for w in weights]),
        Column("stop", "stop", [], [w.stop for w in weights]),
        *_stats_columns([w.stats for w in weights]),
        column("dtype", "dtype", lambda w: w.dtype, wide=len({w.dtype for w in weights}) == 1),
    ]


def common_prefix(head: HeadWeights) -> str:
    """What the names of all of a head's tensors begin with, up to a dot."""
    names = [slice_.tensor.split(".") for slice_ in head.weights]
    shared = []
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0] + ".")
    return "".join(shared)


def check_columns(checks: list[Check]) -> list[Column]:
    """The columns of comparisons with a reference."""
    verdicts = {
        True: ("holds", "green"),
        False: ("FAILS", "bold red"),
        None: ("cannot say", "dim"),
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
    """Six columns, or none if nothing was computed; NaN and inf are shown where there are any."""
    if not any(stats):
        return []
    known = [each or Stats(None, None, None, None, 0, 0) for each in stats]
    columns = []
    for key in ("min", "mean", "max", "std"):
        raw = [getattr(each, key) for each in known]
        columns.append(Column(key, key, [[(number_text(x), "")] for x in raw], raw, right=True))
    for key, title in (("nan", "NaN"), ("inf", "inf")):
        raw = [getattr(each, key) for each in known]
        cells = [[(str(x), "bold red" if x else "dim")] for x in raw]
        columns.append(Column(title, key, cells, raw, right=True, wide=not any(raw)))
    return columns


def _own(step: Step) -> bool:
    return not (step.view_of or step.same_as)


def _memory_text(step: Step) -> str:
    """What a step adds to the memory in use."""
    return bytes_text(step.bytes) if _own(step) else "same" if step.same_as else "view"


def dims_pieces(dims: Sequence[str] | None) -> list[tuple[str, str]]:
    """Axes' names, each in its colour; nothing where nobody knows them."""
    return [(axis, _axis_style(axis)) for axis in dims or ()]


def shape_pieces(dims: Sequence[str] | None, shape: Sequence[int]) -> list[tuple[str, str]]:
    """Sizes, each in the colour of its axis; a scalar has none, and is called that."""
    axes = zip(dims or ("",) * len(shape), shape, strict=True)
    return [(str(size), _axis_style(axis)) for axis, size in axes] or [("scalar", "")]


def _axis_style(axis: str) -> str:
    wide = axis.split("·")[-1].startswith("d_")  # heads side by side are one width
    return AXIS_STYLES.get(axis, WIDTH_STYLE if wide else "")


def _times_text(step: Step) -> str:
    return f"× {step.times}" if step.times > 1 else ""


def _line_text(step: Step) -> str:
    return str(step.line or "")


def _view_text(step: Step, *, strides: bool) -> str:
    """Whose memory a step looks at; and how its elements lie there, if not in the order of its axes."""
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
