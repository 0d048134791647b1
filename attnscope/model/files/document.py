"""The document of a head's weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.base.text import printable
from attnscope.base.units import shape_text
from attnscope.document.blocks import Block, Drawing, Heading, Notices, Only, Table
from attnscope.document.columns import Column, check_columns, shown_columns, stats_columns
from attnscope.document.result import named
from attnscope.document.styles import CYAN
from attnscope.model.files.result import HeadWeights, WeightSlice

if TYPE_CHECKING:
    from attnscope.document.rows import Details


def document(head: HeadWeights) -> list[Block]:
    """Build a row for each weight, which opens in HTML; the circuits and the checks.

    Where there are circuits, only HTML shows the weights.
    """
    blocks: list[Block] = [_heading(head), WeightTable(head)]
    if head.circuits:
        from attnscope.model.files.circuit_table import CircuitTable

        blocks.append(CircuitTable(head.circuits, head.d_head))
    else:
        blocks.append(Only(Table(columns(head)), html=False))
    if head.checks:
        blocks.append(Table(check_columns(head.checks)))
    return [*blocks, Notices(head.notices)] if head.notices else blocks


def _heading(head: HeadWeights) -> Heading:
    """Return the head, the model's sizes, and the prefix of its tensors' names."""
    dtypes = "/".join(sorted({slice_.stored_as for slice_ in head.weights}))
    name = named(head.model, head.stack)
    title = f"{name} · layer {head.layer} of {head.n_layer} · head {head.head} of {head.n_head}"
    sizes = f"n_head {head.n_head} · d_feat {head.d_feat} · d_head {head.d_head} · {dtypes}"
    if head.n_kv_head != head.n_head:
        kv_head = head.head // (head.n_head // head.n_kv_head)
        title += f" · K,V head {kv_head} of {head.n_kv_head}"
        sizes = sizes.replace(" · ", f" · n_kv_head {head.n_kv_head} · ", 1)
    if head.latent is not None:
        widths = {name: size for name, size in vars(head.latent).items() if size is not None}
        of_head = " · ".join(f"{name} {size}" for name, size in widths.items())
        sizes = f"n_head {head.n_head} · d_feat {head.d_feat} · {of_head} · {dtypes}"
    about = [sizes, f"tensors under {_common_prefix(head)}"]
    if any(slice_.transposed for slice_ in head.weights):
        about.append("weights are stored as in × out, and shown as out × in")
    if any(slice_.reordered for slice_ in head.weights):
        about.append(
            "rows of Q and K are stored in llama.cpp's order, and shown in that of transformers"
        )
    if head.latent is not None:
        about.append(
            "latent attention: heads share the parts that are whole or marked so; W_QR and W_KR"
            " are rotated"
        )
    return Heading(title, about)


def columns(head: HeadWeights) -> list[Column]:
    """Return the columns of a head's weights, the most important first."""
    weights = head.weights
    common = _common_prefix(head)
    types = [w.quantised for w in weights]
    quantised = [Column("quantised", "quantised", [], list(types))] if any(types) else []

    def column(title: str, key: str, text: Callable[[WeightSlice], str], **options: Any) -> Column:
        raw = [_plain(getattr(slice_, key)) for slice_ in weights]
        style = options.pop("style", "")
        return Column(title, key, [[(text(slice_), style)] for slice_ in weights], raw, **options)

    return [
        column("name", "name", lambda w: w.name, style="bold"),
        column("tensor", "tensor", lambda w: w.tensor.removeprefix(common)),
        column("shape", "shape", lambda w: shape_text(w.stored_shape)),
        column("slice", "axis", _slice_text),
        column("of head", "head_shape", lambda w: shape_text(w.head_shape), style=CYAN),
        Column("shared", "shared", [], [w.shared for w in weights]),
        Column("start", "start", [], [w.start for w in weights]),
        Column("stop", "stop", [], [w.stop for w in weights]),
        *stats_columns([w.stats for w in weights]),
        column("dtype", "dtype", lambda w: w.stored_as, wide=len({w.stored_as for w in weights}) == 1),
        *quantised,
    ]


def _common_prefix(head: HeadWeights) -> str:
    """Return the common prefix of the names of a head's tensors, up to a dot."""
    names = [slice_.tensor.split(".") for slice_ in head.weights]
    prefix = ""
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        prefix += parts[0] + "."
    return prefix


def _slice_text(slice_: WeightSlice) -> str:
    if slice_.axis is None:
        return "all"
    kind = "columns" if slice_.axis == 1 else "rows" if len(slice_.stored_shape) == 2 else "entries"
    return f"{kind} {slice_.start}:{slice_.stop}{', shared' if slice_.shared else ''}"


def _plain(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class WeightTable(Drawing):
    """The weights in HTML, with a histogram of the values of each."""

    head: HeadWeights

    def html(self) -> str:
        """Return a row for each weight, which opens."""
        from attnscope.base.arrays import numbers
        from attnscope.document.rows import Rows, histogram

        weights = self.head.weights
        shown = shown_columns(each for each in columns(self.head) if each.key not in {"mean", "std"})
        pictures = [
            histogram(None if each.array is None else numbers(each.array, each.dtype))
            for each in weights
        ]
        details = [_details(each) for each in weights]
        none: list[list[str]] = [[] for _ in weights]
        return Rows(shown, details, none, pictures=pictures if any(pictures) else []).html()


def _details(weight: WeightSlice) -> Details:
    from attnscope.document.rows import stats_text

    stored = f"{shape_text(weight.stored_shape)} {weight.stored_as}"
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
