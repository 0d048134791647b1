"""Latent attention whose queries are of low rank, too, with complex rotations and a cache, as in DeepSeek-V3."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (self.dim,), self.weight)


def rotate(x):
    """Turn pairs of neighbours by their position: x is (batch, position, head, dim)."""
    length, dim = x.size(1), x.size(-1)
    rate = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    angle = torch.arange(length)[:, None] * rate
    turns = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * turns.view(1, length, 1, pairs.size(-1)))
    return turned.flatten(3).type_as(x)


class LatentAttention(nn.Module):
    def __init__(
        self, dim, n_heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim, max_batch=4, max_len=64
    ):
        super().__init__()
        self.n_heads, self.kv_rank = n_heads, kv_rank
        self.nope_dim, self.rope_dim, self.v_dim = nope_dim, rope_dim, v_dim
        self.qk_dim = nope_dim + rope_dim
        self.to_q_rank = nn.Linear(dim, q_rank, bias=False)
        self.q_norm = RMSNorm(q_rank)
        self.to_q = nn.Linear(q_rank, n_heads * self.qk_dim, bias=False)
        self.to_kv_rank = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_rank)
        self.to_kv = nn.Linear(kv_rank, n_heads * (nope_dim + v_dim), bias=False)
        self.out = nn.Linear(n_heads * v_dim, dim, bias=False)
        self.register_buffer("k_cache", torch.zeros(max_batch, max_len, n_heads, self.qk_dim))
        self.register_buffer("v_cache", torch.zeros(max_batch, max_len, n_heads, v_dim))

    def forward(self, x):
        batch, length, _ = x.size()
        q = self.to_q(self.q_norm(self.to_q_rank(x))).view(batch, length, self.n_heads, self.qk_dim)
        q_nope, q_rope = torch.split(q, [self.nope_dim, self.rope_dim], dim=-1)
        q = torch.cat([q_nope, rotate(q_rope)], dim=-1)

        kv, k_rope = torch.split(self.to_kv_rank(x), [self.kv_rank, self.rope_dim], dim=-1)
        k_rope = rotate(k_rope.unsqueeze(2))
        kv = self.to_kv(self.kv_norm(kv)).view(batch, length, self.n_heads, self.nope_dim + self.v_dim)
        k_nope, v = torch.split(kv, [self.nope_dim, self.v_dim], dim=-1)
        k = torch.cat([k_nope, k_rope.expand(-1, -1, self.n_heads, -1)], dim=-1)

        self.k_cache[:batch, :length] = k
        self.v_cache[:batch, :length] = v
        scores = torch.einsum("bqhd,bkhd->bqhk", q, self.k_cache[:batch, :length]) * self.qk_dim**-0.5
        mask = torch.full((length, length), float("-inf")).triu(1)
        weights = (scores + mask[:, None]).softmax(dim=-1)
        mixed = torch.einsum("bqhk,bkhd->bqhd", weights, self.v_cache[:batch, :length])
        return self.out(mixed.flatten(2))
