"""Attention without a tensor of scores for each query and key: linear, and over edge lists; tied rows."""

import torch
from torch import nn
from torch.nn import functional as F


class Linear(nn.Module):
    """Katharopoulos et al. 2020, with a state, a numerator and a denominator."""

    def __init__(self, width=40, h=4, d_head=6, d_V=5):
        super().__init__()
        self.h = h
        self.q, self.k = nn.Linear(width, h * d_head), nn.Linear(width, h * d_head)
        self.v, self.o = nn.Linear(width, h * d_V), nn.Linear(h * d_V, width)

    def mapped(self, y):
        return F.elu(y) + 1

    def split(self, y):
        return y.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def denominator(self, q, k):
        return (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)

    def state(self, k, v):
        return k.mT @ v

    def forward(self, x, context):
        q, k = self.mapped(self.split(self.q(x))), self.mapped(self.split(self.k(context)))
        numerator = q @ self.state(k, self.split(self.v(context)))
        y = numerator / self.denominator(q, k)
        return self.o(y.transpose(1, 2).flatten(2))


class LinearOfThree(Linear):
    """The same with an einsum of three tensors, as in the paper's code."""

    def forward(self, x, context):
        q, k, v = (
            each(y).unflatten(-1, (self.h, -1))
            for each, y in ((self.q, x), (self.k, context), (self.v, context))
        )
        q, k = self.mapped(q), self.mapped(k)
        state = torch.einsum("nshd,nshm->nhmd", k, v)
        normaliser = 1 / self.summed(torch.einsum("nlhd,nhd->nlh", q, k.sum(1)))
        return self.o(torch.einsum("nlhd,nhmd,nlh->nlhm", q, state, normaliser).flatten(2))

    def summed(self, sums):
        return sums


class SummedOverHeads(Linear):
    def denominator(self, q, k):
        return super().denominator(q, k).sum(1, keepdim=True)


class SummedOverHeadsOfThree(LinearOfThree):
    def summed(self, sums):
        return sums.sum(-1, keepdim=True).expand_as(sums)


class StateScaled(Linear):
    def state(self, k, v):
        return (k / k.shape[-2]).mT @ v


class NotDivided(Linear):
    def denominator(self, q, k):
        return 1.0


class Efficient(Linear):
    """Shen et al. 2021, "Efficient Attention": softmaxes of queries and keys apart, and no denominator."""

    axis = -2

    def forward(self, x, context):
        q, k = self.split(self.q(x)).softmax(-1), self.split(self.k(context)).softmax(self.axis)
        return self.o((q @ self.state(k, self.split(self.v(context)))).transpose(1, 2).flatten(2))


class EfficientOverFeatures(Efficient):
    axis = -1


class Edges(nn.Module):
    """Attention of nodes over their incoming edges, each from `source` to `target`."""

    def __init__(self, width=24, h=3, d_head=5):
        super().__init__()
        self.h = h
        self.q, self.k, self.v = (nn.Linear(width, h * d_head) for _ in range(3))
        self.o = nn.Linear(h * d_head, width)

    def groups(self, source, target):
        return target

    def scaled(self, scores, d_head):
        return scores / d_head**0.5

    def normalised(self, scores, groups, n):
        most = scores.new_full((n, self.h), -torch.inf)
        most = most.scatter_reduce(0, groups[:, None].expand_as(scores), scores, "amax")
        exponentials = (scores - most[groups]).exp()
        totals = scores.new_zeros(n, self.h).index_add(0, groups, exponentials)
        return exponentials / totals[groups]

    def forward(self, x, source, target):
        q, k, v = (each(x).unflatten(-1, (self.h, -1)) for each in (self.q, self.k, self.v))
        scores = self.scaled((q[target] * k[source]).sum(-1), q.shape[-1])
        weights = self.normalised(scores, self.groups(source, target), len(x))
        messages = weights[..., None] * v[source]
        return self.o(torch.zeros_like(v).index_add(0, target, messages).flatten(1))


class EdgesByScatter(Edges):
    """The same with other functions, heads first, and no largest score."""

    def forward(self, x, source, target):
        q, k, v = (each(x).unflatten(-1, (self.h, -1)) for each in (self.q, self.k, self.v))
        scores = torch.einsum("ehd,ehd->he", q.index_select(0, target), k.index_select(0, source))
        exponentials = (scores * q.shape[-1] ** -0.5).exp()
        groups = target.expand(self.h, -1)
        totals = exponentials.new_zeros(self.h, len(x)).scatter_add(1, groups, exponentials)
        messages = (exponentials / totals.gather(1, groups)).T[..., None] * v.index_select(0, source)
        places = target[:, None, None].expand_as(messages)
        return self.o(torch.zeros_like(v).scatter_add(0, places, messages).flatten(1))


class EdgesInAMask(Edges):
    """The same with scores of all nodes, and a mask that counts the edges."""

    def forward(self, x, source, target):
        q, k, v = (
            each(x).unflatten(-1, (self.h, -1)).transpose(0, 1) for each in (self.q, self.k, self.v)
        )
        edges = x.new_zeros(len(x), len(x)).index_put((target, source), x.new_ones(1), accumulate=True)
        weights = (q @ k.mT / q.shape[-1] ** 0.5 + edges.log()).softmax(-1)
        return self.o((weights @ v).transpose(0, 1).flatten(1))


class EdgesBySource(Edges):
    """The softmax runs over the nodes that are read."""

    def groups(self, source, target):
        return source


class EdgesNotScaled(Edges):
    def scaled(self, scores, d_head):
        return scores


class TiedRows(nn.Module):
    """Rao et al. 2021, "MSA Transformer": all rows share one map."""

    def __init__(self, width=48, h=4):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def width(self, n_row, d_head):
        return n_row * d_head

    def forward(self, x):  # rows columns n_batch width
        q, k, v = (each(x).unflatten(-1, (self.h, -1)) for each in (self.q, self.k, self.v))
        scores = torch.einsum("rinhd,rjnhd->hnij", q, k) * self.width(len(x), q.shape[-1]) ** -0.5
        return self.o(torch.einsum("hnij,rjnhd->rinhd", scores.softmax(-1), v).flatten(3))


class TiedRowsScaledByOne(TiedRows):
    def width(self, n_row, d_head):
        return d_head


def windows(q, k, v):
    """Attend in windows of 4 positions of `b h n d`."""
    q, k, v = (each.flatten(0, 1).unflatten(1, (-1, 4)) for each in (q, k, v))
    return (torch.einsum("bwid,bwjd->bwij", q, k) / q.shape[-1] ** 0.5).softmax(-1) @ v
