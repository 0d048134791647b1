"""The effect of the scale on the variance of the scores, on the attention weights and on gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch

from attnscope.attention.softmax import softmax

CHUNK = 2**18
"""The number of weights measured at a time, so that little memory is needed beside the scores."""


class ScoreMeasurements(NamedTuple):
    """Measurements of the scores, and of their softmax row by row (one row per query).

    Attributes:
        variance: of all the scores (population variance: divided by n).
        entropy: -Σ pᵢ ln pᵢ of a row, in nats; the mean over rows. From 0 to ln n_K.
        largest_weight: the largest weight of a row; the mean over rows. From 1/n_K to 1.
        gradient_norm: `jacobian_norm` of a row; the median over rows.
        gradient_norm_mean: `jacobian_norm` of a row; the mean over rows.
    """

    variance: float
    entropy: float
    largest_weight: float
    gradient_norm: float
    gradient_norm_mean: float


def measure(Q: torch.Tensor, K: torch.Tensor, scale: float) -> ScoreMeasurements:
    """Compute scores and weights as the textbook does, and measure them in float64.

    Scores and weights are computed in the dtype of Q and K, as attention computes them.

    Args:
        Q: queries, `… n_Q d_K`.
        K: keys, `… n_K d_K`.
        scale: the factor of the dot products: 1/√d_K, or 1 for none.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1 and footnote 4.
    """
    scores = Q @ K.mT * scale
    rows = scores.flatten(0, -2)
    n_rows = max(1, CHUNK // rows.size(-1))
    parts = rows.split(n_rows)
    mean = sum(float(part.double().sum()) for part in parts) / rows.numel()
    squares = 0.0
    measured = torch.empty(3, rows.size(0), dtype=torch.float64)
    for part, out in zip(parts, measured.split(n_rows, dim=1), strict=True):
        squares += float((part.double() - mean).square().sum())
        attention = softmax(part).double()
        out[0] = torch.special.entr(attention).sum(dim=-1)
        out[1] = attention.amax(dim=-1)
        out[2] = jacobian_norm(attention)
    entropy, largest, norm = measured
    lower, upper = norm.median(), -(-norm).median()  # torch returns the lower of the two middle ones
    return ScoreMeasurements(
        variance=squares / rows.numel(),
        entropy=float(entropy.mean()),
        largest_weight=float(largest.mean()),
        gradient_norm=float(lower + upper) / 2,
        gradient_norm_mean=float(norm.mean()),
    )


def jacobian_norm(attention: torch.Tensor) -> torch.Tensor:
    """Return the Frobenius norm of the softmax's Jacobian, ∂attention/∂scores, for each row.

    The Jacobian of a row p is J = diag(p) - p·pᵀ, and ‖J‖² = Σ pᵢ² (1 - 2pᵢ) + (Σ pᵢ²)². Its norm
    is also the root mean square norm of the gradient of the scores when the gradient of the weights
    is standard normal. It is 0 if one key has all the weight, ½, the maximum, if two keys share it
    equally, and √(n_K - 1)/n_K if all keys have the same. docs/learn/scaling.md derives this.

    The sum treats the largest weight separately: near 1, its term would suffer from cancellation;
    the other weights are at most ½, where there is none.

    Args:
        attention: `… n_K`, weights that sum to one along the keys.

    Returns:
        `…`, one norm per row.
    """
    top, index = attention.max(dim=-1, keepdim=True)
    others = attention.scatter(-1, index, 0.0)
    rest = others.sum(dim=-1)  # 1 - top
    squares = others.square()
    both = squares.sum(dim=-1)
    of_top = top.squeeze(-1).square() * (rest.square() + 2 * both)
    of_others = (squares * (1 - 2 * others)).sum(dim=-1) + both.square()
    return (of_top + of_others).sqrt()
