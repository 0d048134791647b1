"""One query alone: its scores, their softmax, and the weighted sum, term by term."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnscope.attention.heads import shared, split_heads
from attnscope.attention.masks import Rows, filled, mask_of, masked
from attnscope.attention.past import with_past
from attnscope.attention.positions import Align, places
from attnscope.attention.rotary import rotary_angles, rotated
from attnscope.attention.softmax import capped, softmax


def sdpa_query(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    mask: torch.Tensor | None = None,
    K_past: torch.Tensor | None = None,
    V_past: torch.Tensor | None = None,
    *,
    query: int,
    scale: float | None = None,
    n_head: int | None = None,
    n_kv_head: int | None = None,
    rope_theta: float | None = None,
    align: Align | None = None,
    lengths: Sequence[int] | None = None,
    softcap: float | None = None,
    mask_fill: float = float("-inf"),
    masked_rows: Rows | None = None,
    softmax_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention of one query q: Σ_j softmax_j(k_j · q / √d_K) v_j.

    Args:
        query: the index of the query, from 0.
        Q, K, V, mask, K_past, V_past: for all queries, as in `attnscope.sdpa`; so are the options.

    Returns:
        `… d_V`.
    """
    Q_split = split_heads(Q, n_head)  # [n_batch, n_head, n_Q, d_K]
    K_split = split_heads(K, n_kv_head or n_head)  # [n_batch, n_kv_head, n_new, d_K]
    V_split = split_heads(V, n_kv_head or n_head)  # [n_batch, n_kv_head, n_new, d_V]

    positions, Q_at, K_at = places(Q_split, K_split, K_past, align, lengths)
    cos, sin = rotary_angles(positions, Q_split, rope_theta)  # cos, sin: [n_pos, d_K]
    Q_rot = rotated(Q_split, cos, sin, Q_at)  # [n_batch, n_head, n_Q, d_K]
    K_rot = rotated(K_split, cos, sin, K_at)  # [n_batch, n_kv_head, n_new, d_K]
    K_all = with_past(K_past, K_rot)  # [n_batch, n_kv_head, n_K, d_K]
    V_all = with_past(V_past, V_split)  # [n_batch, n_kv_head, n_K, d_V]
    K_shared = shared(K_all, Q_rot)  # [n_batch, n_head, n_K, d_K]
    V_shared = shared(V_all, Q_rot)  # [n_batch, n_head, n_K, d_V]

    if scale is None:
        scale = Q_rot.size(-1) ** -0.5
    q = Q_rot[..., query, :, None]  # [n_batch, n_head, d_K, 1]
    scores = K_shared @ q * scale  # [n_batch, n_head, n_K, 1]
    scores_capped = capped(scores, softcap)  # [n_batch, n_head, n_K, 1]
    mask_q = mask_of(query, mask)  # [n_K, 1]
    scores_masked = masked(scores_capped, mask_q, mask_fill)  # [n_batch, n_head, n_K, 1]
    attention = softmax(scores_masked, softmax_dtype, dim=-2)  # [n_batch, n_head, n_K, 1]
    attention_filled = filled(attention, mask_q, masked_rows, dim=-2)  # [n_batch, n_head, n_K, 1]

    terms = attention_filled * V_shared  # [n_batch, n_head, n_K, d_V]
    out = terms.sum(dim=-2)  # [n_batch, n_head, d_V]
    return out
