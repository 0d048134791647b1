"""The declared steps of scaled dot-product attention, in its three forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attnscope.observe.contracts.plan import Stage, Variant, completed, named, plan
from attnscope.observe.contracts.stages import (
    Columns,
    OneQuery,
    RowForm,
    inputs,
    prepared,
    split,
    weighted,
)
from attnscope.observe.trace import Trace


def sdpa(sizes: dict[str, int], *, dtype: str = "float32", variant: Variant | None = None) -> Trace:
    """Declare the steps of `attnscope.attention.sdpa.sdpa`.

    Args:
        sizes: `n_Q n_K d_K d_V`, after none, one or both of `n_batch n_head`; `n_kv_head` if K and V
            have fewer heads; `n_past` if some of the n_K keys come from the past; `d_feat`, the width of
            the embeddings, if Q, K and V are projected.
    """

    def end(rows: RowForm, Q: str, K: str, V: str) -> Iterator[Stage]:
        weights, values = yield from weighted(rows, Q, K, V)
        out = f"{rows.lead} n_Q d_V"
        yield Stage(
            "out",
            out,
            f"{weights} @ {values}",
            "each query's weighted mean of the values: {n_Q}×{n_K} weights times {n_K}×{d_V}"
            " values, contracted over n_K: a row of {d_V} numbers for each query",
            product=f"{rows.lead} n_Q n_K d_V",
        )
        if rows.variant.split:
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

    return _planned("sdpa", RowForm, end, sizes, dtype, variant)


def sdpa_columns(
    sizes: dict[str, int], *, dtype: str = "float32", variant: Variant | None = None
) -> Trace:
    """Declare the steps of `attnscope.attention.columns.sdpa_columns`; arguments as in `sdpa`.

    The mask's dims are those of the form by rows; it is transposed here.
    """

    def end(rows: RowForm, Q: str, K: str, V: str) -> Iterator[Stage]:
        weights, values = yield from weighted(rows, Q, K, V)
        yield Stage(
            "out",
            f"{rows.lead} d_V n_Q",
            f"{values} @ {weights}",
            "each query's weighted mean of the values: {d_V}×{n_K} values times {n_K}×{n_Q}"
            " weights, contracted over n_K: a column of {d_V} numbers for each query",
            product=f"{rows.lead} d_V n_K n_Q",
        )

    return _planned("sdpa by columns", Columns, end, sizes, dtype, variant)


def sdpa_query(
    sizes: dict[str, int], *, dtype: str = "float32", variant: Variant | None = None
) -> Trace:
    """Declare the steps of `attnscope.attention.one_query.sdpa_query`; arguments as in `sdpa`."""

    def end(rows: RowForm, Q: str, K: str, V: str) -> Iterator[Stage]:
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

    return _planned("sdpa of one query", OneQuery, end, sizes, dtype, variant)


def _planned(
    title: str,
    form: type[RowForm],
    end: Callable[[RowForm, str, str, str], Iterator[Stage]],
    sizes: dict[str, int],
    dtype: str,
    variant: Variant | None,
) -> Trace:
    """Plan the stages of a form, which differ from the scores on: these are those of `end`."""
    variant = named(variant, sizes)
    rows = form(completed(sizes, variant), variant)

    def stages() -> Iterator[Stage]:
        yield from inputs(rows)
        names = ("Q", "K", "V") if form is Columns else (yield from split(rows))
        names = yield from prepared(rows, *names, turn="" if form is Columns else "rope_theta")
        yield from end(rows, *names)

    return plan(title, rows.sizes, stages(), dtype)
