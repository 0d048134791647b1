"""What decides which stages there are: variants, and the sizes that they bring along."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from attnscope.contracts.plan import check_sizes
from attnscope.errors import groups_are_uneven, width_is_odd

ORDER = (
    *("n_batch", "n_Q", "n_past", "n_new", "n_K", "n_pos"),
    *("d_feat", "d_context", "n_head", "n_kv_head", "d_head", "d_K", "d_V"),
)


@dataclass(frozen=True)
class Variant:
    """What decides which stages there are, beside the sizes.

    Attributes:
        scale: what the scores are multiplied with, if it is not 1/√(the width multiplied over).
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

    scale: float | None = None
    mask: str | None = None
    mask_dtype: str = "bool"
    mask_fill: float = -inf
    masked_rows: str | None = None
    split: bool = False
    rope_theta: float | None = None
    softcap: float | None = None
    dropout: float = 0.0
    embeddings: bool = False


def completed(sizes: dict[str, int], variant: Variant, d_K: str = "d_K") -> dict[str, int]:
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
            wider = sizes[d_K] + 1
            option = f"--dk {wider}" if d_K == "d_K" else f"--d-feat {n_head * wider}"
            raise width_is_odd(d_K, sizes[d_K], hint=f"{option}, or no --rope")
        sizes["n_pos"] = max(sizes["n_Q"], sizes["n_K"])
    place = {axis: i for i, axis in enumerate(ORDER)}
    return dict(sorted(sizes.items(), key=lambda item: place[item[0]]))


def named(variant: Variant | None, sizes: dict[str, int]) -> Variant:
    """The variant, with a mask whose axes bear their names even where they are of size 1 anyway."""
    variant = variant or Variant()
    if variant.mask is None:
        return variant
    axes = [axis for axis in ("n_batch", "n_head", "n_Q", "n_K") if axis in sizes]
    mask = variant.mask.split()
    aligned = zip(axes[len(axes) - len(mask) :], mask, strict=True)
    dims = " ".join(axis if sizes[axis] == 1 else said for axis, said in aligned)
    return replace(variant, mask=dims)
