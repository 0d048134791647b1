"""The stages that `sdpa` and `mha` share, in the order of the code, and the forms of the formula."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from attnscope.observe.contracts.plan import INPUT, Stage, Variant

QKV = Generator[Stage, None, tuple[str, str, str]]
"""A generator of stages that returns the names of the Q, K and V for the next stages."""


def inputs(rows: RowForm) -> Iterator[Stage]:
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
        if axis in lead.split() and rows.sizes[axis] > 1
    )
    if variant.embeddings:
        yield from _projected(rows, dims, d)
    else:
        why = {
            "Q": f"queries: {{n_Q}} vectors of {size_text(d['Q'])} numbers{where}",
            "K": f"keys: {{{new}}} vectors, as wide as the queries,"
            " because a score is the dot product of a query and a key",
            "V": f"values: one vector for each key, {{{new}}} in all;"
            f" their width, {size_text(d['V'])}, is that of the result",
        }
        for name, sentence in why.items():
            yield Stage(name, dims[name], INPUT, sentence)
    yield from mask_and_past(rows)


def _projected(rows: RowForm, dims: dict[str, str], widths: dict[str, str]) -> Iterator[Stage]:
    """Declare X, the three projection weights, and the projected Q, K and V."""
    columns = isinstance(rows, Columns)
    lead = "n_batch" if "n_batch" in rows.sizes else ""
    yield Stage(
        "X",
        rows.vectors(lead, rows.new, "d_feat"),
        INPUT,
        f"embeddings: {{{rows.new}}} vectors of {{d_feat}} numbers;"
        " queries, keys and values are all projections of them",
    )
    for name, width in widths.items():
        yield Stage(
            f"W_{name}",
            f"{width} d_feat" if columns else f"d_feat {width}",
            INPUT,
            f"learned weights, which project {{d_feat}} numbers to {size_text(width)}",
        )
    for name, width in widths.items():
        n = "n_Q" if name == "Q" else rows.new
        yield Stage(
            name,
            dims[name],
            f"W_{name} @ X" if columns else f"X @ W_{name}",
            f"each embedding times W_{name}: {{{n}}} vectors of {size_text(width)} numbers",
            product=f"{lead} {n} d_feat {width}",
        )


def mask_and_past(rows: RowForm) -> Iterator[Stage]:
    variant = rows.variant
    if variant.mask is not None:
        meaning = (
            "True where a query may attend to a key"
            if variant.mask_dtype == "bool"
            else "added to the scores: 0 changes nothing, and a large negative number hides a key"
        )
        spread = "; axes of size 1 are broadcast" if "1" in variant.mask.split() else ""
        yield Stage("mask", rows.mask_dims(), INPUT, meaning + spread, dtype=variant.mask_dtype)
    if "n_past" in rows.sizes:
        why = "of the {n_past} previous positions, from the cache"
        yield Stage("K_past", rows.vectors(rows.kv_lead, "n_past", rows.d_K), INPUT, "keys " + why)
        yield Stage("V_past", rows.vectors(rows.kv_lead, "n_past", rows.d_V), INPUT, "values " + why)


def split(rows: RowForm) -> QKV:
    """Declare the splitting of merged heads."""
    if not rows.variant.split:
        return "Q", "K", "V"
    places = {
        "Q": ("n_Q", "n_head", "d_K"),
        "K": (rows.new, rows.kv_head, "d_K"),
        "V": (rows.new, rows.kv_head, "d_V"),
    }
    for name, (n, heads, width) in places.items():
        how = f"split_heads({name}, {'n_head' if name == 'Q' else 'n_kv_head or n_head'})"
        yield split_stage(name, name, how, n, heads, width)
    return "Q_split", "K_split", "V_split"


def split_stage(name: str, source: str, how: str, n: str, heads: str, width: str) -> Stage:
    """Declare the splitting of a width of `n` rows into heads."""
    return Stage(
        f"{name}_split",
        f"n_batch {heads} {n} {width}",
        how,
        f"the width is split into {{{heads}}} heads of {{{width}}}, and the heads are moved before"
        f" the rows: each head is a separate {{{n}}}×{{{width}}} matrix; nothing is copied",
        view_of=source,
        layout=f"n_batch {n} {heads} {width}",
    )


def prepared(rows: RowForm, Q: str, K: str, V: str, turn: str) -> QKV:
    """Declare the stages before the scores: rotary positions, the past, and shared key heads."""
    variant, sizes, d = rows.variant, rows.sizes, rows.d_K
    if variant.rope_theta is not None:
        for name in ("cos", "sin"):
            yield Stage(
                name,
                f"n_pos {d}",
                f"rotary_angles(positions, Q_split, {turn})".replace("Q_split", Q),
                f"{'co' if name == 'cos' else ''}sine of the rotation angles: at each of {{n_pos}}"
                f" positions one for each pair of a vector's {{{d}}} numbers, repeated because its"
                " two halves are the pairs' two coordinates",
            )
        for name, source in (("Q", Q), ("K", K)):
            n = "n_Q" if name == "Q" else rows.new
            lead = rows.lead if name == "Q" else rows.kv_lead
            yield Stage(
                f"{name}_rot",
                f"{lead} {n} {d}",
                f"rotated({source}, cos, sin, {name}_at)",
                f"each of {{{n}}} vectors is rotated by the angles of its position; lengths and"
                " shape do not change",
                layout=rows.layout_of(name),
            )
        Q, K = "Q_rot", "K_rot"
    dim = ", dim=-1" if isinstance(rows, Columns) else ""
    if "n_past" in sizes:
        for name, new, width in (("K", K, d), ("V", V, rows.d_V)):
            yield Stage(
                f"{name}_all",
                rows.vectors(rows.kv_lead, "n_K", width),
                f"with_past({name}_past, {new}{dim})",
                "the cached ones, then the new ones: {n_past} + {n_new} = {n_K}",
            )
        K, V = "K_all", "V_all"
    if "n_kv_head" in sizes:
        for name, few, width in (("K", K, d), ("V", V, rows.d_V)):
            yield Stage(
                f"{name}_shared",
                rows.vectors(rows.lead, "n_K", width),
                f"shared({few}, {Q})",
                "each of {n_kv_head} heads is repeated in place, so that each of {n_head} query"
                " heads has one",
            )
        K, V = "K_shared", "V_shared"
    return Q, K, V


def weighted(rows: RowForm, Q: str, K: str, V: str) -> Generator[Stage, None, tuple[str, str]]:
    """Declare the scores and all stages up to the final weights; return the names of weights and V."""
    variant = rows.variant
    yield Stage(
        "scores",
        rows.scores,
        rows.product(Q, K),
        rows.why_scores.replace("{_scale}", _why_scale(rows)).replace("_d_K", rows.d_K),
        product=f"{rows.scores} {rows.d_K}".replace(" 1", ""),
    )
    last, mask = "scores", "mask"
    if variant.softcap is not None:
        yield Stage(
            "scores_capped",
            rows.scores,
            f"capped({last}, {rows.of_self}softcap)",
            f"c·tanh(s/c): small scores hardly change, and none exceeds ±{variant.softcap:g}; the"
            " shape does not change",
        )
        last = "scores_capped"
    if variant.mask is not None:
        mask = yield from _masked(rows, last)
        last = "scores_masked"
    last = yield from _weights(rows, last, mask)
    return last, V


def _masked(rows: RowForm, scores: str) -> Generator[Stage, None, str]:
    """Declare the masked scores, and return the mask's name."""
    variant, mask = rows.variant, "mask"
    assert variant.mask is not None
    if isinstance(rows, OneQuery):
        lead = variant.mask.split()[:-2]
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
        f"masked scores are replaced by {variant.mask_fill:g}, so that the softmax gives them no weight"
        if variant.mask_dtype == "bool"
        else "the mask is added: a large negative number leaves a key no weight"
    )
    yield Stage(
        "scores_masked",
        rows.scores,
        f"masked({scores}, {mask}, {rows.of_self}mask_fill)",
        f"{why}; the shape does not change",
    )
    return mask


def _weights(rows: RowForm, scores: str, mask: str) -> Generator[Stage, None, str]:
    """Declare the softmax and the stages after it, and return the name of the final weights."""
    variant = rows.variant
    hidden = "; a masked key has weight 0, unless the query sees no key at all"
    why = rows.why_attention.replace("{_hidden}", "" if variant.mask is None else hidden)
    dim = "" if rows.keys_dim == -1 else f", dim={rows.keys_dim}"
    yield Stage(
        "attention",
        rows.scores,
        f"softmax({scores}, {rows.of_self}softmax_dtype{dim})",
        why,
    )
    last = "attention"
    if variant.masked_rows is not None and variant.mask is not None:
        weight = {"nan": "NaN", "uniform": "1/{n_K}", "zero": "0"}[variant.masked_rows]
        yield Stage(
            "attention_filled",
            rows.scores,
            f"filled({last}, {mask}, {rows.of_self}masked_rows{dim})",
            f"a query that sees no key has weight {weight} for each key; the others do not change",
        )
        last = "attention_filled"
    if variant.dropout:
        yield Stage(
            "attention_drop",
            rows.scores,
            f"self.dropout({last})",
            f"in training, each weight is dropped with probability {variant.dropout:g}, and the"
            " others are scaled up to compensate; the shape does not change",
        )
        last = "attention_drop"
    return last


def _why_scale(rows: RowForm) -> str:
    """Explain the scale, or say that another one was chosen."""
    if rows.variant.scale is None:
        return (
            "The scale, 1/√{_d_K}, keeps the variance of these sums of {_d_K} products near that"
            " of a single product"
        )
    return (
        f"The scores are multiplied by {rows.variant.scale:.4g}; 1/√{{_d_K}} would keep the"
        " variance of these sums of {_d_K} products near that of a single product"
    )


def size_text(axis: str) -> str:
    """Return the placeholder of an axis's size, or of its factors' sizes, for a sentence."""
    return "·".join(f"{{{part}}}" for part in axis.split("·"))


class RowForm:
    """The form by rows: every query, key and value is a row."""

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
        self.is_split = bool(variant.split or of_self)

    def vectors(self, lead: str, n: str, d: str) -> str:
        """Return the axes of `n` vectors of width `d`."""
        return f"{lead} {n} {d}"

    def layout_of(self, name: str) -> str:
        """Return the memory order of the axes of queries or keys that have not been copied."""
        is_query = name[0] == "Q"
        n, heads = ("n_Q", "n_head") if is_query else (self.new, self.kv_head)
        if self.is_split:
            return f"n_batch {n} {heads} {self.d_K}"
        return f"{self.lead if is_query else self.kv_lead} {n} {self.d_K}"

    def product(self, Q: str, K: str) -> str:
        """Return the expression of the scores of all queries and keys."""
        return f"{Q} @ {K}.mT * {self.scale}"

    def mask_dims(self) -> str:
        return self.variant.mask or ""

    @property
    def scores(self) -> str:
        return f"{self.lead} {self.of_scores}"

    why_scores = (
        "the dot product of every query with every key: {n_Q}×{_d_K} times {_d_K}×{n_K} gives"
        " {n_Q}×{n_K}, contracted over the width. Queries and keys are both rows, but a matrix"
        " product multiplies rows of the left matrix by columns of the right one, so K is"
        " transposed. {_scale}"
    )
    why_attention = (
        "softmax over the keys: for each query {n_K} non-negative weights that sum to 1{_hidden};"
        " the shape does not change"
    )


class Columns(RowForm):
    """The form by columns: everything is transposed."""

    keys_dim = -2
    of_scores = "n_K n_Q"
    why_scores = (
        "the dot product of every key with every query: {n_K}×{_d_K} times {_d_K}×{n_Q} gives"
        " {n_K}×{n_Q}, contracted over the width. Queries and keys are both columns, but a matrix"
        " product multiplies rows of the left matrix by columns of the right one, so K is"
        " transposed. {_scale}"
    )
    why_attention = (
        "softmax down the columns: each column holds a query's {n_K} non-negative weights, which"
        " sum to 1{_hidden}"
    )

    def vectors(self, lead: str, n: str, d: str) -> str:
        return f"{lead} {d} {n}"

    def product(self, Q: str, K: str) -> str:
        return f"{K}.mT @ {Q} * {self.scale}"

    def mask_dims(self) -> str:
        *lead, n_Q, n_K = (self.variant.mask or "n_Q n_K").split()
        return " ".join([*lead, n_K, n_Q])


class OneQuery(RowForm):
    """The form of one query, which is a column; the keys are rows."""

    keys_dim = -2
    of_scores = "n_K 1"
    why_scores = (
        "the dot product of the query with every key: {n_K}×{_d_K} times {_d_K}×1 gives {n_K}×1,"
        " one number for each key."
        " {_scale}"
    )
    why_attention = "softmax over the keys: {n_K} non-negative weights that sum to 1{_hidden}"

    def product(self, Q: str, K: str) -> str:
        return f"{K} @ {Q} * {self.scale}"
