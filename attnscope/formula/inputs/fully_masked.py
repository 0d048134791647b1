"""Findings about queries that see no key, and about masks that cancel each other."""

from __future__ import annotations

from math import inf

from attnscope.attention.mask_rules import Masks
from attnscope.base.spelling import spelled
from attnscope.document.result import Finding


def findings_of(masks: Masks, fully_masked: int | None, rows: int) -> list[Finding]:
    """Return the findings about the masks of a run.

    Args:
        masks: the masks of the run.
        fully_masked: the number of rows of the scores that see no key; None: unknown.
        rows: the number of all rows.
    """
    found = []
    if masks.causal and masks.prefixes:
        found.append(
            Finding(
                "causal hides the keys that prefix makes visible, because a key must pass every"
                " mask: for a prefix LM, use prefix alone."
            )
        )
    if fully_masked:
        effect = _effect(masks)
        found.append(Finding(f"{fully_masked} of {rows} rows of the scores are fully masked: {effect}"))
    return found


def _effect(masks: Masks) -> str:
    """Describe the weights of a query that sees no key, and the reason."""
    zero = f"{spelled('masked_rows', 'zero')} gives zeros, as F.scaled_dot_product_attention does."
    if masks.rows == "zero":
        return f"they attend to nothing, and their result is 0 ({spelled('masked_rows', 'zero')})."
    if masks.rows == "uniform":
        return (
            "they attend to all keys equally, including hidden ones"
            f" ({spelled('masked_rows', 'uniform')}). {zero}"
        )
    if masks.rows == "nan":
        return (
            f"they are NaN ({spelled('masked_rows', 'nan')}), and so is everything computed from"
            f" them. {zero}"
        )
    if masks.fill == -inf:
        return (
            "the softmax of a row of -inf is 0/0, which is NaN, and so is everything computed from it."
            f" {zero}"
        )
    if masks.style == "bool":
        return (
            f"every score in them is {masks.fill:g}, so the softmax gives all keys the same"
            f" weight, and the result is the mean of values that should be hidden. {zero}"
        )
    return (
        f"{masks.fill:g} is added to every score in them, which does not change their softmax:"
        f" except for rounding, they attend as if nothing were masked. {zero}"
    )
