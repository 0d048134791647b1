"""Compare attention weights computed in two ways, with a tolerance for rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.base.arrays import largest_difference
from attnscope.model.run.attention_hook import AttentionCall

if TYPE_CHECKING:
    import torch


SHORT = 2**10
"""The number of keys from which rounding grows with the root of their number.

Where a text repeats itself, keys have equal weights and equal values, whose sum is rounded in the same
direction again and again: at 8,192 equal tokens, torch's kernel is 1.1 times the usual tolerance from
the same sum in float64.
"""

EAGER = 1e-5
"""The tolerance for a whole model's weights in float32, where rounding errors accumulate over layers."""


def eager_tolerance(dtype: torch.dtype) -> tuple[float, str]:
    """Return the tolerance for weights beside those of a model's own eager attention, and a note.

    Returns:
        The tolerance; and in 16 bits, that the model itself rounds.
    """
    import torch

    eps = torch.finfo(dtype).eps
    if eps <= torch.finfo(torch.float32).eps:
        return EAGER, ""
    name = str(dtype).removeprefix("torch.")
    return 16 * eps, f"the model rounds its scores to {name}: --dtype float32 is precise"


def weights_of(call: AttentionCall, heads: list[int]) -> tuple[torch.Tensor, float, float]:
    """Compute the weights of some heads of the first sequence, and check them by the model's output.

    Returns:
        The weights, `n_head n_Q n_K` in float32 (of these heads); the largest difference between the
        values that they collect and the output of the model's own attention; and the largest
        difference that rounding explains.
    """
    from attnscope.attention.observed import observed

    collected, attention = observed(**call.arguments(heads))
    output = call.output[0, :, heads].flatten(1).to(collected)
    return attention[0].float(), largest_difference(collected[0], output), output_tolerance(call)


def output_tolerance(call: AttentionCall) -> float:
    """Return the largest difference that rounding explains between two outputs of a call."""
    return weight_tolerance(call) * max(float(call.value.abs().max()), 1e-6)


def weight_tolerance(call: AttentionCall) -> float:
    """Return the largest difference that rounding explains between two computations of a call's weights.

    Both accumulate in float32, where the error of a score is its size times float32's precision. The
    model rounds weights and output to its dtype; eager attention also rounds its scores.
    """
    import torch

    score = largest_score(call)
    single, eps = torch.finfo(torch.float32).eps, torch.finfo(call.query.dtype).eps
    rounding = (16 + 4 * score) * single
    if eps > single:
        rounding += (2 if call.weights is None else 2 + score) * eps
    return rounding * max(1.0, (call.key.shape[2] / SHORT) ** 0.5)


def largest_score(call: AttentionCall) -> float:
    """Return an upper bound of a call's scores, without mask and bias, by Cauchy–Schwarz."""
    return call.scale * float(call.query.norm(dim=-1).max() * call.key.norm(dim=-1).max())
