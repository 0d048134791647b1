"""Common causes of a divergence: each is a hypothesis that is tested by computing what it predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from attnscope.code.compare.causes import (
    heads,
    masks,
    norms,
    projections,
    rotary,
    scale,
    softmax,
    terms,
)
from attnscope.code.compare.causes.case import Case, Hypothesis

Cause = Callable[[Case], Iterator[Hypothesis]]

PROJECTION: tuple[Cause, ...] = (
    projections.bias_missing,
    projections.other_bias,
    projections.weight_transposed,
    projections.other_projection,
    projections.other_features,
    projections.other_input,
    projections.rows_permuted,
)
SPLIT: tuple[Cause, ...] = (
    heads.heads_split,
    heads.groups,
    projections.one_position_off,
    heads.vectors_elsewhere,
    projections.swapped,
)
USED: tuple[Cause, ...] = (
    heads.groups,
    rotary.rotary,
    norms.norm_missing,
    norms.norm_order,
    norms.norm_width,
    rotary.pairs_joined_otherwise,
    projections.one_position_off,
    heads.vectors_elsewhere,
    projections.swapped,
)
CAUSES: dict[str, tuple[Cause, ...]] = {
    **dict.fromkeys(("Q_feat", "K_feat", "V_feat", "x"), PROJECTION),
    **dict.fromkeys(("Q_split", "K_split", "V_split"), SPLIT),
    **dict.fromkeys(("Q", "K", "V"), USED),
    "scores": (rotary.magnitude, scale.other_scale, scale.soft_cap),
    "scores_masked": (
        masks.mask_missing,
        masks.mask_inverted,
        masks.causal_offset,
        masks.mask_shifted,
        masks.added_as_numbers,
        masks.multiplied,
        masks.finite_fill,
        masks.block_mask,
        masks.other_mask,
        masks.reversed_bias,
        terms.term_elsewhere,
        masks.scaled_bias,
        terms.other_operand,
        masks.added_bias,
        scale.soft_cap,
    ),
    "attention": (
        softmax.softmax_axis,
        softmax.several_axes,
        softmax.sink,
        softmax.softmax_precision,
        softmax.temperature,
    ),
    "attention_drop": (
        softmax.dropout,
        softmax.weights_scaled,
        softmax.sink,
        softmax.softmax_precision,
    ),
    "edge_scores": (scale.another_factor,),
    "edge_attention": (softmax.other_groups,),
    "denominator": (softmax.summed_over_heads,),
    "x_raw": (softmax.fused_dropout,),
    "x_merged": (heads.merged, heads.vectors_elsewhere),
    "output": (projections.output_projection_missing,),
}
"""The causes that are tested when a tensor of a role is the first that differs."""

ANY: tuple[Cause, ...] = (
    terms.term_missing,
    terms.term_elsewhere,
    terms.other_operand,
    terms.operation_missing,
)
"""Those that are tested for every tensor, if none of its own explains the difference."""


def best_hypothesis(case: Case) -> Hypothesis | None:
    """Return the first hypothesis that explains a divergence, or else the closest one."""
    closest: Hypothesis | None = None
    for each in _hypotheses(case):
        if case.is_explained_by(each):
            return each
        if closest is None or each.rest.largest < closest.rest.largest:
            closest = each
    return closest


def _hypotheses(case: Case) -> Iterator[Hypothesis]:
    """Yield the hypotheses of each cause: that b has the mistake, and then that a has it."""
    of_a = replace(case, wrong="a")
    for cause in (*CAUSES.get(case.role, ()), *ANY):
        for supposed in (case, of_a):
            for each in cause(supposed):
                if each.rest.is_comparable:
                    yield replace(each, wrong=supposed.wrong)


N_CAUSES = len({*ANY, *(cause for causes in CAUSES.values() for cause in causes)})
