"""Multi-head attention: several small attentions side by side, with learned projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from attnscope.attention.heads import shared
from attnscope.attention.masks import Rows, filled, masked
from attnscope.attention.past import with_past
from attnscope.attention.positions import Align, places
from attnscope.attention.rotary import rotary_angles, rotated
from attnscope.attention.softmax import capped, softmax
from attnscope.base.arguments import checked
from attnscope.base.errors import groups_are_uneven, heads_do_not_divide, width_is_odd


class MultiHeadAttention(nn.Module):
    """Multi-head attention: concat(head_1 … head_n) · W_O, with head_i = sdpa(Q W_Qi, K W_Ki, V W_Vi).

    The steps, and their shapes::

        Q              K              V            n_batch n d_feat
        │ W_Q          │ W_K          │ W_V
      Q_feat         K_feat         V_feat         n_batch n n_head·d_head
        │ split        │ split        │ split
      Q_split        K_split        V_split        n_batch n_head n d_head
        └──── · ᵀ ─────┘              │
            scores                    │            n_batch n_head n_Q n_K
              │ softmax               │
           attention ──────── · ──────┘            n_batch n_head n_Q n_K
                              │
                            x_raw                  n_batch n_head n_Q d_head
                              │ heads back, merged
                      x_rsh1, x_rsh2               n_batch n_Q n_head·d_head
                              │ W_O
                              x                    n_batch n_Q d_feat

    Every other line is a variant: one that is not used returns its input unchanged.

    Args:
        d_feat: the model's width.
        n_head: the number of heads; must divide d_feat, unless d_head is set.
        n_kv_head: heads of K and V, shared by groups of query heads; default: n_head.
        d_head: the width of a query and a key in a head; default: d_feat / n_head.
        d_V: the width of a value in a head; default: d_head.
        d_context: the width of the inputs of K and V; default: d_feat.
        bias: whether the four projections have biases.
        dropout: the fraction of attention weights that is zeroed in training.
        scale_by: the scores are divided by the square root of this width. `d_head`, the width
            that Q·Kᵀ sums over, is correct; `d_feat` is a common mistake.
        scale: the factor of the scores, instead of `scale_by`.
        rope_theta, align, softcap, mask_fill, masked_rows, softmax_dtype: as in
            `attnscope.sdpa`.
        device, dtype: of the weights.

    Raises:
        OptionError: an argument is not what it must be.
        SizeError: n_head does not divide d_feat, if that determines d_head; n_kv_head does not
            divide n_head; or d_head is odd with rotary positions, which rotate pairs.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """

    @checked
    def __init__(
        self,
        *,
        d_feat: int,
        n_head: int,
        n_kv_head: int | None = None,
        d_head: int | None = None,
        d_V: int | None = None,
        d_context: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        scale_by: Literal["d_head", "d_feat"] = "d_head",
        scale: float | None = None,
        rope_theta: float | None = None,
        align: Align | None = None,
        softcap: float | None = None,
        mask_fill: float = float("-inf"),
        masked_rows: Rows | None = None,
        softmax_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if d_head is None and d_feat % n_head:
            raise heads_do_not_divide(d_feat, n_head)
        self.d_feat = d_feat
        self.n_head = n_head
        self.n_kv_head = n_kv_head or n_head
        self.d_head = d_head or d_feat // n_head
        self.d_V = d_V or self.d_head
        d_context = d_context or d_feat
        if n_head % self.n_kv_head:
            raise groups_are_uneven(n_head, self.n_kv_head)
        if rope_theta is not None and self.d_head % 2:
            raise width_is_odd("d_head", self.d_head)

        width = {"d_head": self.d_head, "d_feat": d_feat}[scale_by]
        self.scale = width**-0.5 if scale is None else scale
        self.rope_theta = rope_theta
        self.align = align
        self.softcap = softcap
        self.mask_fill = mask_fill
        self.masked_rows = masked_rows
        self.softmax_dtype = softmax_dtype

        def projection(d_in: int, d_out: int) -> nn.Linear:
            return nn.Linear(d_in, d_out, bias=bias, device=device, dtype=dtype)

        self.W_Q = projection(d_feat, n_head * self.d_head)
        self.W_K = projection(d_context, self.n_kv_head * self.d_head)
        self.W_V = projection(d_context, self.n_kv_head * self.d_V)
        self.W_O = projection(n_head * self.d_V, d_feat)
        self.dropout = nn.Dropout(dropout)

    @checked
    def __call__(
        self,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        mask: torch.Tensor | None = None,
        K_past: torch.Tensor | None = None,
        V_past: torch.Tensor | None = None,
        *,
        lengths: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Check the arguments, and call `forward`."""
        options = {} if lengths is None else {"lengths": lengths}
        inputs: tuple[torch.Tensor | None, ...] = (Q, K, V, mask, K_past, V_past)
        while inputs[-1] is None:
            inputs = inputs[:-1]
        return super().__call__(*inputs, **options)

    def forward(
        self,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        mask: torch.Tensor | None = None,
        K_past: torch.Tensor | None = None,
        V_past: torch.Tensor | None = None,
        *,
        lengths: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Attend from every query to every key, in every head.

        Args:
            Q: the input of the queries, `n_batch n_Q d_feat`.
            K: the input of the keys, `n_batch n_K d_context`; Q itself in self-attention.
            V: the input of the values, `n_batch n_K d_context`; usually K itself.
            mask: broadcasts to `n_batch n_head n_Q n_K`; True (or 0, added) where a query
                may attend.
            K_past, V_past: cached keys and values, projected, split and rotated:
                `n_batch n_kv_head n_past d_head` and `n_batch n_kv_head n_past d_V`.
            lengths: with align `lengths`, the number of keys of each sequence that are not padding.

        Returns:
            `n_batch n_Q d_feat`.
        """
        n_batch, n_Q, _ = Q.shape
        n_head, n_kv_head = self.n_head, self.n_kv_head
        d_head, d_V = self.d_head, self.d_V

        Q_feat = self.W_Q(Q)  # [n_batch, n_Q, n_head·d_head]
        K_feat = self.W_K(K)  # [n_batch, n_new, n_kv_head·d_head]
        V_feat = self.W_V(V)  # [n_batch, n_new, n_kv_head·d_V]

        # Q_split: [n_batch, n_head, n_Q, d_head]
        # K_split: [n_batch, n_kv_head, n_new, d_head]
        # V_split: [n_batch, n_kv_head, n_new, d_V]
        Q_split = Q_feat.view(n_batch, n_Q, n_head, d_head).transpose(1, 2)
        K_split = K_feat.view(n_batch, -1, n_kv_head, d_head).transpose(1, 2)
        V_split = V_feat.view(n_batch, -1, n_kv_head, d_V).transpose(1, 2)

        positions, Q_at, K_at = places(Q_split, K_split, K_past, self.align, lengths)
        cos, sin = rotary_angles(positions, Q_split, self.rope_theta)  # cos, sin: [n_pos, d_head]
        Q_rot = rotated(Q_split, cos, sin, Q_at)  # [n_batch, n_head, n_Q, d_head]
        K_rot = rotated(K_split, cos, sin, K_at)  # [n_batch, n_kv_head, n_new, d_head]
        K_all = with_past(K_past, K_rot)  # [n_batch, n_kv_head, n_K, d_head]
        V_all = with_past(V_past, V_split)  # [n_batch, n_kv_head, n_K, d_V]
        K_shared = shared(K_all, Q_rot)  # [n_batch, n_head, n_K, d_head]
        V_shared = shared(V_all, Q_rot)  # [n_batch, n_head, n_K, d_V]

        scores = Q_rot @ K_shared.mT * self.scale  # [n_batch, n_head, n_Q, n_K]
        scores_capped = capped(scores, self.softcap)  # [n_batch, n_head, n_Q, n_K]
        scores_masked = masked(scores_capped, mask, self.mask_fill)  # [n_batch, n_head, n_Q, n_K]
        attention = softmax(scores_masked, self.softmax_dtype)  # [n_batch, n_head, n_Q, n_K]
        attention_filled = filled(attention, mask, self.masked_rows)  # [n_batch, n_head, n_Q, n_K]
        attention_drop = self.dropout(attention_filled)  # [n_batch, n_head, n_Q, n_K]

        x_raw = attention_drop @ V_shared  # [n_batch, n_head, n_Q, d_V]
        x_rsh1 = x_raw.transpose(1, 2).contiguous()  # [n_batch, n_Q, n_head, d_V]
        x_rsh2 = x_rsh1.view(n_batch, n_Q, n_head * d_V)  # [n_batch, n_Q, n_head·d_V]
        x = self.W_O(x_rsh2)  # [n_batch, n_Q, d_feat]
        return x
