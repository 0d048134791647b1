"""Check attention weights: they are weights, and two computations of them differ by rounding alone.

The `output_attentions` of some models are not weights: those of SqueezeBERT and of ProphetNet's encoder
are scores. So every row that is shown is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.base.arrays import largest_difference
from attnscope.base.errors import ModelError
from attnscope.base.spelling import spelled
from attnscope.model.run.attention_hook import AttentionCall

if TYPE_CHECKING:
    import torch


class NotWeightsError(ModelError):
    """A model returned something other than weights as its attention."""


def check_rows(
    attention: torch.Tensor,
    name: str,
    kind: str,
    layer: int,
    stack: str = "self",
    *,
    sinks: bool = False,
    real: torch.Tensor | None = None,
) -> None:
    """Check that rows are the output of a softmax: no weight below 0, and a sum of 1.

    A row may be 0 altogether, if a query has no visible key. With sinks, which take a part of each row
    and are not keys, the sum may be less than 1.

    Args:
        attention: `… n_Q n_K`, in the dtype in which the model returned it.
        real: `n_batch n_Q`, False for queries that are padding, which are not checked, if the attention
            is `n_batch n_head n_Q n_K`; None: all are checked.
    """
    import torch

    if attention.numel() == 0:
        return
    where = f"layer {layer}" if stack == "self" else f"layer {layer} of its {stack}"
    sums = attention.sum(-1, dtype=torch.promote_types(attention.dtype, torch.float32))
    least = attention.amin(-1)
    if real is not None:
        sums, least = (each.transpose(1, 2)[real] for each in (sums, least))
    if sums.numel() == 0:
        return
    if not bool(sums.isfinite().all()):
        raise ModelError(
            f"the attention of {name} is not finite in {where}.",
            hint=spelled(dtype="float32") if attention.dtype == torch.float16 else None,
        )
    margin = tolerance(attention)
    negative, beyond = least < -margin, sums > 1 + margin
    incomplete = (sums < 1 - margin) & ((sums != 0) | (least != 0))
    scores = bool((negative | beyond).any())
    if not scores and (sinks or not bool(incomplete.any())):
        return
    what = "scores rather than weights" if scores else "a part of its weights"
    low, high = f"{float(sums.min()):.3g}", f"{float(sums.max()):.3g}"
    found = f"sum to {low}" if low == high else f"sum to between {low} and {high}"
    if bool(negative.any()):
        found += f", the smallest number is {float(least.min()):.3g}"
    raise NotWeightsError(
        f"{name} is a {kind}, which returns {what} as its attention: in {where}, rows {found}."
        " Each row of weights must sum to 1, without negative weights."
    )


def tolerance(attention: torch.Tensor) -> float:
    """Return the largest difference of a row's sum from 1 that rounding explains.

    Each weight is rounded by at most half its dtype's precision of itself, or, where it is tiny, by
    half of the smallest number; the softmax and the sum are float32's, or better.
    """
    import torch

    info, single = torch.finfo(attention.dtype), torch.finfo(torch.float32)
    n_K = attention.shape[-1]
    return 1e-4 + 2 * info.eps + n_K * (info.smallest_normal * info.eps + single.eps)


# Two computations of the same weights.

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
    return 16 * eps, f"the model rounds its scores to {name}: {spelled('dtype', 'float32')} is precise"


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
