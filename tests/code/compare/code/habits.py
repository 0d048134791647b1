"""Correct multi-head attention, written as people write it: other inputs, sizes, layouts and surroundings.

Each class takes `d` and `h`; `CORRECT` says what it is compared with, and how.
"""

SOURCE = '''
import torch
from torch import nn
from torch.nn import functional as F


class Plain(nn.Module):
    """Q, K and V from one matrix; `core` is what most classes below share."""

    def __init__(self, d, h, bias=True):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d, bias=bias)
        self.out = nn.Linear(d, d)

    def core(self, x, hidden=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).movedim(-3, 0).transpose(-2, -3)
        scores = q @ k.mT  # raw
        if hidden is not None:
            scores = scores.masked_fill(hidden, -1e9)  # fill
        weights = (scores / q.shape[-1] ** 0.5).softmax(-1)  # softmax
        return (weights @ v).transpose(-2, -3).flatten(-2)

    def forward(self, x):
        return self.out(self.core(x))


class ScaledAfterTheMask(Plain):
    def forward(self, x):
        n = x.shape[1]
        return self.out(self.core(x, torch.ones(n, n).triu(1).bool()))  # mask


class NormBefore(Plain):
    def __init__(self, d, h):
        super().__init__(d, h, bias=False)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        x = self.norm(x)  # norm
        return self.out(self.core(x))


class ResidualAndNormAfter(Plain):
    def __init__(self, d, h):
        super().__init__(d, h)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        return self.norm(x + self.out(self.core(x)))


class Block(NormBefore):
    def __init__(self, d, h):
        super().__init__(d, h)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        x = x + self.out(self.core(self.norm(x)))
        return x + self.down(self.up(x).relu())


class WithoutProjection(Plain):
    def __init__(self, d, h):
        super().__init__(d, h)
        del self.out

    def forward(self, x):
        return self.core(x)


class OneHead(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Parameter(torch.randn(d, h)) for _ in range(3))

    def forward(self, x):
        keys, queries, values = x @ self.W_key, x @ self.W_query, x @ self.W_value
        return torch.softmax(queries @ keys.T / keys.shape[-1] ** 0.5, dim=-1) @ values


class NarrowHeads(nn.Module):
    """Cross-attention, whose heads together are narrower than the input."""

    def __init__(self, d, h, d_head=6, d_context=20):
        super().__init__()
        self.h = h
        self.to_q = nn.Linear(d, h * d_head, bias=False)
        self.to_k, self.to_v = (nn.Linear(d_context, h * d_head, bias=False) for _ in range(2))
        self.to_out = nn.Linear(h * d_head, d)

    def forward(self, x, context, mask=None):
        split = (each.unflatten(-1, (self.h, -1)).transpose(1, 2) for each in (self.to_q(x), self.to_k(context), self.to_v(context)))
        q, k, v = split
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        return self.to_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SequenceFirst(Plain):
    """n_Q n_batch d."""

    def forward(self, x):
        return self.out(self.core(x.transpose(0, 1))).transpose(0, 1)


class Lazy(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.LazyLinear(d, bias=False) for _ in range(4))

    def forward(self, queries, keys, values):
        q, k, v = (
            each(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for each, x in ((self.q, queries), (self.k, keys), (self.v, values))
        )
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class LoopOverHeads(nn.Module):
    """Several attentions in one call."""

    def __init__(self, d, h):
        super().__init__()
        self.heads = nn.ModuleList(OneHead(d, d // h) for _ in range(h))
        self.out = nn.Linear(d, d)

    def forward(self, x):
        return self.out(torch.cat([torch.stack([head(each) for each in x]) for head in self.heads], -1))


class TalkingHeads(Plain):
    """Scores are mixed across heads (Shazeer et al. 2020)."""

    def __init__(self, d, h):
        super().__init__(d, h)
        self.mix = nn.Parameter(torch.randn(h, h))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhij,hg->bgij", q @ k.mT / q.shape[-1] ** 0.5, self.mix)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Separate(nn.Module):
    """A matrix each, and norms of queries and keys."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.query, self.key, self.value, self.out = (nn.Linear(d, d) for _ in range(4))
        self.q_norm, self.k_norm = (Scale(d // h) for _ in range(2))

    def forward(self, x):
        q = self.query(x)  # q
        k = self.key(x)  # k
        v = self.value(x)
        q, k, v = (each.unflatten(-1, (self.h, -1)).transpose(1, 2) for each in (q, k, v))
        q, k = self.q_norm(q), self.k_norm(k)
        return self.out((torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v).transpose(1, 2).flatten(2))


class Scale(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(d))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.scale)


class Fused(Separate):
    """The same from one matrix, with the norms under other names."""

    def __init__(self, d, h):
        nn.Module.__init__(self)
        self.h = h
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln_for_k, self.ln_for_q = (nn.RMSNorm(d // h) for _ in range(2))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.ln_for_q(q), self.ln_for_k(k)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
'''


def changed(old: str, new: str) -> str:
    """Return the source with one piece replaced, once."""
    assert old in SOURCE, old
    return SOURCE.replace(old, new, 1)
