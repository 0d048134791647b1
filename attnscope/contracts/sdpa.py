"""The declared steps of scaled dot-product attention, in its three forms."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.contracts.forms import Columns, OneQuery, RowForm
from attnscope.contracts.plan import Stage, plan
from attnscope.contracts.stages import inputs, prepared, split, weighted
from attnscope.contracts.variants import Variant, completed, named
from attnscope.observe.trace import Trace


def sdpa(sizes: dict[str, int], *, dtype: str = "float32", variant: Variant | None = None) -> Trace:
    """Declare the steps of `attnscope.attention.sdpa.sdpa`.

    Args:
        sizes: `n_Q n_K d_K d_V`, after none, one or both of `n_batch n_head`; `n_kv_head` if K
            and V have fewer heads; `n_past` if some of the n_K keys come from the past;
            `d_feat`, the width of the embeddings, if Q, K and V are projected.
        dtype: the dtype of the inputs.
        variant: selects the stages.

    Raises:
        SizeError: a size is not a positive whole number, or they do not fit together.
        OptionError: an unknown dtype.
    """
    variant = named(variant, sizes)

    def stages() -> Iterator[Stage]:
        rows = RowForm(sizes, variant)
        yield from inputs(rows)
        names = yield from split(rows)
        names = yield from prepared(rows, *names, turn="rope_theta")
        weights, values = yield from weighted(rows, *names)
        out = f"{rows.lead} n_Q d_V"
        yield Stage(
            "out",
            out,
            f"{weights} @ {values}",
            "each query's weighted mean of the values: {n_Q}×{n_K} weights times {n_K}×{d_V}"
            " values, contracted over n_K: a row of {d_V} numbers for each query",
            product=f"{rows.lead} n_Q n_K d_V",
        )
        if variant.split:
            yield Stage(
                "out_merged",
                "n_batch n_Q n_head·d_V",
                "merge_heads(out, n_head)",
                "the heads are merged: {n_head} × {d_V} numbers side by side for each query; this"
                " copies, unless they are already adjacent",
                view_of="out",
                layout=out,
                copied=True,
            )

    sizes = completed(sizes, variant)
    return plan("sdpa", sizes, stages(), dtype)


def sdpa_columns(
    sizes: dict[str, int], *, dtype: str = "float32", variant: Variant | None = None
) -> Trace:
    """Declare the steps of `attnscope.attention.columns.sdpa_columns`; arguments as in `sdpa`.

    The mask's dims are those of the form by rows; it is transposed here.
    """
    variant = named(variant, sizes)

    def stages() -> Iterator[Stage]:
        rows = Columns(sizes, variant)
        yield from inputs(rows)
        names = yield from prepared(rows, "Q", "K", "V", turn="")
        weights, values = yield from weighted(rows, *names)
        yield Stage(
            "out",
            f"{rows.lead} d_V n_Q",
            f"{values} @ {weights}",
            "each query's weighted mean of the values: {d_V}×{n_K} values times {n_K}×{n_Q}"
            " weights, contracted over n_K: a column of {d_V} numbers for each query",
            product=f"{rows.lead} d_V n_K n_Q",
        )

    sizes = completed(sizes, variant)
    return plan("sdpa by columns", sizes, stages(), dtype)


def sdpa_query(
    sizes: dict[str, int], *, dtype: str = "float32", variant: Variant | None = None
) -> Trace:
    """Declare the steps of `attnscope.attention.one_query.sdpa_query`; arguments as in `sdpa`."""
    variant = named(variant, sizes)

    def stages() -> Iterator[Stage]:
        rows = OneQuery(sizes, variant)
        yield from inputs(rows)
        names = yield from split(rows)
        Q, K, V = yield from prepared(rows, *names, turn="rope_theta")
        yield Stage(
            "q",
            f"{rows.lead} d_K 1",
            f"{Q}[..., query, :, None]",
            "the query, {d_K} numbers, as a column vector, so that the matrix of keys can be"
            " multiplied by it",
            view_of=Q,
            layout=rows.layout_of(Q),
        )
        weights, values = yield from weighted(rows, "q", K, V)
        yield Stage(
            "terms",
            f"{rows.lead} n_K d_V",
            f"{weights} * {values}",
            "each of {n_K} values times its weight: the terms of the weighted sum, one per row",
        )
        yield Stage(
            "out",
            f"{rows.lead} d_V",
            "terms.sum(dim=-2)",
            "the sum over the {n_K} keys: the result of the query, {d_V} numbers",
        )

    sizes = completed(sizes, variant)
    return plan("sdpa of one query", sizes, stages(), dtype)
