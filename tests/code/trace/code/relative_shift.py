"""Scores of relative positions, in both directions, that are shifted by a view.

A row of scores for positions of which each query needs another part becomes aligned with the keys if
elements are regrouped and one row or column is cut off (Dai et al. 2019, appendix B).
"""

import torch
import torch.nn.functional as F
from torch import nn


class _RelativeAttention(nn.Module):
    def __init__(self, d_model=48, n_head=4):
        super().__init__()
        self.n_head, self.d_head = n_head, d_model // n_head
        self.query, self.key, self.value, self.position = (nn.Linear(d_model, d_model) for _ in range(4))
        self.content_bias = nn.Parameter(
            torch.zeros(self.d_head, n_head)
        )  # how it is stored is its own affair

    def heads(self, x):
        return x.view(*x.shape[:-1], self.n_head, self.d_head).transpose(-3, -2)

    def forward(self, x, positions):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        by_content = (q + self.content_bias.view(self.n_head, 1, self.d_head)) @ k.transpose(-2, -1)
        by_position = self.shift(q @ self.heads(self.position(positions)).transpose(-2, -1))
        scores = (by_content + by_position) / self.d_head**0.5
        attention = scores.softmax(dim=-1)
        return (attention @ v).transpose(-3, -2).flatten(-2)


class PaddedShift(_RelativeAttention):
    """Of 2n-1 positions: a column more, 2n rows of n, a row less."""

    def shift(self, scores):
        b, h, n, m = scores.shape
        padded = F.pad(scores, (1, 0))
        rows = padded.view(b, h, m + 1, n)
        shifted = rows[:, :, 1:].view(b, h, n, m)
        return shifted[..., : m // 2 + 1]


class DoubledShift(_RelativeAttention):
    """Of 2n positions: n rows of 2n are 2n rows of n, and without the first, n rows of 2n-1."""

    def shift(self, scores):
        b, h, n, _ = scores.shape
        rows = scores.reshape(b, h, 2 * n, n)
        return rows[:, :, 1:].reshape(b, h, n, 2 * n - 1)[..., :n]


class TimeFirstShift(nn.Module):
    """Of 2n or 2n+1 positions, with time before the batch."""

    def __init__(self, d_model=48, n_head=4):
        super().__init__()
        self.n_head, self.d_head = n_head, d_model // n_head
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.position = nn.Linear(d_model, d_model, bias=False)

    def forward(self, w, r):
        n, b, _ = w.shape
        q, k, v = (each.view(n, b, self.n_head, self.d_head) for each in self.qkv(w).chunk(3, dim=-1))
        p = self.position(r).view(r.size(0), self.n_head, self.d_head)
        content = torch.einsum("ibnd,jbnd->ijbn", q, k)
        position = torch.einsum("ibnd,jnd->ijbn", q, p)
        zero = position.new_zeros(n, 1, b, self.n_head)
        padded = torch.cat([zero, position], dim=1)
        padded = padded.view(r.size(0) + 1, n, b, self.n_head)
        position = padded[1:].view(n, r.size(0), b, self.n_head)[:, :n]
        attention = ((content + position) * self.d_head**-0.5).softmax(dim=1)
        return torch.einsum("ijbn,jbnd->ibnd", attention, v).flatten(2)
