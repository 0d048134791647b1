"""Grouped-query attention whose keys and values are expanded to all heads, as in torchtune."""

import torch
import torch.nn.functional as F
from torch import nn


class Rotation(nn.Module):
    """A table of rotations, for pairs of neighbours."""

    def __init__(self, dim, max_len=4096):
        super().__init__()
        angle = torch.outer(torch.arange(max_len), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
        self.register_buffer("table", torch.stack([angle.cos(), angle.sin()], dim=-1), persistent=False)

    def forward(self, x):
        pairs = x.float().reshape(*x.shape[:-1], -1, 2)
        turns = self.table[: x.size(1)].view(-1, pairs.size(1), 1, pairs.size(3), 2)
        real = pairs[..., 0] * turns[..., 0] - pairs[..., 1] * turns[..., 1]
        imaginary = pairs[..., 1] * turns[..., 0] + pairs[..., 0] * turns[..., 1]
        return torch.stack([real, imaginary], -1).flatten(3).type_as(x)


class GroupedAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, num_kv_heads, head_dim):
        super().__init__()
        if num_heads % num_kv_heads != 0:
            raise ValueError(f"{num_kv_heads} key heads do not divide {num_heads} heads")
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.q_proj = nn.Linear(embed_dim, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=False)
        self.output_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.rotation = Rotation(head_dim)

    def forward(self, x):
        b, s, _ = x.shape
        q_per_kv = self.num_heads // self.num_kv_heads
        q = self.q_proj(x).view(b, s, self.num_kv_heads * q_per_kv, self.head_dim)
        q = self.rotation(q).transpose(1, 2)
        k = self.k_proj(x).view(b, s, -1, self.head_dim)
        k = self.rotation(k).transpose(1, 2)
        v = self.v_proj(x).view(b, s, -1, self.head_dim).transpose(1, 2)
        if self.num_heads != self.num_kv_heads:
            shape = (b, self.num_kv_heads, q_per_kv, -1, self.head_dim)
            k = k.unsqueeze(2).expand(shape).flatten(1, 2)
            v = v.unsqueeze(2).expand(shape).flatten(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(1, 2).contiguous().view(b, s, -1)
        return self.output_proj(mixed)
