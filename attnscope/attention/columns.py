"""The formula by columns: each query, key and value is a column, and everything is transposed."""

from __future__ import annotations

import torch

from attnscope.attention.heads import shared
from attnscope.attention.masks import Rows, filled, masked
from attnscope.attention.past import with_past
from attnscope.attention.softmax import capped, softmax


def sdpa_columns(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    mask: torch.Tensor | None = None,
    K_past: torch.Tensor | None = None,
    V_past: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    mask_fill: float = float("-inf"),
    masked_rows: Rows | None = None,
    softmax_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention by columns: V · softmax(Kᵀ · Q / √d_K).

    The transpose of `attnscope.sdpa` of the transposed inputs. The softmax runs down the
    columns, because each column now holds the scores of one query.

    Args:
        Q: queries, `… d_K n_Q`.
        K, V: keys, `… d_K n_K`, and values, `… d_V n_K`.
        mask: broadcasts to `… n_K n_Q`.
        K_past, V_past: `… d_K n_past` and `… d_V n_past`.
        scale, softcap, mask_fill, masked_rows, softmax_dtype: as in `attnscope.sdpa`.

    Returns:
        `… d_V n_Q`.
    """
    K_all = with_past(K_past, K, dim=-1)  # [n_batch, n_kv_head, d_K, n_K]
    V_all = with_past(V_past, V, dim=-1)  # [n_batch, n_kv_head, d_V, n_K]
    K_shared = shared(K_all, Q)  # [n_batch, n_head, d_K, n_K]
    V_shared = shared(V_all, Q)  # [n_batch, n_head, d_V, n_K]

    if scale is None:
        scale = Q.size(-2) ** -0.5
    scores = K_shared.mT @ Q * scale  # [n_batch, n_head, n_K, n_Q]
    scores_capped = capped(scores, softcap)  # [n_batch, n_head, n_K, n_Q]
    scores_masked = masked(scores_capped, mask, mask_fill)  # [n_batch, n_head, n_K, n_Q]
    attention = softmax(scores_masked, softmax_dtype, dim=-2)  # [n_batch, n_head, n_K, n_Q]
    attention_filled = filled(attention, mask, masked_rows, dim=-2)  # [n_batch, n_head, n_K, n_Q]

    out = V_shared @ attention_filled  # [n_batch, n_head, d_V, n_Q]
    return out
