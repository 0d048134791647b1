"""Findings about queries that see no key, and about masks that cancel each other."""

from __future__ import annotations

from math import inf

from attnscope.results.common import Finding
from attnscope.textbook.inputs.mask_options import Masks


def findings_of(masks: Masks, blind: int | None, rows: int) -> list[Finding]:
    """Return the findings about the masks of a run.

    Args:
        masks: the masks of the run.
        blind: the number of rows of the scores that see no key; None: unknown.
        rows: the number of all rows.
    """
    found = []
    if masks.causal and masks.prefixes:
        found.append(
            Finding(
                "causal hides again what prefix shows beyond it, because a query's keys must pass every"
                " mask: a prefix LM's mask is prefix alone."
            )
        )
    if blind:
        effect = _effect(masks)
        found.append(Finding(f"{blind} of {rows} rows of the scores see no key at all: {effect}"))
    return found


def _effect(masks: Masks) -> str:
    """Describe the weights of a query that sees no key, and the reason."""
    zero = "--masked-rows zero gives zeros, as F.scaled_dot_product_attention does."
    if masks.rows == "zero":
        return "they attend to nothing, and their result is 0, as --masked-rows zero asks."
    if masks.rows == "uniform":
        return f"they attend to every key alike, hidden ones too, as --masked-rows uniform asks. {zero}"
    if masks.rows == "nan":
        return (
            f"they are NaN, as --masked-rows nan asks, and so is all that is computed from them. {zero}"
        )
    if masks.fill == -inf:
        return (
            "the softmax of a row of -inf is 0/0, which is NaN, and so is all that is computed from it."
            f" {zero}"
        )
    if masks.style == "bool":
        return (
            f"every score in them is {masks.fill:g}, so that the softmax weighs all keys alike, and they"
            f" collect the mean of what they should not see. {zero}"
        )
    return (
        f"{masks.fill:g} is added to every score in them, and a softmax does not see what is added to"
        " all:"
        f" they attend as if nothing were hidden, as far as rounding leaves their scores. {zero}"
    )
