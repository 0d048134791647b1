"""Multi-head attention: several small attentions side by side, with learnt projections."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from attnscope.attention.masks import masked
from attnscope.errors import SizeError, heads_do_not_divide


class MultiHeadAttention(nn.Module):
    """Multi-head attention: concat(head_1 … head_n) · W_O, with head_i = sdpa(Q W_Qi, K W_Ki, V W_Vi).

    ```
        Q              K              V            n_batch n d_feat
        │ W_Q          │ W_K          │ W_V
      Q_feat         K_feat         V_feat         n_batch n d_feat
        │ split        │ split        │ split
      Q_split        K_split        V_split        n_batch n_head n d_head
        └──── · ᵀ ─────┘              │
            scores                    │            n_batch n_head n_Q n_K
              │ softmax               │
           attention ──────── · ──────┘            n_batch n_head n_Q n_K
                              │
                            x_raw                  n_batch n_head n_Q d_head
                              │ heads back, merged
                      x_rsh1, x_rsh2               n_batch n_Q d_feat
                              │ W_O
                              x                    n_batch n_Q d_feat
    ```

    Args:
        d_feat: the model's width.
        n_head: heads; must divide d_feat.
        bias: whether the four projections have biases.
        dropout: the share of attention weights that is zeroed in training.
        scale_by: the scores are divided by the root of this width. `d_head` is the width
            that Q and K are multiplied over, and right; `d_feat` is a well-known slip.
        device, dtype: of the weights.

    Raises:
        SizeError: n_head does not divide d_feat.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """

    def __init__(
        self,
        *,
        d_feat: int,
        n_head: int,
        bias: bool = True,
        dropout: float = 0.0,
        scale_by: Literal["d_head", "d_feat"] = "d_head",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if n_head < 1:
            raise SizeError(f"n_head is {n_head}, but a size is a whole number from 1 up.")
        if d_feat % n_head:
            raise heads_do_not_divide(d_feat, n_head)
        self.d_feat = d_feat
        self.n_head = n_head
        self.d_head = d_feat // n_head
        self.scale = {"d_head": self.d_head, "d_feat": d_feat}[scale_by] ** -0.5

        self.W_Q = nn.Linear(d_feat, d_feat, bias=bias, device=device, dtype=dtype)
        self.W_K = nn.Linear(d_feat, d_feat, bias=bias, device=device, dtype=dtype)
        self.W_V = nn.Linear(d_feat, d_feat, bias=bias, device=device, dtype=dtype)
        self.W_O = nn.Linear(d_feat, d_feat, bias=bias, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend from every query to every key, in every head.

        Args:
            Q: what asks, `n_batch n_Q d_feat`.
            K: what is compared with, `n_batch n_K d_feat`; Q itself in self-attention.
            V: what is collected, `n_batch n_K d_feat`; K itself as a rule.
            mask: broadcasts to `n_batch n_head n_Q n_K`; True (or 0, added) where a query
                may attend.

        Returns:
            `n_batch n_Q d_feat`.
        """
        n_batch, n_Q, d_feat = Q.shape
        n_K = K.size(1)
        n_head, d_head = self.n_head, self.d_head

        Q_feat = self.W_Q(Q)
        K_feat = self.W_K(K)
        V_feat = self.W_V(V)

        Q_split = Q_feat.view(n_batch, n_Q, n_head, d_head).transpose(1, 2)
        K_split = K_feat.view(n_batch, n_K, n_head, d_head).transpose(1, 2)
        V_split = V_feat.view(n_batch, n_K, n_head, d_head).transpose(1, 2)

        scores = Q_split @ K_split.mT * self.scale
        scores_masked = masked(scores, mask)
        attention = scores_masked.softmax(dim=-1)
        attention_drop = self.dropout(attention)
        x_raw = attention_drop @ V_split

        x_rsh1 = x_raw.transpose(1, 2).contiguous()
        x_rsh2 = x_rsh1.view(n_batch, n_Q, d_feat)
        x = self.W_O(x_rsh2)
        return x
