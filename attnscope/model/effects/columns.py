"""The columns of a table of effects: what is done to a head, and what the number is."""

from __future__ import annotations

ZERO, MEAN, DIRECT, FIRST_ORDER = "zero", "mean", "direct", "first order"
PATCHED, BLOCKED = "patched", "blocked"

COLUMNS = {
    ZERO: "the metric's change when the head's output before W_O is 0",
    MEAN: "the metric's change when that output is its mean over positions",
    DIRECT: "what the head adds to the logit through the residual stream alone, norms' scales frozen",
    FIRST_ORDER: "estimate of zero, −z·∂metric/∂z: misses saturated softmax and what cancels",
    PATCHED: "share of the difference between both texts that the head's clean output restores",
    BLOCKED: "the metric's change when the head's queries may not read the blocked keys",
}
"""The columns, in order, with their meanings."""

FIRST_ORDER_PATCHED = (
    "estimate of patched, (clean z − corrupted z)·∂metric/∂z on the corrupted text, as a share"
)
"""The meaning of `first order` where there is a corrupted text."""

STRONGEST = "; one position at a time, of which this is the strongest"
"""What is added to the meaning of a column whose positions are measured by themselves."""

PATCHED_OF_MANY = "share of the mean difference between both texts that the head's clean output restores"
MEAN_OF_MANY = "the metric's change when that output is its mean over the positions of all prompts"
"""The meanings of `patched` and `mean` where there are several prompts."""
