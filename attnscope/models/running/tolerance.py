"""Compare attention weights computed in two ways, within what rounding may part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.models.running.attention_hook import Call

if TYPE_CHECKING:
    import torch


def weights_of(call: Call, heads: list[int]) -> tuple[torch.Tensor, float, float]:
    """The weights of some heads of the first sequence, and whether they explain what the model computed.

    Args:
        call: what the layer handed to its attention.
        heads: query heads.

    Returns:
        The weights, `n_head n_Q n_K` in float32 (of these heads); how far the values that they
        collect are at most from what the model's own attention returned; and how far rounding may
        part the two.
    """
    from attnscope.attention.observed import observed

    collected, attention = observed(**call.arguments(heads))
    theirs = call.output[0, :, heads].flatten(1).to(collected)
    return attention[0].float(), difference_of(collected[0], theirs), output_tolerance(call)


def difference_of(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference between two results; NaN where one is not a number and the other is."""
    import torch

    same = (ours == theirs) | (torch.isnan(ours) & torch.isnan(theirs))
    return float(torch.where(same, 0, (ours - theirs).abs()).max())


def output_tolerance(call: Call) -> float:
    """How far rounding may part two ways of collecting a call's values."""
    return weight_tolerance(call) * max(float(call.value.abs().max()), 1e-6)


def weight_tolerance(call: Call) -> float:
    """How far rounding may part two ways of computing a call's weights.

    Both sum up in float32, where a score is known to its own size times float32's precision; the
    model rounds weights and what it collects to its dtype, and eager attention its scores as well.
    """
    import torch

    score = largest_score(call)
    single, own = torch.finfo(torch.float32).eps, torch.finfo(call.query.dtype).eps
    rounding = (16 + 4 * score) * single
    if own > single:
        rounding += (2 if call.weights is None else 2 + score) * own
    return rounding


def largest_score(call: Call) -> float:
    """What no score of a call exceeds, before a mask and a bias are added: by Cauchy and Schwarz."""
    return call.scale * float(call.query.norm(dim=-1).max() * call.key.norm(dim=-1).max())
