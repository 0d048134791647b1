"""Scaled dot-product attention: the formula, line by line."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnscope.attention.heads import merge_heads, shared, split_heads
from attnscope.attention.masks import Rows, filled, masked
from attnscope.attention.past import with_past
from attnscope.attention.positions import Align, places
from attnscope.attention.rotary import rotary_angles, rotated
from attnscope.attention.softmax import capped, softmax


def sdpa(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    mask: torch.Tensor | None = None,
    K_past: torch.Tensor | None = None,
    V_past: torch.Tensor | None = None,
    *,
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
    """Scaled dot-product attention: softmax(Q · Kᵀ / √d_K) · V.

    Each query is compared with every key; the softmax turns its scores into weights that
    sum to one; the result is the weighted mean of the values. Every other line is a
    variant: one that is not used returns its input unchanged.

    Args:
        Q: queries, `… n_Q d_K`; the leading axes are none, `n_batch`, or `n_batch n_head`.
        K: keys, `… n_K d_K`; they may have fewer heads than the queries, shared by groups of these.
        V: values, `… n_K d_V`, one for each key.
        mask: broadcasts to `… n_Q n_K`; True (or 0, added) where a query may attend.
        K_past, V_past: keys and values of the past, `… n_past d_K` and `… n_past d_V`, with
            heads already split and rotary positions already applied.
        scale: the factor of the dot products; default: 1/√d_K.
        n_head: split Q, `n_batch n_Q n_head·d_K`, into this many heads, and merge those of the
            result.
        n_kv_head: split K and V into this many heads; default: n_head.
        rope_theta: the base of rotary positions.
        align: the alignment of queries and keys, for rotary positions; default: bottom-right with a
            past, else top-left.
        lengths: with align `lengths`, the number of keys of each sequence that are not padding.
        softcap: the bound for soft-capping the scores.
        mask_fill: the score of a key that a boolean mask hides.
        masked_rows: the weights of queries that see no key: `nan`, `uniform` or `zero`.
        softmax_dtype: the dtype in which the softmax is computed; default: that of the scores.

    Returns:
        `… n_Q d_V`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    >>> import torch
    >>> sdpa(torch.randn(3, 30, 128), torch.randn(3, 50, 128), torch.randn(3, 50, 256)).shape
    torch.Size([3, 30, 256])
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
    scores = Q_rot @ K_shared.mT * scale  # [n_batch, n_head, n_Q, n_K]
    scores_capped = capped(scores, softcap)  # [n_batch, n_head, n_Q, n_K]
    scores_masked = masked(scores_capped, mask, mask_fill)  # [n_batch, n_head, n_Q, n_K]
    attention = softmax(scores_masked, softmax_dtype)  # [n_batch, n_head, n_Q, n_K]
    attention_filled = filled(attention, mask, masked_rows)  # [n_batch, n_head, n_Q, n_K]

    out = attention_filled @ V_shared  # [n_batch, n_head, n_Q, d_V]
    out_merged = merge_heads(out, n_head)  # [n_batch, n_Q, n_head·d_V]
    return out_merged
