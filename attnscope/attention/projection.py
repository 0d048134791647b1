"""Where Q, K and V come from: three views of the same embeddings."""

from __future__ import annotations

import torch


def project(
    X: torch.Tensor, W_Q: torch.Tensor, W_K: torch.Tensor, W_V: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of the same embeddings: X · W_Q, X · W_K, X · W_V.

    Args:
        X: embeddings, one a row: `… n_K d_feat`.
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
    """The same with everything transposed: embeddings are columns, and weights stand on the left.

    Args:
        X: embeddings, one a column: `… d_feat n_K`.
        W_Q, W_K: `d_K d_feat`.
        W_V: `d_V d_feat`.

    Returns:
        Q, K and V: `… d_K n_K` twice, and `… d_V n_K`.
    """
    Q = W_Q @ X
    K = W_K @ X
    V = W_V @ X
    return Q, K, V
