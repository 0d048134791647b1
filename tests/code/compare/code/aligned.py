"""Causal attention of fewer queries than keys, with a few rotary positions."""

import torch


def _attention(Q, K, V, offset, rotated=False):
    if rotated:
        Q, K = _rotated(Q, offset), _rotated(K, 0)
    hidden = torch.ones(Q.shape[-2], K.shape[-2]).triu(1 + offset).bool()
    return (Q @ K.mT / Q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ V


def _rotated(x, first):
    m = torch.arange(x.shape[-1] // 2, dtype=x.dtype)
    positions = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] + first
    angle = positions * 10000.0 ** (-m / len(m))
    one, two = x.chunk(2, -1)
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)


def first(Q, K, V):
    return _attention(Q, K, V, 0)


def last(Q, K, V):
    return _attention(Q, K, V, K.shape[-2] - Q.shape[-2])


def between(Q, K, V):
    return _attention(Q, K, V, 1)


def last_rotated(Q, K, V):
    return _attention(Q, K, V, K.shape[-2] - Q.shape[-2], rotated=True)
