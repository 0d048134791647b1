"""Attention with a gate, biases of scores, and a second map of weights; without them, and elsewhere."""

import torch
from torch import nn
from torch.nn import functional as F


def hidden(scores):
    return torch.ones(scores.shape[-2:]).triu(1).bool()


class Plain(nn.Module):
    """No gate, no bias: the steps that the others change."""

    def __init__(self, width=40, h=4, d_head=6, d_V=5):
        super().__init__()
        self.h = h
        self.q, self.k = nn.Linear(width, h * d_head), nn.Linear(width, h * d_head)
        self.v, self.o = nn.Linear(width, h * d_V), nn.Linear(h * d_V, width)
        self.g = nn.Linear(width, h * d_V)
        self.bias, self.other = nn.Parameter(torch.randn(h, 7, 7)), nn.Parameter(torch.randn(h, 7, 7))

    def split(self, y):
        return y.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def scores(self, q, k):
        return q @ k.mT / q.shape[-1] ** 0.5

    def gate(self, y, x):
        return y

    def out(self, y, x):
        return self.o(y)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = self.scores(q, k)
        scores = scores.masked_fill(hidden(scores), -torch.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2)
        y = self.gate(y, x)
        y = y.flatten(2)
        return self.out(y, x)


class Gated(Plain):
    def gate(self, y, x):
        return y * self.g(x).sigmoid().unflatten(-1, (self.h, -1))


class GatedWhenMerged(Plain):
    """The same gate, of merged heads, from a part of one matrix."""

    def out(self, y, x):
        weight = torch.cat([self.q.weight, self.g.weight])
        bias = torch.cat([self.q.bias, self.g.bias])
        gate = F.linear(x, weight, bias)[..., self.q.out_features :]
        return self.o(y / (1 + (-gate).exp()))


class GatedBySilu(Plain):
    def gate(self, y, x):
        return y * F.silu(self.g(x)).unflatten(-1, (self.h, -1))


class Biased(Plain):
    def scores(self, q, k):
        return q @ k.mT / q.shape[-1] ** 0.5 + self.bias


class BiasedInOneStep(Plain):
    """The same bias, to which the product is added."""

    def scores(self, q, k):
        bias = self.bias.repeat(len(q), 1, 1)
        scores = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.shape[-1] ** -0.5)
        return scores.unflatten(0, (-1, self.h))


class BiasedBeforeTheScale(Plain):
    def scores(self, q, k):
        return (q @ k.mT + self.bias) / q.shape[-1] ** 0.5


class OtherBias(Plain):
    def scores(self, q, k):
        return q @ k.mT / q.shape[-1] ** 0.5 + self.other


class TwoTerms(nn.Module):
    """A bias of the contents and one of the positions, as in Transformer-XL; each has its own vector."""

    def __init__(self, width=24, h=4):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.p, self.o = (nn.Linear(width, width) for _ in range(5))
        self.u, self.w = (nn.Parameter(torch.randn(h, 1, width // h)) for _ in range(2))

    def placed(self, q):
        return q + self.w

    def forward(self, x, positions):
        q, k, v, p = (
            each(y).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for each, y in ((self.q, x), (self.k, x), (self.v, x), (self.p, positions))
        )
        contents = (q + self.u) @ k.mT
        places = self.placed(q) @ p.mT
        scores = (contents + places) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(hidden(scores), -torch.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class WrongTerm(TwoTerms):
    def placed(self, q):
        return q + self.u


class Difference(nn.Module):
    """Ye et al. 2025, "Differential Transformer": the difference of two maps."""

    def __init__(self, width=40, h=3, d_head=6, d_V=8):
        super().__init__()
        self.h, self.d_head = h, d_head
        self.q, self.k = nn.Linear(width, 2 * h * d_head), nn.Linear(width, 2 * h * d_head)
        self.v, self.o = nn.Linear(width, h * d_V), nn.Linear(h * d_V, width)
        self.share = nn.Parameter(torch.rand(h, 1, 1))

    def split(self, y):
        return y.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def second(self, scores):
        return scores / self.d_head**0.5

    def combined(self, one, other):
        return one - self.share * other

    def forward(self, x):
        q, k = self.q(x).chunk(2, -1), self.k(x).chunk(2, -1)
        one, other = (
            self.split(first) @ self.split(second).mT for first, second in zip(q, k, strict=True)
        )
        weights = self.combined((one / self.d_head**0.5).softmax(-1), self.second(other).softmax(-1))
        return self.o((weights @ self.split(self.v(x))).transpose(1, 2).flatten(2))


class DifferenceInOne(Difference):
    """The same with one softmax for both maps."""

    def forward(self, x):
        q, k = (
            each(x).unflatten(-1, (2, self.h, -1)).permute(0, 3, 2, 1, 4) for each in (self.q, self.k)
        )
        maps = (torch.einsum("bhmid,bhmjd->bhmij", q, k) * self.d_head**-0.5).softmax(-1)
        weights = maps[:, :, 0] - self.share * maps[:, :, 1]
        v = self.v(x).unflatten(-1, (self.h, -1))
        return self.o(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class OneMap(Difference):
    def combined(self, one, other):
        return one


class SumOfMaps(Difference):
    def combined(self, one, other):
        return one + self.share * other


class SecondMapMasked(Difference):
    def second(self, scores):
        return (scores / self.d_head**0.5).masked_fill(hidden(scores), -torch.inf)
