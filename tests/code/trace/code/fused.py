"""Self-attention that leaves scores, softmax and average to PyTorch's fused function."""

import torch.nn.functional as F
from torch import nn


class FusedAttention(nn.Module):
    def __init__(self, dim, num_heads, is_causal=False, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, attn_mask=None):
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=attn_mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.is_causal and attn_mask is None,
        )
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.out(y)
