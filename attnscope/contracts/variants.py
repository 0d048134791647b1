"""Variants of attention, which select the stages, and the sizes that they add."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite

from attnscope.contracts.plan import check_sizes
from attnscope.errors import OptionError, groups_are_uneven, width_is_odd

ORDER = (
    *("n_batch", "n_Q", "n_past", "n_new", "n_K", "n_pos"),
    *("d_feat", "d_context", "n_head", "n_kv_head", "d_head", "d_K", "d_V"),
)


THETA = 10000.0
"""The default base of rotary positions: RoFormer's, and that of the first Llama."""


@dataclass(frozen=True)
class Variant:
    """Everything beside the sizes that selects stages.

    Attributes:
        scale: the factor of the scores, if it is not 1/√(the width summed over).
        mask: the mask's dims, or None for no mask.
        mask_dtype: `bool`, or empty for an additive mask, which has the dtype of the inputs.
        mask_fill: the score of a key that a boolean mask hides.
        masked_rows: the weights of queries that see no key, if chosen.
        split: Q, K and V come with merged heads, which are split; those of the result are merged.
        rope_theta: the base of rotary positions, or None for none.
        after_past: the first query has the position of the first new key; so queries may have positions
            behind the last key.
        shortest: with queries at the end of each sequence's keys, the least number of keys that are not
            padding; so queries may have positions before the first key. None: they are elsewhere.
        softcap: the bound for soft-capping the scores, or None.
        dropout: the fraction of weights that is dropped.
        embeddings: Q, K and V are projections of X.
    """

    scale: float | None = None
    mask: str | None = None
    mask_dtype: str = "bool"
    mask_fill: float = -inf
    masked_rows: str | None = None
    split: bool = False
    rope_theta: float | None = None
    after_past: bool = False
    shortest: int | None = None
    softcap: float | None = None
    dropout: float = 0.0
    embeddings: bool = False


def stages_of(
    scale: float | None, softcap: float | None, rope: bool | None, rope_theta: float | None
) -> tuple[float | None, float | None]:
    """Check the numbers of the optional stages, as users write them.

    Args:
        scale: the factor of the scores; None: 1/√width.
        softcap: the bound for soft-capping the scores; None or infinity: none.
        rope: whether there are rotary positions.
        rope_theta: their base; None: `THETA`.

    Returns:
        The bound and the base, each None where its stage does nothing.

    Raises:
        OptionError: a number is impossible.
    """
    if rope_theta is not None and not 0 < rope_theta < inf:
        raise OptionError(
            f"the rotary base is {rope_theta:g}, but it must be above 0.", hint="--rope-theta 10000"
        )
    if softcap is not None and not softcap > 0:
        raise OptionError(f"the soft cap is {softcap:g}, but it must be above 0.", hint="--softcap 50")
    if scale is not None and not isfinite(scale):
        raise OptionError(f"the scale is {scale:g}, but it must be finite.", hint="--scale 0.125")
    base = THETA if rope_theta is None else rope_theta
    return None if softcap == inf else softcap, base if rope else None


def completed(sizes: dict[str, int], variant: Variant, d_K: str = "d_K") -> dict[str, int]:
    """Return all sizes that the stages name, in the usual reading order."""
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
            if d_K == "d_K":
                option = f"--dk {wider}"
            elif n_head * sizes[d_K] == sizes["d_feat"]:
                option = f"--d-feat {n_head * wider}, --d-head {wider}"
            else:
                option = f"--d-head {wider}"
            raise width_is_odd(d_K, sizes[d_K], hint=f"{option}, or no --rope")
        n_at_keys = sizes.get("n_new", sizes["n_K"]) if variant.after_past else sizes["n_K"]
        if variant.shortest is not None:
            n_at_keys = variant.shortest
        sizes["n_pos"] = sizes["n_K"] + max(0, sizes["n_Q"] - n_at_keys)
    place = {axis: i for i, axis in enumerate(ORDER)}
    return dict(sorted(sizes.items(), key=lambda item: place[item[0]]))


def named(variant: Variant | None, sizes: dict[str, int]) -> Variant:
    """Name the mask's axes of size 1 whose size in the scores is 1 too; return the variant."""
    variant = variant or Variant()
    if variant.mask is None:
        return variant
    axes = [axis for axis in ("n_batch", "n_head", "n_Q", "n_K") if axis in sizes]
    mask = variant.mask.split()
    aligned = zip(axes[len(axes) - len(mask) :], mask, strict=True)
    dims = " ".join(axis if sizes[axis] == 1 else dim for axis, dim in aligned)
    return replace(variant, mask=dims)
