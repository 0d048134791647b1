"""torch's own attention, written out step by step in the names of the textbook.

Each function takes the arguments of torch's function, and is traced beside a call of that function, like
code of the user's. So the rows of a trace show what the call computes inside. A stage that does nothing
returns its input unchanged, and has no row.

Sources: `torch.nn.functional.multi_head_attention_forward`, and the definitions in
https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html and
https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import dropout, linear, pad

STEPS = {
    *("Q_feat", "K_feat", "V_feat", "Q_split", "K_split", "V_split", "K_shared", "V_shared"),
    *("scores", "scores_masked", "attention", "attention_drop"),
    *("x_raw", "x_rsh1", "x_rsh2", "x", "out"),
}
"""The variables that get a row; others prepare them."""


def multi_head_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: torch.Tensor | None,
    in_proj_bias: torch.Tensor | None,
    bias_k: torch.Tensor | None,
    bias_v: torch.Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor | None,
    training: bool = True,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: torch.Tensor | None = None,
    k_proj_weight: torch.Tensor | None = None,
    v_proj_weight: torch.Tensor | None = None,
    static_k: torch.Tensor | None = None,
    static_v: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute multi-head attention, and the weights of all heads or their mean.

    The inputs are `n n_batch d_feat`, or `n d_feat`; the result begins with the batch.
    """
    is_batched = query.dim() == 3
    Q, K, V = (each.transpose(0, -2) for each in (query, key, value))
    separate: Any = q_proj_weight, k_proj_weight, v_proj_weight
    W_Q, W_K, W_V = separate if use_separate_proj_weight else thirds(in_proj_weight)
    b_Q, b_K, b_V = thirds(in_proj_bias)
    n_head = num_heads
    d_head = query.shape[-1] // n_head

    Q_feat = linear(Q, W_Q, b_Q)
    K_feat = linear(K, W_K, b_K)
    V_feat = linear(V, W_V, b_V)
    if bias_k is not None and bias_v is not None:
        K_feat = torch.cat([K_feat, bias_k[0].expand_as(K_feat[..., :1, :])], dim=-2)
        V_feat = torch.cat([V_feat, bias_v[0].expand_as(V_feat[..., :1, :])], dim=-2)

    Q_split = Q_feat.unflatten(-1, (n_head, d_head)).transpose(-3, -2)
    K_split = K_feat.unflatten(-1, (n_head, d_head)).transpose(-3, -2)
    V_split = V_feat.unflatten(-1, (n_head, d_head)).transpose(-3, -2)
    if static_k is not None:
        K_split = static_k.unflatten(0, (-1, n_head)) if is_batched else static_k
    if static_v is not None:
        V_split = static_v.unflatten(0, (-1, n_head)) if is_batched else static_v
    if add_zero_attn:
        K_split = torch.cat([K_split, torch.zeros_like(K_split[..., :1, :])], dim=-2)
        V_split = torch.cat([V_split, torch.zeros_like(V_split[..., :1, :])], dim=-2)

    scores = Q_split @ K_split.mT * d_head**-0.5
    is_in_kernel = not need_weights  # which gets no mask where the mask is said to be causal
    if is_in_kernel and is_causal and key_padding_mask is None:
        masks = [hidden_later(scores)]
    else:
        masks = of_each_head(attn_mask, key_padding_mask, scores, is_batched)
    scores_masked = masked(scores, *masks)
    attention = softmax(scores_masked, "zero" if is_in_kernel else None)
    attention_drop = dropped(attention, dropout_p if training else 0.0)

    x_raw = attention_drop @ V_split
    x_rsh1 = x_raw.transpose(-3, -2)
    x_rsh2 = x_rsh1.flatten(-2)
    x = linear(x_rsh2, out_proj_weight, out_proj_bias)
    return x, attention_drop.mean(-3) if average_attn_weights else attention_drop


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute attention of `… n_head n d`."""
    K_shared = shared(key, query) if enable_gqa else key
    V_shared = shared(value, query) if enable_gqa else value
    scores = query @ K_shared.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores_masked = masked(scores, hidden_later(scores) if is_causal else attn_mask)
    attention = softmax(scores_masked, "zero")
    attention_drop = dropped(attention, dropout_p)
    out = attention_drop @ V_shared
    return out


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: tuple,
    scale: float,
    kernel_options: Any = None,
    score_mod_other_buffers: tuple = (),
    mask_mod_other_buffers: tuple = (),
) -> torch.Tensor:
    """Compute attention of `n_batch n_head n d`, with scores that a function changes."""
    K_shared, V_shared = shared(key, query), shared(value, query)
    scores = query @ K_shared.mT * scale
    scores_masked = modified(
        scores, score_mod, score_mod_other_buffers, block_mask[-1], mask_mod_other_buffers
    )
    attention = softmax(scores_masked, "zero")
    out = attention @ V_shared
    return out


# What these functions share.


def softmax(scores: torch.Tensor, masked_rows: str | None) -> torch.Tensor:
    """Compute the softmax; the kernels of torch return zeros for a query that sees no key."""
    weights = scores.softmax(dim=-1)
    if masked_rows == "zero":
        weights = weights.masked_fill((scores == float("-inf")).all(dim=-1, keepdim=True), 0.0)
    return weights


def hidden_later(scores: torch.Tensor) -> torch.Tensor:
    """Return a causal mask: True where a query may attend, `n_Q n_K`."""
    n_Q, n_K = scores.shape[-2:]
    return torch.ones(n_Q, n_K, dtype=torch.bool, device=scores.device).tril()


def masked(scores: torch.Tensor, *masks: torch.Tensor | None) -> torch.Tensor:
    """Add masks of numbers to scores; of a mask of booleans, True is where a query may attend."""
    total = scores
    for mask in masks:
        if mask is not None:
            is_boolean = mask.dtype == torch.bool
            total = total.masked_fill(~mask, float("-inf")) if is_boolean else total + mask
    return total


def dropped(weights: torch.Tensor, p: float) -> torch.Tensor:
    """Drop a fraction of the weights, and scale the others up."""
    return dropout(weights, p) if p else weights


def shared(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Repeat heads of keys or values, which groups of query heads share."""
    group = query.shape[-3] // x.shape[-3]
    return x if group == 1 else x.repeat_interleave(group, dim=-3)


def thirds(stacked: torch.Tensor | None) -> tuple[Any, Any, Any]:
    """Return the weights or biases of Q, K and V, which are stacked; None, if there are none."""
    return (None, None, None) if stacked is None else stacked.chunk(3)  # type: ignore[return-value]


def of_each_head(
    attn_mask: torch.Tensor | None,
    key_padding_mask: torch.Tensor | None,
    scores: torch.Tensor,
    is_batched: bool,
) -> list[torch.Tensor]:
    """Return the masks of `multi_head_attention_forward` so that they broadcast to the scores.

    Of its booleans, True hides a key. The keys that it adds itself, at the end, are always visible.
    """
    n_K = scores.shape[-1]
    masks = []
    if attn_mask is not None:
        of_sequences = attn_mask.dim() == 3 and is_batched
        masks.append(attn_mask.unflatten(0, (-1, scores.shape[-3])) if of_sequences else attn_mask)
    if key_padding_mask is not None:
        masks.append(key_padding_mask[:, None, None] if is_batched else key_padding_mask)
    shown = [~mask if mask.dtype == torch.bool else mask for mask in masks]
    return [pad(mask, (0, n_K - mask.shape[-1]), value=mask.dtype == torch.bool) for mask in shown]


def modified(
    scores: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    score_buffers: tuple,
    mask_mod: Callable[..., torch.Tensor],
    mask_buffers: tuple,
) -> torch.Tensor:
    """Apply a function to each score, and hide those where another returns False."""
    if scores.is_meta:
        return torch.empty_like(scores)
    changed = everywhere(score_mod, scores.shape, (scores,), score_buffers)
    visible = everywhere(mask_mod, scores.shape, (), mask_buffers)
    return changed.to(scores.dtype).masked_fill(~visible, float("-inf"))


def everywhere(
    function: Callable[..., torch.Tensor],
    shape: tuple[int, ...],
    scores: tuple[torch.Tensor, ...],
    buffers: tuple = (),
) -> torch.Tensor:
    """Call a function at each place: sequence, head, query, key."""
    for axis in reversed(range(4)):
        places = tuple(0 if each == axis else None for each in range(4))
        mapped = (*[0 for _ in scores], *places, *[None for _ in buffers])
        function = torch.vmap(function, in_dims=mapped)
    return function(*scores, *[torch.arange(n) for n in shape], *buffers)
