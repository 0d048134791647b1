"""Attention as checkpoints compute it, from the queries, keys and values of a model.

Models project, split, rotate and cache in different ways; what follows is the same in all of them.
Every line that is not in the formula is a variant: one that is not used returns its input unchanged.
"""

from __future__ import annotations

import torch

from attnscope.attention.heads import shared
from attnscope.attention.softmax import added, capped, softmax, softmax_beside


def observed(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    mask: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    scale: float,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention in every head, and merge the heads.

    Args:
        Q: queries, `n_batch n_head n_Q d_K`.
        K: keys, `n_batch n_kv_head n_K d_K`.
        V: values, `n_batch n_kv_head n_K d_V`.
        mask: added to the scores; broadcasts to `n_batch n_head n_Q n_K`.
        position_bias: a score for each distance, added before the mask (Raffel et al. 2020, "T5",
            section 2.1).
        sinks: one score per head, `n_head`, or per query, `n_batch n_head n_Q 1`, that takes part in
            the softmax and has no value (Xiao et al. 2023, "Efficient Streaming Language Models with
            Attention Sinks"; learned, as in gpt-oss).
        scale: the factor of the dot products.
        softcap: the bound for soft-capping the scores.

    Returns:
        The output of every query, `n_batch n_Q n_head·d_V`, and the attention weights, `n_batch n_head
        n_Q n_K`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1 and section 3.2.2.
    """
    K_shared = shared(K, Q)  # [n_batch, n_head, n_K, d_K]
    V_shared = shared(V, Q)  # [n_batch, n_head, n_K, d_V]

    scores = Q @ K_shared.mT * scale  # [n_batch, n_head, n_Q, n_K]
    scores_capped = capped(scores, softcap)  # [n_batch, n_head, n_Q, n_K]
    scores_biased = added(scores_capped, position_bias)  # [n_batch, n_head, n_Q, n_K]
    scores_masked = added(scores_biased, mask)  # [n_batch, n_head, n_Q, n_K]
    if sinks is None:  # noqa: SIM108 - a row each, with the expression that ran
        attention = softmax(scores_masked)  # [n_batch, n_head, n_Q, n_K]
    else:
        attention = softmax_beside(scores_masked, sinks)  # [n_batch, n_head, n_Q, n_K]

    x_raw = attention @ V_shared  # [n_batch, n_head, n_Q, d_V]
    x_rsh1 = x_raw.transpose(1, 2).contiguous()  # [n_batch, n_Q, n_head, d_V]
    x_rsh2 = x_rsh1.flatten(2)  # [n_batch, n_Q, n_head·d_V]
    return x_rsh2, attention
