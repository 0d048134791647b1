"""What weights are divided by, the width of norms, and masks of blocks; each with a twin in other steps."""

import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self, width=40, h=4, d_head=6, d_V=5):
        super().__init__()
        self.h = h
        self.q, self.k = nn.Linear(width, h * d_head), nn.Linear(width, h * d_head)
        self.v, self.o = nn.Linear(width, h * d_V), nn.Linear(h * d_V, width)
        self.sink = nn.Parameter(torch.randn(h, 1, 1))
        self.norms(d_head)

    def norms(self, d_head):
        """Add norms of queries and keys."""

    def split(self, y):
        return y.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def projected(self, x):
        return self.split(self.q(x)), self.split(self.k(x))

    def keys(self, k, v):
        return k, v

    def masked(self, scores):
        return scores

    def weights(self, scores):
        return scores.softmax(-1)

    def forward(self, x):
        q, k = self.projected(x)
        k, v = self.keys(k, self.split(self.v(x)))
        weights = self.weights(self.masked(q @ k.mT / q.shape[-1] ** 0.5))
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class SoftmaxInLogarithms(Plain):
    def weights(self, scores):
        return (scores - scores.logsumexp(-1, keepdim=True)).exp()


class OverHeads(Plain):
    def weights(self, scores):
        exponentials = scores.exp()
        return exponentials / exponentials.sum((1, -1), keepdim=True)


class Sink(Plain):
    """OpenAI 2025, gpt-oss: a column of scores without a value."""

    def weights(self, scores):
        sink = self.sink.expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


class SinkInTheSum(Plain):
    def weights(self, scores):
        exponentials = scores.exp()
        return exponentials / (exponentials.sum(-1, keepdim=True) + self.sink.exp())


class SinkOutside(Plain):
    def weights(self, scores):
        return scores.softmax(-1) / (1 + self.sink.exp())


class SinkNotReduced(Plain):
    """The scores are reduced by the largest, and the sink is not."""

    def weights(self, scores):
        exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
        return exponentials / (exponentials.sum(-1, keepdim=True) + self.sink.exp())


class NormOfHeads(Plain):
    def norms(self, d_head):
        self.q_norm, self.k_norm = nn.RMSNorm(d_head), nn.RMSNorm(d_head)

    def projected(self, x):
        return self.q_norm(self.split(self.q(x))), self.k_norm(self.split(self.k(x)))


class NormOfHeadsByHand(NormOfHeads):
    def projected(self, x):
        def normalised(y, norm):
            y = self.split(y)
            return (
                y * (y.square().mean(-1, keepdim=True) + torch.finfo(y.dtype).eps).rsqrt() * norm.weight
            )

        return normalised(self.q(x), self.q_norm), normalised(self.k(x), self.k_norm)


class NormOfAll(Plain):
    def norms(self, d_head):
        self.q_norm, self.k_norm = nn.RMSNorm(self.h * d_head), nn.RMSNorm(self.h * d_head)

    def projected(self, x):
        return self.split(self.q_norm(self.q(x))), self.split(self.k_norm(self.k(x)))


class Summaries(Plain):
    """Keys and values are means of blocks of 3; a query sees blocks that have ended."""

    first = 2

    def keys(self, k, v):
        return (each.unflatten(2, (-1, 3)).mean(3) for each in (k, v))

    def masked(self, scores):
        n_Q, n_K = scores.shape[-2:]
        visible = torch.arange(n_Q)[:, None] >= torch.arange(n_K) * 3 + self.first
        visible[:, 0] = True  # no query is without keys
        return scores.masked_fill(~visible, -torch.inf)


class SummariesOfLoops(Summaries):
    """The same, block by block."""

    def keys(self, k, v):
        return (
            torch.stack([each[:, :, i : i + 3].sum(2) / 3 for i in range(0, each.shape[2], 3)], 2)
            for each in (k, v)
        )

    def masked(self, scores):
        hidden = torch.zeros(scores.shape[-2:]).bool()
        for block in range(1, scores.shape[-1]):
            hidden[: block * 3 + 2, block] = True
        return scores + torch.zeros(scores.shape[-2:]).to(scores).masked_fill(hidden, -torch.inf)


class SummariesFromTheirStart(Summaries):
    first = 0


class Blocks(Plain):
    """A query sees its own block of 3 keys, and those before it."""

    size = 3

    def masked(self, scores):
        block = torch.arange(scores.shape[-1]) // self.size
        return scores.masked_fill(block[:, None] < block, -torch.inf)


class BlocksOfFour(Blocks):
    size = 4


class OwnBlock(Plain):
    def masked(self, scores):
        block = torch.arange(scores.shape[-1]) // 3
        return scores.masked_fill(block[:, None] != block, -torch.inf)
