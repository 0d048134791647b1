"""The declared steps of `attnscope.attention`, variant by variant.

Stages stand here in the order, and under the names, that they have in the code.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from math import inf

from attnscope.contracts.plan import INPUT, Stage, check_sizes, plan
from attnscope.errors import groups_are_uneven, heads_do_not_divide, width_is_odd
from attnscope.results import Trace

QKV = Generator[Stage, None, tuple[str, str, str]]
"""Stages, and at their end the names of the Q, K and V that the next ones work on."""


@dataclass(frozen=True)
class Variant:
    """What decides which stages there are, beside the sizes.

    Attributes:
        mask: the mask's dims, or None for no mask.
        mask_dtype: `bool`, or empty for an additive one, which has the inputs' dtype.
        mask_fill: the score of a key that a boolean mask hides.
        masked_rows: what becomes of queries that see no key, if that is chosen.
        split: Q, K and V come with heads side by side, and are split; the result is merged.
        rope_theta: the base of rotary positions, or None for none.
        softcap: what the scores are capped at, or None.
        dropout: the share of weights that is dropped.
        embeddings: Q, K and V are projections of X.
    """

    mask: str | None = None
    mask_dtype: str = "bool"
    mask_fill: float = -inf
    masked_rows: str | None = None
    split: bool = False
    rope_theta: float | None = None
    softcap: float | None = None
    dropout: float = 0.0
    embeddings: bool = False


def sdpa(sizes: dict[str, int], *, dtype: str = "float32", variant: Variant | None = None) -> Trace:
    """The steps of `attnscope.attention.sdpa.sdpa`.

    Args:
        sizes: `n_Q n_K d_K d_V`, after none, one or both of `n_batch n_head`; `n_kv_head` where
            K and V have fewer heads; `n_past` where some of the n_K keys are of the past;
            `d_feat`, an embedding's width, where they are projected.
        dtype: the inputs'.
        variant: which stages there are.

    Raises:
        SizeError: a size is not a positive whole number, or they do not fit together.
        OptionError: an unknown dtype.
    """
    variant = _named(variant, sizes)

    def stages() -> Iterator[Stage]:
        rows = _Rows(sizes, variant)
        yield from _inputs(rows)
        names = yield from _split(rows)
        names = yield from _prepared(rows, *names, turn="rope_theta")
        weights, values = yield from _weighted(rows, *names)
        out = f"{rows.lead} n_Q d_V"
        yield Stage(
            "out",
            out,
            f"{weights} @ {values}",
            "each query's weighted mean of the values: {n_Q}×{n_K} weights times {n_K}×{d_V} values;"
            " n_K is summed away, and a row of {d_V} is left for each of {n_Q} queries",
            product=f"{rows.lead} n_Q n_K d_V",
        )
        if variant.split:
            yield Stage(
                "out_merged",
                "n_batch n_Q n_head·d_V",
                "merge_heads(out, n_head)",
                "the heads moved back and put side by side: {n_head} × {d_V} numbers for each query;"
                " a copy, because they do not lie side by side in memory",
                view_of="out",
                layout=out,
                copied=True,
            )

    sizes = _completed(sizes, variant)
    return plan("sdpa", sizes, stages(), dtype)


def sdpa_columns(
    sizes: dict[str, int], *, dtype: str = "float32", variant: Variant | None = None
) -> Trace:
    """The steps of `attnscope.attention.columns.sdpa_columns`; arguments as of `sdpa`.

    The mask's dims are those of the rows' form; here it stands transposed.
    """
    variant = _named(variant, sizes)

    def stages() -> Iterator[Stage]:
        rows = _Columns(sizes, variant)
        yield from _inputs(rows)
        names = yield from _prepared(rows, "Q", "K", "V", turn="")
        weights, values = yield from _weighted(rows, *names)
        yield Stage(
            "out",
            f"{rows.lead} d_V n_Q",
            f"{values} @ {weights}",
            "each query's weighted mean of the values: {d_V}×{n_K} values times {n_K}×{n_Q} weights;"
            " n_K is summed away, and a column of {d_V} is left for each of {n_Q} queries",
            product=f"{rows.lead} d_V n_K n_Q",
        )

    sizes = _completed(sizes, variant)
    return plan("sdpa by columns", sizes, stages(), dtype)


def sdpa_query(
    sizes: dict[str, int], *, dtype: str = "float32", variant: Variant | None = None
) -> Trace:
    """The steps of `attnscope.attention.one_query.sdpa_query`; arguments as of `sdpa`."""
    variant = _named(variant, sizes)

    def stages() -> Iterator[Stage]:
        rows = _OneQuery(sizes, variant)
        yield from _inputs(rows)
        names = yield from _split(rows)
        Q, K, V = yield from _prepared(rows, *names, turn="rope_theta")
        yield Stage(
            "q",
            f"{rows.lead} d_K 1",
            f"{Q}[..., query, :, None]",
            "the one query, {d_K} numbers, as a column: a matrix of keys can be multiplied with it",
            view_of=Q,
            layout=rows.layout_of(Q),
        )
        weights, values = yield from _weighted(rows, "q", K, V)
        yield Stage(
            "terms",
            f"{rows.lead} n_K d_V",
            f"{weights} * {values}",
            "each of {n_K} values times its weight: the terms of the weighted sum, one a row",
        )
        yield Stage(
            "out",
            f"{rows.lead} d_V",
            "terms.sum(dim=-2)",
            "their sum over the {n_K} keys: what the query collects, {d_V} numbers",
        )

    sizes = _completed(sizes, variant)
    return plan("sdpa of one query", sizes, stages(), dtype)


def mha(
    sizes: dict[str, int],
    *,
    dtype: str = "float32",
    variant: Variant | None = None,
    self_attention: bool = True,
    v_is_k: bool = True,
) -> Trace:
    """The steps of `attnscope.attention.mha.MultiHeadAttention.forward`.

    Args:
        sizes: `n_batch n_Q n_K d_feat n_head`, and where they differ from what they are else
            `n_kv_head` (n_head), `d_V` (d_head) and `d_context` (d_feat); `n_past` where some of
            the n_K keys are of the past. `d_head` follows.
        dtype: the inputs'.
        variant: which stages there are.
        self_attention: K and V are Q itself.
        v_is_k: otherwise, V is K.

    Raises:
        SizeError: a size is not a positive whole number, or they do not fit together.
        OptionError: an unknown dtype.
    """
    variant = _named(variant, sizes)

    def projection(name: str, n: str, d_in: str, heads: str, width: str) -> Stage:
        merged = _merged(heads, width, sizes)
        return Stage(
            f"{name}_feat",
            f"n_batch {n} {merged}",
            f"self.W_{name}({name})",
            f"a learnt linear layer: each row of {{{d_in}}} becomes one of"
            f" {{{heads}}} heads × {{{width}}}; rows stay as many",
            product=f"n_batch {n} {d_in} {heads} {width}",
        )

    def split(name: str, n: str, heads: str, width: str) -> Stage:
        rows = "n_Q" if name == "Q" else "-1"
        return Stage(
            f"{name}_split",
            f"n_batch {heads} {n} {width}",
            f"{name}_feat.view(n_batch, {rows}, {'n_head' if name == 'Q' else 'n_kv_head'},"
            f" {'d_V' if name == 'V' else 'd_head'}).transpose(1, 2)",
            f"the width cut into {{{heads}}} heads of {{{width}}}, and the heads moved before the rows:"
            f" each head is a {{{n}}}×{{{width}}} matrix of its own; nothing is copied",
            view_of=f"{name}_feat",
            layout=f"n_batch {n} {heads} {width}",
        )

    def stages() -> Iterator[Stage]:
        rows = _Rows(sizes, variant, d_K="d_head", d_V=d_V, scale="self.scale", of_self="self.")
        source, n_K = f"n_batch {rows.new} {d_context}", rows.new
        yield Stage(
            "Q",
            "n_batch n_Q d_feat",
            INPUT,
            "what asks: {n_Q} queries in each of {n_batch} sequences, {d_feat} numbers each",
        )
        why = f"what is compared with: {{{n_K}}} keys, {{{d_context}}} numbers each"
        yield Stage(
            "K",
            source,
            INPUT,
            why + ("; Q itself, because this is self-attention" if self_attention else ""),
            same_as="Q" if self_attention else None,
        )
        yield Stage(
            "V",
            source,
            INPUT,
            f"what is collected: one value for each of {{{n_K}}} keys, from the same source",
            same_as="Q" if self_attention else "K" if v_is_k else None,
        )
        yield from _mask_and_past(rows)
        yield projection("Q", "n_Q", "d_feat", "n_head", "d_head")
        yield projection("K", n_K, d_context, rows.kv_head, "d_head")
        yield projection("V", n_K, d_context, rows.kv_head, d_V)
        yield split("Q", "n_Q", "n_head", "d_head")
        yield split("K", n_K, rows.kv_head, "d_head")
        yield split("V", n_K, rows.kv_head, d_V)
        names = yield from _prepared(rows, "Q_split", "K_split", "V_split", turn="self.rope_theta")
        weights, values = yield from _weighted(rows, *names)
        x_raw = f"n_batch n_head n_Q {d_V}"
        yield Stage(
            "x_raw",
            x_raw,
            f"{weights} @ {values}",
            f"in each head, each query's weighted mean of the values: {{n_Q}}×{{n_K}} times"
            f" {{n_K}}×{{{d_V}}};"
            " n_K is summed away",
            product=f"n_batch n_head n_Q n_K {d_V}",
        )
        yield Stage(
            "x_rsh1",
            f"n_batch n_Q n_head {d_V}",
            "x_raw.transpose(1, 2).contiguous()",
            f"the heads moved back behind the rows, so that a query's {{n_head}} × {{{d_V}}} numbers"
            " lie side by"
            " side: that takes a copy",
            view_of="x_raw",
            layout=x_raw,
            copied=True,
        )
        yield Stage(
            "x_rsh2",
            f"n_batch n_Q {_merged('n_head', d_V, sizes)}",
            "x_rsh1.view(n_batch, n_Q, n_head * d_V)",
            f"the same numbers with the heads merged: {{n_head}} · {{{d_V}}} in one row; nothing is"
            " copied",
            view_of="x_rsh1",
        )
        yield Stage(
            "x",
            "n_batch n_Q d_feat",
            "self.W_O(x_rsh2)",
            "a learnt linear layer mixes what the heads found, back to the model's width of {d_feat}",
            product=f"n_batch n_Q n_head {d_V} d_feat",
        )

    check_sizes(sizes)
    if sizes["d_feat"] % sizes["n_head"]:
        raise heads_do_not_divide(sizes["d_feat"], sizes["n_head"])
    sizes = sizes | {"d_head": sizes["d_feat"] // sizes["n_head"]}
    for special, usual in (("d_V", "d_head"), ("d_context", "d_feat")):
        if sizes.get(special) == sizes[usual]:
            del sizes[special]
    d_V = "d_V" if "d_V" in sizes else "d_head"
    d_context = "d_context" if "d_context" in sizes else "d_feat"
    sizes = _completed(sizes, variant, d_K="d_head")
    return plan("mha", sizes, stages(), dtype)


# The axes of one form of the formula.


class _Rows:
    """By rows: every query, key and value is a row."""

    keys_dim = -1
    of_scores = "n_Q n_K"

    def __init__(
        self,
        sizes: dict[str, int],
        variant: Variant,
        *,
        d_K: str = "d_K",
        d_V: str = "d_V",
        scale: str = "scale",
        of_self: str = "",
    ) -> None:
        self.sizes, self.variant = sizes, variant
        self.d_K, self.d_V = d_K, d_V
        self.scale, self.of_self = scale, of_self
        self.lead = " ".join(axis for axis in ("n_batch", "n_head") if axis in sizes)
        self.kv_head = "n_kv_head" if "n_kv_head" in sizes else "n_head"
        self.kv_lead = self.lead.replace("n_head", self.kv_head)
        self.new = "n_new" if "n_past" in sizes else "n_K"
        split = variant.split or of_self
        self._layouts = (
            {"Q": "n_batch n_Q n_head " + d_K, "K": f"n_batch {self.new} {self.kv_head} {d_K}"}
            if split
            else {}
        )

    def vectors(self, lead: str, n: str, d: str) -> str:
        """The axes of `n` vectors of width `d`."""
        return f"{lead} {n} {d}"

    def layout_of(self, name: str) -> str:
        """How queries or keys lie in memory while nobody has copied them."""
        which = name[0]
        usual = (
            f"{self.lead} n_Q {self.d_K}" if which == "Q" else f"{self.kv_lead} {self.new} {self.d_K}"
        )
        return self._layouts.get(which, usual)

    def product(self, Q: str, K: str) -> str:
        """The expression that compares every query with every key."""
        return f"{Q} @ {K}.mT * {self.scale}"

    def mask_dims(self) -> str:
        return self.variant.mask or ""

    @property
    def scores(self) -> str:
        return f"{self.lead} {self.of_scores}"

    why_scores = (
        "every query times every key. Queries and keys both lie in rows, but a product of matrices runs"
        " along the rows of the left one and down the columns of the right one: so K is transposed,"
        " {n_Q}×{_d_K} times {_d_K}×{n_K} gives {n_Q}×{n_K}; the width is summed away. The scale keeps"
        " the variance of these sums of {_d_K} products near that of one"
    )
    why_attention = (
        "softmax along the keys: each query's {n_K} weights are positive and sum to 1; the shape stays"
    )


class _Columns(_Rows):
    """By columns: everything transposed."""

    keys_dim = -2
    of_scores = "n_K n_Q"
    why_scores = (
        "every key times every query. Queries and keys both stand in columns, but a product of matrices"
        " runs along the rows of the left one and down the columns of the right one: so K is transposed,"
        " {n_K}×{_d_K} times {_d_K}×{n_Q} gives {n_K}×{n_Q}. The scale keeps the variance of these sums"
        " of {_d_K} products near that of one"
    )
    why_attention = "softmax down the columns: each query's {n_K} weights stand in one, and sum to 1"

    def vectors(self, lead: str, n: str, d: str) -> str:
        return f"{lead} {d} {n}"

    def product(self, Q: str, K: str) -> str:
        return f"{K}.mT @ {Q} * {self.scale}"

    def mask_dims(self) -> str:
        *lead, n_Q, n_K = (self.variant.mask or "n_Q n_K").split()
        return " ".join([*lead, n_K, n_Q])


class _OneQuery(_Rows):
    """One query, as a column; the keys still are rows."""

    keys_dim = -2
    of_scores = "n_K 1"
    why_scores = (
        "the query times every key: {n_K}×{_d_K} times {_d_K}×1 gives {n_K}×1, one number for each key."
        " The scale keeps the variance of these sums of {_d_K} products near that of one"
    )
    why_attention = "softmax over the keys: {n_K} weights that are positive and sum to 1"

    def product(self, Q: str, K: str) -> str:
        return f"{K} @ {Q} * {self.scale}"


# The stages, in the order of the code.


def _inputs(rows: _Rows) -> Iterator[Stage]:
    variant, new = rows.variant, rows.new
    lead, kv_lead = rows.lead, rows.kv_lead
    d = {"Q": "d_K", "K": "d_K", "V": "d_V"}
    if variant.split:
        lead = kv_lead = "n_batch"
        d = {name: f"{'n_head' if name == 'Q' else rows.kv_head}·{width}" for name, width in d.items()}
    places = {"Q": (lead, "n_Q"), "K": (kv_lead, new), "V": (kv_lead, new)}
    dims = {name: rows.vectors(*places[name], d[name]) for name in d}
    where = "".join(
        f" in each of {{{axis}}} {what}"
        for axis, what in (("n_batch", "sequences"), ("n_head", "heads"))
        if axis in lead.split()
    )
    if variant.embeddings:
        yield from _projected(rows, dims, d)
    else:
        yield Stage(
            "Q", dims["Q"], INPUT, f"what asks: {{n_Q}} queries{where}, {_size(d['Q'])} numbers each"
        )
        yield Stage(
            "K",
            dims["K"],
            INPUT,
            f"what is compared with: {{{new}}} keys, as wide as the queries,"
            " because the two are multiplied number by number and summed",
        )
        yield Stage(
            "V",
            dims["V"],
            INPUT,
            f"what is collected: one value for each of {{{new}}} keys;"
            f" its width, {_size(d['V'])}, is the result's",
        )
    yield from _mask_and_past(rows)


def _projected(rows: _Rows, dims: dict[str, str], widths: dict[str, str]) -> Iterator[Stage]:
    """X, the three weights, and what they make of it."""
    columns = isinstance(rows, _Columns)
    lead = "n_batch" if "n_batch" in rows.sizes else ""
    yield Stage(
        "X",
        rows.vectors(lead, rows.new, "d_feat"),
        INPUT,
        f"embeddings: {{{rows.new}}} of them, {{d_feat}} numbers each; queries, keys and values are"
        " made of"
        " the same ones",
    )
    for name, width in widths.items():
        yield Stage(
            f"W_{name}",
            f"{width} d_feat" if columns else f"d_feat {width}",
            INPUT,
            f"learnt weights: they turn {{d_feat}} numbers into {_size(width)}",
        )
    for name, width in widths.items():
        n = "n_Q" if name == "Q" else rows.new
        yield Stage(
            name,
            dims[name],
            f"W_{name} @ X" if columns else f"X @ W_{name}",
            f"each embedding times W_{name}: {{{n}}} of them, {_size(width)} numbers each",
            product=f"{lead} {n} d_feat {width}",
        )


def _mask_and_past(rows: _Rows) -> Iterator[Stage]:
    variant = rows.variant
    if variant.mask is not None:
        meaning = (
            "True where a query may look at a key"
            if variant.mask_dtype == "bool"
            else "added to the scores: 0 where a query may look at a key, a large negative number where"
            " not"
        )
        spread = "; axes of 1 stand for all" if "1" in variant.mask.split() else ""
        yield Stage("mask", rows.mask_dims(), INPUT, meaning + spread, dtype=variant.mask_dtype)
    if "n_past" in rows.sizes:
        why = "of {n_past} earlier positions, computed when they were new, and kept"
        yield Stage("K_past", rows.vectors(rows.kv_lead, "n_past", rows.d_K), INPUT, "keys " + why)
        yield Stage("V_past", rows.vectors(rows.kv_lead, "n_past", rows.d_V), INPUT, "values " + why)


def _split(rows: _Rows) -> QKV:
    """Heads side by side become heads of their own."""
    if not rows.variant.split:
        return "Q", "K", "V"
    places = {
        "Q": ("n_Q", "n_head", "d_K"),
        "K": (rows.new, rows.kv_head, "d_K"),
        "V": (rows.new, rows.kv_head, "d_V"),
    }
    for name, (n, heads, width) in places.items():
        yield Stage(
            f"{name}_split",
            f"n_batch {heads} {n} {width}",
            f"split_heads({name}, {'n_head' if name == 'Q' else 'n_kv_head or n_head'})",
            f"the width cut into {{{heads}}} heads of {{{width}}}, and the heads moved before the rows:"
            f" each head is a {{{n}}}×{{{width}}} matrix of its own; nothing is copied",
            view_of=name,
            layout=f"n_batch {n} {heads} {width}",
        )
    return "Q_split", "K_split", "V_split"


def _prepared(rows: _Rows, Q: str, K: str, V: str, turn: str) -> QKV:
    """Queries and keys are turned, the past comes before the new, and groups share their keys."""
    variant, sizes, d = rows.variant, rows.sizes, rows.d_K
    if variant.rope_theta is not None:
        for name in ("cos", "sin"):
            yield Stage(
                name,
                f"n_pos {d}",
                f"rotary_angles(positions, Q_split, {turn})".replace("Q_split", Q),
                f"{'co' if name == 'cos' else ''}sine of the angles: at each of {{n_pos}} positions one"
                " for each pair of a"
                f" vector's {{{d}}} numbers, twice, because its two halves are the pairs' two"
                " coordinates",
            )
        for name, made in (("Q", Q), ("K", K)):
            n = "n_Q" if name == "Q" else rows.new
            lead = rows.lead if name == "Q" else rows.kv_lead
            yield Stage(
                f"{name}_rot",
                f"{lead} {n} {d}",
                f"rotated({made}, cos, sin, {name}_at)",
                f"each of {{{n}}} vectors turned by the angles of its position; lengths and shape stay",
                layout=rows.layout_of(name),
            )
        Q, K = "Q_rot", "K_rot"
    dim = ", dim=-1" if isinstance(rows, _Columns) else ""
    if "n_past" in sizes:
        for name, new, width in (("K", K, d), ("V", V, rows.d_V)):
            yield Stage(
                f"{name}_all",
                rows.vectors(rows.kv_lead, "n_K", width),
                f"with_past({name}_past, {new}{dim})",
                "those of the past, and then the new ones: {n_past} + {n_new} = {n_K}",
            )
        K, V = "K_all", "V_all"
    if "n_kv_head" in sizes:
        for name, few, width in (("K", K, d), ("V", V, rows.d_V)):
            yield Stage(
                f"{name}_shared",
                rows.vectors(rows.lead, "n_K", width),
                f"shared({few}, {Q})",
                "each of {n_kv_head} heads repeated, next to itself, until every one of {n_head} query"
                " heads has one",
            )
        K, V = "K_shared", "V_shared"
    return Q, K, V


def _weighted(rows: _Rows, Q: str, K: str, V: str) -> Generator[Stage, None, tuple[str, str]]:
    """Scores, and what becomes of them until they are the weights of the values."""
    variant = rows.variant
    yield Stage(
        "scores",
        rows.scores,
        rows.product(Q, K),
        rows.why_scores.replace("_d_K", rows.d_K),
        product=f"{rows.scores} {rows.d_K}".replace(" 1", ""),
    )
    last = "scores"
    if variant.softcap is not None:
        yield Stage(
            "scores_capped",
            rows.scores,
            f"capped({last}, {rows.of_self}softcap)",
            f"c·tanh(s/c): small scores stay, and none goes beyond ±{variant.softcap:g}; the shape"
            " stays",
        )
        last = "scores_capped"
    mask = "mask"
    if variant.mask is not None:
        if isinstance(rows, _OneQuery):
            *lead, _, _ = variant.mask.split()
            yield Stage(
                "mask_q",
                " ".join([*lead, "n_K", "1"]),
                "mask_of(query, mask)",
                "the query's row of the mask, as a column",
                view_of="mask",
                layout=variant.mask,
                dtype=variant.mask_dtype,
            )
            mask = "mask_q"
        why = (
            f"{variant.mask_fill:g} in the place of scores that a query must not see"
            if variant.mask_dtype == "bool"
            else "the mask added"
        )
        yield Stage(
            "scores_masked",
            rows.scores,
            f"masked({last}, {mask}, {rows.of_self}mask_fill)",
            why + ": the softmax makes nothing of them; the shape stays",
        )
        last = "scores_masked"
    dim = "" if rows.keys_dim == -1 else f", dim={rows.keys_dim}"
    yield Stage(
        "attention",
        rows.scores,
        f"softmax({last}, {rows.of_self}softmax_dtype{dim})",
        rows.why_attention,
    )
    last = "attention"
    if variant.masked_rows is not None and variant.mask is not None:
        weight = {"nan": "NaN", "uniform": "1/{n_K}", "zero": "0"}[variant.masked_rows]
        yield Stage(
            "attention_filled",
            rows.scores,
            f"filled({last}, {mask}, {rows.of_self}masked_rows{dim})",
            f"a query that sees no key at all has {weight} for each; the others stay",
        )
        last = "attention_filled"
    if variant.dropout:
        yield Stage(
            "attention_drop",
            rows.scores,
            f"self.dropout({last})",
            f"while it learns, each weight is dropped with a chance of {variant.dropout:g}, and those"
            " that stay grow to make up for it; the shape stays",
        )
        last = "attention_drop"
    return last, V


# Sizes.


def _completed(sizes: dict[str, int], variant: Variant, d_K: str = "d_K") -> dict[str, int]:
    """All sizes that the stages name, in the order in which people read them."""
    check_sizes(sizes)
    sizes = dict(sizes)
    n_head, n_kv_head = sizes.get("n_head", 1), sizes.get("n_kv_head")
    if n_kv_head is not None:
        if n_head % n_kv_head:
            raise groups_are_uneven(n_head, n_kv_head)
        if n_kv_head == n_head:
            del sizes["n_kv_head"]
    if "n_past" in sizes:
        sizes["n_new"] = sizes["n_K"] - sizes["n_past"]
        check_sizes(sizes)
    if variant.rope_theta is not None:
        if sizes[d_K] % 2:
            raise width_is_odd(d_K, sizes[d_K])
        sizes["n_pos"] = max(sizes["n_Q"], sizes["n_K"])
    place = {axis: i for i, axis in enumerate(ORDER)}
    return dict(sorted(sizes.items(), key=lambda item: place[item[0]]))


def _named(variant: Variant | None, sizes: dict[str, int]) -> Variant:
    """The variant, with a mask whose axes bear their names even where they are of size 1 anyway."""
    variant = variant or Variant()
    if variant.mask is None:
        return variant
    axes = [axis for axis in ("n_batch", "n_head", "n_Q", "n_K") if axis in sizes]
    mask = variant.mask.split()
    aligned = zip(axes[len(axes) - len(mask) :], mask, strict=True)
    dims = " ".join(axis if sizes[axis] == 1 else said for axis, said in aligned)
    return replace(variant, mask=dims)


ORDER = (
    *("n_batch", "n_Q", "n_past", "n_new", "n_K", "n_pos"),
    *("d_feat", "d_context", "n_head", "n_kv_head", "d_head", "d_K", "d_V"),
)


def _merged(heads: str, width: str, sizes: dict[str, int]) -> str:
    """Heads side by side; the model's width where it is that."""
    return "d_feat" if (heads, width) == ("n_head", "d_head") else f"{heads}·{width}"


def _size(axis: str) -> str:
    """An axis in a sentence: its size, or its factors'."""
    return "·".join(f"{{{part}}}" for part in axis.split("·"))
