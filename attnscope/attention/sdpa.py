"""Scaled dot-product attention: the formula, line by line."""

from __future__ import annotations

import torch

from attnscope.attention.masks import masked


def sdpa(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention: softmax(Q · Kᵀ / √d_K) · V.

    Each query is compared with every key; the softmax turns its scores into weights that
    sum to one; the result is the mean of the values under those weights.

    Args:
        Q: queries, `… n_Q d_K`; the leading axes are none, `n_batch`, or `n_batch n_head`.
        K: keys, `… n_K d_K`.
        V: values, `… n_K d_V`, one for each key.
        mask: broadcasts to `… n_Q n_K`; True (or 0, added) where a query may attend.
        scale: what the dot products are multiplied with; 1/√d_K unless given.

    Returns:
        `… n_Q d_V`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    >>> import torch
    >>> sdpa(torch.randn(3, 30, 128), torch.randn(3, 50, 128), torch.randn(3, 50, 256)).shape
    torch.Size([3, 30, 256])
    """
    d_K = Q.size(-1)
    if scale is None:
        scale = d_K**-0.5

    scores = Q @ K.mT * scale
    scores_masked = masked(scores, mask)
    attention = scores_masked.softmax(dim=-1)
    out = attention @ V
    return out
