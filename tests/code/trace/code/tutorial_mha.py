"""Multi-head attention as a tutorial has it, with the tutorial's two slips.

The scores are divided by the root of K's whole width, not of a head's; and K and V are split
with the batch of Q, so that keys of another batch are mixed across samples without an error.
`tutorial_mha_right.py` is the same with both mended.
"""

import numpy as np
import torch
from torch import nn


class MultiHeadedAttention(nn.Module):
    def __init__(self, d_feat=128, n_head=4, dropout=0.1):
        super().__init__()
        if d_feat % n_head != 0:
            raise ValueError(f"d_feat ({d_feat}) must be divisible by n_head ({n_head})")
        self.d_feat = d_feat
        self.n_head = n_head
        self.d_head = d_feat // n_head
        self.lin_Q = nn.Linear(d_feat, d_feat)
        self.lin_K = nn.Linear(d_feat, d_feat)
        self.lin_V = nn.Linear(d_feat, d_feat)
        self.lin_O = nn.Linear(d_feat, d_feat)
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, Q, K, V, mask=None):
        n_batch = Q.size(0)
        d_k = K.size(-1)

        # project
        Q_feat = self.lin_Q(Q)
        K_feat = self.lin_K(K)
        V_feat = self.lin_V(V)

        # split into heads
        Q_split = Q_feat.view(n_batch, -1, self.n_head, self.d_head).permute(0, 2, 1, 3)
        K_split = K_feat.view(n_batch, -1, self.n_head, self.d_head).permute(0, 2, 1, 3)
        V_split = V_feat.view(n_batch, -1, self.n_head, self.d_head).permute(0, 2, 1, 3)

        # attend
        scores = torch.matmul(Q_split, K_split.permute(0, 1, 3, 2)) / np.sqrt(d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        attention = torch.softmax(scores, dim=-1)
        x_raw = torch.matmul(self.dropout(attention), V_split)

        # merge the heads
        x_rsh1 = x_raw.permute(0, 2, 1, 3).contiguous()
        x_rsh2 = x_rsh1.view(n_batch, -1, self.d_feat)
        x = self.lin_O(x_rsh2)

        out = {
            "Q_feat": Q_feat,
            "K_feat": K_feat,
            "V_feat": V_feat,
            "Q_split": Q_split,
            "K_split": K_split,
            "V_split": V_split,
            "scores": scores,
            "attention": attention,
            "x_raw": x_raw,
            "x_rsh1": x_rsh1,
            "x_rsh2": x_rsh2,
            "x": x,
        }
        return out
