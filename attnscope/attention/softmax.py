"""Scores become weights: what is done to a score on its way."""

from __future__ import annotations

import torch


def capped(scores: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Soft-capped scores, c · tanh(s / c): nearly s while it is small, never beyond ±c.

    Args:
        scores: `… n_Q n_K`, logits.
        cap: c; None: the scores stay as they are.

    Source: Gemma Team 2024, "Gemma 2", section 2, "Logit soft-capping".
    """
    if cap is None:
        return scores
    return cap * torch.tanh(scores / cap)


def softmax(scores: torch.Tensor, dtype: torch.dtype | None = None, dim: int = -1) -> torch.Tensor:
    """Weights that are positive and sum to one along the keys: exp(s_j) / Σ exp(s_i).

    Args:
        scores: `… n_Q n_K`, logits.
        dtype: the precision that it is computed in; the scores' own unless given.
        dim: the axis of the keys.

    Returns:
        `… n_Q n_K`, weights in the scores' dtype.
    """
    return scores.softmax(dim=dim, dtype=dtype).to(scores.dtype)


def added(scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Scores with something added to them, which broadcasts to their shape; None: nothing."""
    return scores if bias is None else scores + bias


def softmax_beside(scores: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """The softmax along the keys, with a sink among them that is left out of the result.

    Args:
        scores: `n_batch n_head n_Q n_K`, logits.
        sinks: `n_head`, logits.

    Returns:
        `n_batch n_head n_Q n_K`; what a row lacks to 1 went to the sink.
    """
    beside = sinks[:, None, None].to(scores).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, beside], dim=-1).softmax(dim=-1)[..., :-1]
