"""Attention that runs in float32 only, that changes its inputs, and that is random."""

import random

import torch
from torch import nn


class Table(nn.Module):
    """A table in a plain attribute, which no cast reaches."""

    scale = 1.0

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.table = torch.linspace(0.5, 1.5, 32)[:, None]

    def rotate(self, x):
        assert self.table.dtype == x.dtype, "another dtype"
        return x * self.table[: x.shape[1]]

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = self.rotate(q) @ self.rotate(k).mT * (q.shape[-1] ** -0.5 * self.scale)
        return scores.softmax(-1) @ v


class TableInAnotherOrder(Table):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (self.rotate(q) / q.shape[-1] ** 0.25) @ (self.rotate(k) / q.shape[-1] ** 0.25).mT
        return (v.mT @ scores.softmax(-1).mT).mT


class TableOfAnotherScale(Table):
    scale = 1.01


class TableWithoutGradientsOfKeys(Table):
    """Computes the same, but no gradient flows through the keys."""

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = self.rotate(q) @ self.rotate(k.detach()).mT * q.shape[-1] ** -0.5
        return scores.softmax(-1) @ v


class TableOfNumpy(Table):
    """Leaves torch on the way, which has no gradients."""

    def rotate(self, x):
        return super().rotate(torch.from_numpy(x.numpy()))


def in_place(Q, K, V):
    Q /= Q.shape[-1] ** 0.5
    return (Q @ K.mT).softmax(-1) @ V


def noisy(Q, K, V):
    return (Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-1) @ V * random.uniform(0.9, 1.1)


def ends(Q, K, V):
    raise SystemExit(0)
