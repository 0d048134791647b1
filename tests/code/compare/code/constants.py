"""Attention whose weights begin constant, right and with a mistake that the constants hide."""

import torch
from torch import nn
from torch.nn.functional import linear


class Biases(nn.Module):
    """Biases of zero hide which one is added."""

    def __init__(self, width):
        super().__init__()
        self.w_q, self.w_k, self.w_v = (
            nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(3)
        )
        self.b_q, self.b_k, self.b_v = (nn.Parameter(torch.zeros(width)) for _ in range(3))

    def values(self, x):
        return linear(x, self.w_v, self.b_v)

    def forward(self, x):
        q, k = linear(x, self.w_q, self.b_q), linear(x, self.w_k, self.b_k)
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ self.values(x)


class OtherBias(Biases):
    def values(self, x):
        return linear(x, self.w_v, self.b_q)


class Table(nn.Module):
    """A table of zeros hides in which direction it is read."""

    direction = 1

    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.table = nn.Parameter(torch.zeros(2 * 9 - 1))

    def forward(self, x):
        n = torch.arange(x.shape[1])
        bias = self.table[self.direction * (n[None] - n[:, None]) + 8]
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5 + bias
        return scores.softmax(-1) @ self.v(x)


class FlippedTable(Table):
    direction = -1


class Closed(nn.Module):
    """An output projection of zeros hides everything before it."""

    factor = 1.0

    def __init__(self, width, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        nn.init.zeros_(self.o.weight)
        nn.init.zeros_(self.o.bias)

    def attention(self, x):
        q, k, v = (
            each(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        scores = self.factor * q @ k.mT / q.shape[-1] ** 0.5
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def forward(self, x):
        return self.o(self.attention(x))


class ClosedAndScaled(Closed):
    factor = 3.0


class Gated(Closed):
    """A gate of zero hides it, too."""

    def __init__(self, width, h):
        super().__init__(width, h)
        self.gate = nn.Parameter(torch.zeros(1))
        nn.init.eye_(self.o.weight)

    def forward(self, x):
        return x + self.gate.tanh() * self.o(self.attention(x))


class GatedAndScaled(Gated):
    factor = 3.0


class Temperature(Closed):
    """A learned temperature that begins as √d_head, which mha does not have."""

    def __init__(self, width, h):
        super().__init__(width, h)
        self.temperature = nn.Parameter(torch.tensor((width / h) ** 0.5))
        nn.init.normal_(self.o.weight)

    def attention(self, x):
        q, k, v = (
            each(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        return ((q @ k.mT / self.temperature).softmax(-1) @ v).transpose(1, 2).flatten(2)
