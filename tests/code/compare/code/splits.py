"""Attentions with one projection for Q, K and V, and the mistakes that people make after it."""

import torch
from torch import nn


class ThreeHeads(nn.Module):
    """The features of the projection are `(Q K V, heads, d_head)`."""

    def __init__(self, d=24, h=3):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def split(self, y):
        return y.unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)

    def rotated(self, q, k):
        return q, k

    def values(self, v):
        return v

    def weights(self, scores):
        return scores.softmax(-1)

    def forward(self, x):
        q, k, v = self.split(self.qkv(x))
        q, k = self.rotated(q, k)
        weights = self.weights(q @ k.mT / q.shape[-1] ** 0.5)
        return self.out((weights @ self.values(v)).transpose(1, 2).flatten(2))


class HeadsThree(ThreeHeads):
    """The features of the projection are `(heads, Q K V, d_head)`."""

    def split(self, y):
        return y.unflatten(-1, (self.h, 3, -1)).permute(3, 0, 2, 1, 4)


class Late(ThreeHeads):
    def values(self, v):
        return nn.functional.pad(v, (0, 0, 1, 0))[:, :, :-1]


class Around(ThreeHeads):
    def values(self, v):
        return v.roll(1, 2)


class Reversed(ThreeHeads):
    def values(self, v):
        return v.flip(2)


class HeadsReversed(ThreeHeads):
    def values(self, v):
        return v.flip(1)


class Doubled(ThreeHeads):
    factor = 2.0

    def values(self, v):
        return v * self.factor


class Tripled(Doubled):
    factor = 3.0


def rotate(y, join):
    n, d = y.shape[-2:]
    angles = torch.arange(n)[:, None] * 100.0 ** -(torch.arange(d // 2) / (d // 2))
    cos, sin = angles.cos().to(y), angles.sin().to(y)
    first, second = y[..., ::2], y[..., 1::2]
    return join(first * cos - second * sin, first * sin + second * cos)


def side_by_side(first, second):
    return torch.stack([first, second], -1).flatten(-2)


def as_halves(first, second):
    return torch.cat([first, second], -1)


class Interleaved(ThreeHeads):
    def rotated(self, q, k):
        return rotate(q, side_by_side), rotate(k, side_by_side)


class BothApart(ThreeHeads):
    """The same scores: Q and K have the same order of features."""

    def rotated(self, q, k):
        return rotate(q, as_halves), rotate(k, as_halves)


class KeysApart(ThreeHeads):
    def rotated(self, q, k):
        return rotate(q, side_by_side), rotate(k, as_halves)


def seen(scores):
    return torch.ones(scores.shape[-2:]).tril().to(scores)


class Masked(ThreeHeads):
    def weights(self, scores):
        return scores.masked_fill(seen(scores) == 0, -torch.inf).softmax(-1)


class MaskAdded(ThreeHeads):
    def weights(self, scores):
        return (scores + seen(scores).log()).softmax(-1)


class MaskMultiplied(ThreeHeads):
    def weights(self, scores):
        return (scores * seen(scores)).softmax(-1)
