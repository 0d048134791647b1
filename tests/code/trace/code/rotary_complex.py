"""Rotary positions as complex numbers that the caller computes once, as in Meta's Llama."""

import torch
from torch import nn


def rotate(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * turns[None, :, None, :]
    flat = torch.view_as_real(turned).flatten(-2)
    return flat.type_as(x)


class RotaryAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.per_head = heads, width // heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(width, width, bias=False)
        self.to_v = nn.Linear(width, width, bias=False)

    def forward(self, x, freqs_cis):
        batch, length, _ = x.shape
        q = self.to_q(x).view(batch, length, self.heads, self.per_head)
        k = self.to_k(x).view(batch, length, self.heads, self.per_head)
        v = self.to_v(x).view(batch, length, self.heads, self.per_head)
        q, k = rotate(q, freqs_cis), rotate(k, freqs_cis)
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / self.per_head**0.5
        weights = scores.softmax(-1)
        out = (weights @ v.transpose(1, 2)).transpose(1, 2).reshape(batch, length, -1)
        return out


class GroupedRotaryAttention(nn.Module):
    """The turns are computed here, and several queries share a key."""

    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.per_head = heads, kv_heads, width // heads
        self.to_q = nn.Linear(width, heads * self.per_head, bias=False)
        self.to_k = nn.Linear(width, kv_heads * self.per_head, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        rate = 10000 ** (-torch.arange(0, self.per_head, 2) / self.per_head)
        angle = torch.outer(torch.arange(length), rate)
        turns = torch.polar(torch.ones_like(angle), angle)
        q = rotate(self.to_q(x).view(batch, length, self.heads, self.per_head), turns)
        k = rotate(self.to_k(x).view(batch, length, self.kv_heads, self.per_head), turns)
        shared = k.repeat_interleave(self.heads // self.kv_heads, 2)
        return (q.transpose(1, 2) @ shared.permute(0, 2, 3, 1) / self.per_head**0.5).softmax(-1)
