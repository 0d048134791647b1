"""The forms of the formula: the axes of its tensors, and the expression of the scores."""

from __future__ import annotations

from attnscope.contracts.variants import Variant


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
        split = variant.split or of_self
        self._layouts = (
            {"Q": "n_batch n_Q n_head " + d_K, "K": f"n_batch {self.new} {self.kv_head} {d_K}"}
            if split
            else {}
        )

    def vectors(self, lead: str, n: str, d: str) -> str:
        """Return the axes of `n` vectors of width `d`."""
        return f"{lead} {n} {d}"

    def layout_of(self, name: str) -> str:
        """Return the memory order of the axes of queries or keys that have not been copied."""
        letter = name[0]
        usual = (
            f"{self.lead} n_Q {self.d_K}" if letter == "Q" else f"{self.kv_lead} {self.new} {self.d_K}"
        )
        return self._layouts.get(letter, usual)

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
