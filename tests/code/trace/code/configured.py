"""Attention whose sizes stand in a configuration, in a dictionary, or in modules that it is handed."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    n_embd: int = 768
    n_head: int = 12
    n_kv_head: int | None = None
    block_size: int = 64
    dropout: float = 0.0
    n_layer: int = 2

    def __post_init__(self):
        self.n_kv_head = self.n_kv_head or self.n_head


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.head = config.n_embd // config.n_head
        self.q = nn.Linear(config.n_embd, config.n_embd)
        self.kv = nn.Linear(config.n_embd, 2 * config.n_kv_head * self.head)
        self.register_buffer("seen", torch.ones(config.block_size, config.block_size).tril().bool())

    def forward(self, x):
        B, T, C = x.shape
        q = self.q(x).view(B, T, self.config.n_head, self.head).transpose(1, 2)
        k, v = self.kv(x).view(B, T, 2, self.config.n_kv_head, self.head).permute(2, 0, 3, 1, 4)
        k = k.repeat_interleave(self.config.n_head // self.config.n_kv_head, 1)
        v = v.repeat_interleave(self.config.n_head // self.config.n_kv_head, 1)
        scores = q @ k.mT / self.head**0.5
        scores = scores.masked_fill(~self.seen[:T, :T], float("-inf"))
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
        return out


class ByDict(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.dim, self.heads = cfg["dim"], cfg["heads"]
        self.qkv = nn.Linear(self.dim, 3 * self.dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        w = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1)
        y = (w @ v).transpose(1, 2).flatten(2)
        return y


class Handed(nn.Module):
    def __init__(self, embed_dim, heads, head_dim, q_proj, k_proj, v_proj, out_proj):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = q_proj, k_proj, v_proj, out_proj

    def forward(self, x):
        projections = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (each(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for each in projections)
        g = self.heads // k.size(1)
        k = k.repeat_interleave(g, 1)
        v = v.repeat_interleave(g, 1)
        w = (q @ k.mT / self.head_dim**0.5).softmax(-1)
        y = self.out_proj((w @ v).transpose(1, 2).flatten(2))
        return y
