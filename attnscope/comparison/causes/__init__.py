"""Common causes of a divergence: each is a hypothesis that is tested by computing what it predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attnscope.comparison.causes import heads, masks, projections, rotary, scale, softmax
from attnscope.comparison.causes.case import Case, Hypothesis

Cause = Callable[[Case], Iterator[Hypothesis]]

PROJECTION: tuple[Cause, ...] = (
    projections.bias_missing,
    projections.other_bias,
    projections.weight_transposed,
    projections.other_projection,
    projections.other_features,
    projections.other_input,
)
SPLIT: tuple[Cause, ...] = (
    heads.heads_split,
    heads.groups,
    projections.one_position_off,
    projections.swapped,
)
USED: tuple[Cause, ...] = (
    heads.groups,
    rotary.rotary,
    rotary.norm_missing,
    rotary.norm_order,
    rotary.pairs_joined_otherwise,
    projections.one_position_off,
    projections.swapped,
)
CAUSES: dict[str, tuple[Cause, ...]] = {
    **dict.fromkeys(("Q_feat", "K_feat", "V_feat", "x"), PROJECTION),
    **dict.fromkeys(("Q_split", "K_split", "V_split"), SPLIT),
    **dict.fromkeys(("Q", "K", "V"), USED),
    "scores": (scale.other_scale, scale.soft_cap),
    "scores_masked": (
        masks.mask_missing,
        masks.mask_inverted,
        masks.causal_offset,
        masks.mask_shifted,
        masks.added_as_numbers,
        masks.multiplied,
        masks.finite_fill,
        masks.other_mask,
        masks.reversed_bias,
        masks.added_bias,
        scale.soft_cap,
    ),
    "attention": (softmax.softmax_axis, softmax.sink, softmax.softmax_precision, softmax.temperature),
    "attention_drop": (softmax.dropout, softmax.weights_scaled, softmax.softmax_precision),
    "x_raw": (softmax.fused_dropout,),
    "x_merged": (heads.merged,),
    "output": (projections.output_projection_missing,),
}
"""The causes that are tested when a tensor of a role is the first that differs."""


def hypotheses(case: Case) -> list[Hypothesis]:
    """Return all hypotheses about a divergence, tested; those that hold come first."""
    found = [each for cause in CAUSES.get(case.role, ()) for each in cause(case)]
    comparable = [each for each in found if each.rest.is_comparable]

    def rank(each: Hypothesis) -> tuple[bool, float]:
        holds = case.is_explained_by(each)
        return not holds, 0.0 if holds else each.rest.largest

    return sorted(comparable, key=rank)


N_CAUSES = len({cause for causes in CAUSES.values() for cause in causes})
