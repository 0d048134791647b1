"""Attention that is right, and the same with mistakes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Multi-head attention; `shift` moves the diagonal of the mask, `window` cuts it."""

    def __init__(self, d_model: int, h: int, shift: int = 0, window: int = 0) -> None:
        super().__init__()
        self.h, self.shift, self.window = h, shift, window
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = (
            each.view(B, T, self.h, C // self.h).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) / (C // self.h) ** 0.5
        seen = torch.ones(T, T, dtype=torch.bool).tril(self.shift)
        if self.window:
            seen &= ~torch.ones(T, T, dtype=torch.bool).tril(-self.window)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))


class Stack(nn.Module):
    """Two layers of attention with a window."""

    def __init__(self, d_model: int = 16, h: int = 2, window: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(d_model, h, window=window) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Normed(nn.Module):
    """Batch norm over rows and positions."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Words(nn.Module):
    """A language model with token ids as input."""

    def __init__(self, n_vocab: int = 20, d_model: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_vocab, d_model)
        self.attention = Attention(d_model, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.attention(self.embedding(ids))


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention by the fused kernel."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention of x to itself; mask: `B T`, True for real tokens."""
    scores = x @ x.transpose(-2, -1)
    return scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1) @ x


def mask_ignored(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same without the mask."""
    return (x @ x.transpose(-2, -1)).softmax(-1) @ x


def mean(x: torch.Tensor) -> torch.Tensor:
    """Add the mean over the sequence."""
    average = x.mean(1, keepdim=True)
    return x + average


def rows_mixed(x: torch.Tensor) -> torch.Tensor:
    """Add the mean over the batch."""
    return x + x.mean(0, keepdim=True)
