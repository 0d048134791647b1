"""The declared steps of multi-head attention."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.base.errors import heads_do_not_divide
from attnscope.base.sizes import check_sizes
from attnscope.observe.contracts.plan import INPUT, Stage, Variant, completed, named, plan
from attnscope.observe.contracts.stages import RowForm, mask_and_past, prepared, split_stage, weighted
from attnscope.observe.trace import Trace


def mha(
    sizes: dict[str, int],
    *,
    dtype: str = "float32",
    variant: Variant | None = None,
    self_attention: bool = True,
    v_is_k: bool = True,
) -> Trace:
    """Declare the steps of `attnscope.attention.mha.MultiHeadAttention.forward`.

    Args:
        sizes: `n_batch n_Q n_K d_feat n_head`, and, if they differ from their defaults, `n_kv_head`
            (n_head), `d_head` (d_feat / n_head), `d_V` (d_head) and `d_context` (d_feat); `n_past` if
            some of the n_K keys come from the past.
        self_attention: K and V are Q itself.
        v_is_k: V is K itself, where it is not self-attention.

    Raises:
        SizeError: a size is not a positive whole number, or they do not fit together.
        OptionError: an unknown dtype.
    """
    check_sizes(sizes)
    if "d_head" not in sizes:
        if sizes["d_feat"] % sizes["n_head"]:
            raise heads_do_not_divide(sizes["d_feat"], sizes["n_head"])
        sizes = sizes | {"d_head": sizes["d_feat"] // sizes["n_head"]}
    variant, sizes = named(variant, sizes), dict(sizes)
    for special, usual in (("d_V", "d_head"), ("d_context", "d_feat")):
        if sizes.get(special) == sizes[usual]:
            del sizes[special]
    sizes = completed(sizes, variant, d_K="d_head")
    d_V = "d_V" if "d_V" in sizes else "d_head"
    rows = RowForm(sizes, variant, d_K="d_head", d_V=d_V, scale="self.scale", of_self="self.")
    return plan("mha", sizes, _stages(rows, self_attention, v_is_k), dtype)


def merged_axis(rows: RowForm, heads: str, width: str) -> str:
    """Return the axis of merged heads: `d_feat` where the model's width is split into heads."""
    sizes = rows.sizes
    is_split = sizes["n_head"] * sizes["d_head"] == sizes["d_feat"]
    return "d_feat" if is_split and (heads, width) == ("n_head", "d_head") else f"{heads}·{width}"


def _stages(rows: RowForm, self_attention: bool, v_is_k: bool) -> Iterator[Stage]:
    d_context = "d_context" if "d_context" in rows.sizes else "d_feat"
    n_K, kv_head, d_V = rows.new, rows.kv_head, rows.d_V
    yield from _inputs(rows, d_context, self_attention, v_is_k)
    yield from mask_and_past(rows)
    yield _projection(rows, "Q", "n_Q", "d_feat", "n_head", "d_head")
    yield _projection(rows, "K", n_K, d_context, kv_head, "d_head")
    yield _projection(rows, "V", n_K, d_context, kv_head, d_V)
    for name, n, heads, width in (
        ("Q", "n_Q", "n_head", "d_head"),
        ("K", n_K, kv_head, "d_head"),
        ("V", n_K, kv_head, d_V),
    ):
        lengths = "n_Q, n_head" if name == "Q" else "-1, n_kv_head"
        view = f"view(n_batch, {lengths}, {'d_V' if name == 'V' else 'd_head'})"
        how = f"{name}_feat.{view}.transpose(1, 2)"
        yield split_stage(name, f"{name}_feat", how, n, heads, width)
    names = yield from prepared(rows, "Q_split", "K_split", "V_split", turn="self.rope_theta")
    weights, values = yield from weighted(rows, *names)
    yield from _merged(rows, weights, values)


def _inputs(rows: RowForm, d_context: str, self_attention: bool, v_is_k: bool) -> Iterator[Stage]:
    source, n_K = f"n_batch {rows.new} {d_context}", rows.new
    yield Stage(
        "Q",
        "n_batch n_Q d_feat",
        INPUT,
        "input of the queries: {n_Q} vectors of {d_feat} numbers"
        + (" in each of {n_batch} sequences" if rows.sizes["n_batch"] > 1 else ""),
    )
    why = f"input of the keys: {{{n_K}}} vectors of {{{d_context}}} numbers"
    yield Stage(
        "K",
        source,
        INPUT,
        why + ("; the same tensor as Q, because this is self-attention" if self_attention else ""),
        same_as="Q" if self_attention else None,
    )
    yield Stage(
        "V",
        source,
        INPUT,
        f"input of the values: one vector for each key, {{{n_K}}} in all, from the same source",
        same_as="Q" if self_attention else "K" if v_is_k else None,
    )


def _projection(rows: RowForm, name: str, n: str, d_in: str, heads: str, width: str) -> Stage:
    return Stage(
        f"{name}_feat",
        f"n_batch {n} {merged_axis(rows, heads, width)}",
        f"self.W_{name}({name})",
        f"linear projection: each row of {{{d_in}}} numbers becomes {{{heads}}} heads ×"
        f" {{{width}}}; the number of rows does not change",
        product=f"n_batch {n} {d_in} {heads} {width}",
    )


def _merged(rows: RowForm, weights: str, values: str) -> Iterator[Stage]:
    """Declare the weighted values, their merged heads, and the output projection."""
    d_V = rows.d_V
    x_raw = f"n_batch n_head n_Q {d_V}"
    yield Stage(
        "x_raw",
        x_raw,
        f"{weights} @ {values}",
        "in each head, each query's weighted mean of the values: {n_Q}×{n_K} times"
        f" {{n_K}}×{{{d_V}}}, contracted over n_K",
        product=f"n_batch n_head n_Q n_K {d_V}",
    )
    yield Stage(
        "x_rsh1",
        f"n_batch n_Q n_head {d_V}",
        "x_raw.transpose(1, 2).contiguous()",
        f"the heads are moved back behind the rows, so a query's {{n_head}} × {{{d_V}}} numbers"
        " are adjacent in memory: this copies, unless they already are",
        view_of="x_raw",
        layout=x_raw,
        copied=True,
    )
    yield Stage(
        "x_rsh2",
        f"n_batch n_Q {merged_axis(rows, 'n_head', d_V)}",
        "x_rsh1.view(n_batch, n_Q, n_head * d_V)",
        f"the same numbers with the heads merged: {{n_head}} · {{{d_V}}} in one row; nothing is copied",
        view_of="x_rsh1",
    )
    yield Stage(
        "x",
        "n_batch n_Q d_feat",
        "self.W_O(x_rsh2)",
        "output projection: mixes the results of the heads and returns to the model's width of {d_feat}",
        product=f"n_batch n_Q n_head {d_V} d_feat",
    )
