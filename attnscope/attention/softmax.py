"""From scores to weights: soft-capping, biases and the softmax."""

from __future__ import annotations

from math import isinf

import torch


def capped(scores: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Soft-cap the scores, c · tanh(s / c): nearly s while it is small, never beyond ±c.

    Args:
        scores: `… n_Q n_K`, logits.
        cap: c; None or infinity: return the scores unchanged.

    Source: Gemma Team 2024, "Gemma 2", section 2, "Logit soft-capping".
    """
    if cap is None or isinf(cap):
        return scores
    return cap * torch.tanh(scores / cap)


def softmax(scores: torch.Tensor, dtype: torch.dtype | None = None, dim: int = -1) -> torch.Tensor:
    """Turn scores into positive weights that sum to one along the keys: exp(s_j) / Σ exp(s_i).

    Args:
        scores: `… n_Q n_K`, logits.
        dtype: the dtype of the computation; default: that of the scores.
        dim: the axis of the keys.

    Returns:
        `… n_Q n_K`, weights in the scores' dtype.
    """
    return scores.softmax(dim=dim, dtype=dtype).to(scores.dtype)


def added(scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Add a bias that broadcasts to the scores' shape; None: return the scores unchanged."""
    return scores if bias is None else scores + bias


def softmax_beside(scores: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Compute the softmax over the keys and a sink, and drop the sink's weight from the result.

    Args:
        scores: `n_batch n_head n_Q n_K`, logits.
        sinks: `n_head`, or `n_batch n_head n_Q 1`, logits.

    Returns:
        `n_batch n_head n_Q n_K`; a row sums to 1 minus the sink's weight.
    """
    of_rows = sinks[:, None, None] if sinks.dim() == 1 else sinks
    beside = of_rows.to(scores).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, beside], dim=-1).softmax(dim=-1)[..., :-1]
