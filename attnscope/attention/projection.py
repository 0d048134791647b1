"""Projections of the same embeddings to queries, keys and values."""

from __future__ import annotations

import torch


def project(
    X: torch.Tensor, W_Q: torch.Tensor, W_K: torch.Tensor, W_V: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Project embeddings to queries, keys and values: X · W_Q, X · W_K, X · W_V.

    Args:
        X: embeddings, one per row: `… n_K d_feat`.
        W_Q, W_K: `d_feat d_K`.
        W_V: `d_feat d_V`.

    Returns:
        Q, K and V: `… n_K d_K` twice, and `… n_K d_V`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """
    Q = X @ W_Q
    K = X @ W_K
    V = X @ W_V
    return Q, K, V


def project_columns(
    X: torch.Tensor, W_Q: torch.Tensor, W_K: torch.Tensor, W_V: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Project embeddings that are columns: W_Q · X, W_K · X, W_V · X.

    Args:
        X: embeddings, one per column: `… d_feat n_K`.
        W_Q, W_K: `d_K d_feat`.
        W_V: `d_V d_feat`.

    Returns:
        Q, K and V: `… d_K n_K` twice, and `… d_V n_K`.
    """
    Q = W_Q @ X
    K = W_K @ X
    V = W_V @ X
    return Q, K, V
