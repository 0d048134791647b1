"""Cross attention with einsum: queries of one width look at a context of another."""

import torch
from torch import einsum, nn


class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = query_dim if context_dim is None else context_dim

        self.scale = dim_head**-0.5
        self.heads = heads

        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def forward(self, x, context=None, mask=None):
        h = self.heads
        context = x if context is None else context

        q = self.to_q(x)
        k = self.to_k(context)
        v = self.to_v(context)
        q, k, v = (t.unflatten(-1, (h, -1)) for t in (q, k, v))

        sim = einsum("b i h d, b j h d -> b h i j", q, k) * self.scale

        if mask is not None:
            max_neg_value = -torch.finfo(sim.dtype).max
            mask = mask[:, None, None, :]
            sim.masked_fill_(~mask, max_neg_value)

        # attention, what we cannot get enough of
        attn = sim.softmax(dim=-1)

        out = einsum("b h i j, b j h d -> b i h d", attn, v)
        out = out.flatten(-2)
        return self.to_out(out)
