"""Rotary positions, norms and dropout in the right place, and in another one."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


def rotated(y, positions=-2, pairs="halves"):
    """Rotate `b h n d` by the index along an axis."""
    n_pair = y.shape[-1] // 2
    angle = torch.arange(y.shape[positions]).to(y)[:, None] * 10000.0 ** -(
        torch.arange(n_pair).to(y) / n_pair
    )
    shape = [1] * y.ndim
    shape[positions], shape[-1] = angle.shape
    angle = angle.reshape(shape)
    first, second = y.chunk(2, -1) if pairs == "halves" else (y[..., ::2], y[..., 1::2])
    parts = first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()
    return torch.cat(parts, -1) if pairs == "halves" else torch.stack(parts, -1).flatten(-2)


class Right(nn.Module):
    """A norm of each query and key, then their rotary positions, then the fused kernel."""

    dropout = 0.0

    def __init__(self, width, h, norm=nn.RMSNorm):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = norm(width // h), norm(width // h)

    def placed(self, y, norm):
        return rotated(norm(y))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        q, k = self.placed(q, self.q_norm), self.placed(k, self.k_norm)
        y = scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return self.out(y.transpose(1, 2).flatten(2))


class NormAfter(Right):
    def placed(self, y, norm):
        return norm(rotated(y))


class AlongHeads(Right):
    def placed(self, y, norm):
        return rotated(norm(y), positions=1)


class AlongSequences(Right):
    def placed(self, y, norm):
        return rotated(norm(y), positions=0)


class Interleaved(Right):
    def placed(self, y, norm):
        return rotated(norm(y), pairs="neighbours")


class Dropped(Right):
    dropout = 0.1


class Squared(Right):
    """What no common cause explains."""

    def placed(self, y, norm):
        return norm(y).square() + 1


class Doubled(nn.Module):
    """Queries and keys whose features are turned by other angles than their partners: no rotation."""

    def __init__(self, width, h, norm=None):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def placed(self, y):
        """Rotate `b h n d` by angles of neighbours, and with the partners of halves."""
        first, second = y.chunk(2, -1)
        return y * self.angle(y).cos() + torch.cat((-second, first), -1) * self.angle(y).sin()

    def angle(self, y):
        n_pair = y.shape[-1] // 2
        speed = 10000.0 ** -(torch.arange(n_pair).to(y) / n_pair)
        return torch.arange(y.shape[-2]).to(y)[:, None] * speed.repeat_interleave(2)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = scaled_dot_product_attention(self.placed(q), self.placed(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Neighbours(Doubled):
    """The right partners for these angles."""

    def placed(self, y):
        partner = torch.stack((-y[..., 1::2], y[..., ::2]), -1).flatten(-2)
        return y * self.angle(y).cos() + partner * self.angle(y).sin()


class EvenThenOdd(Doubled):
    """The same rotation from a table in float32, with even features before odd ones in its result."""

    def placed(self, y):
        even, odd = y[..., ::2], y[..., 1::2]
        angle = self.angle(y.float())[:, ::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((even * cos - odd * sin, odd * cos + even * sin), -1)


class Merged(Doubled):
    """The features of all heads are rotated together, before they are split into heads."""

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in (rotated(q), rotated(k), v))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class EachHead(Doubled):
    def placed(self, y):
        return rotated(y)
