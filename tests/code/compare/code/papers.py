"""Attention of several models as their papers describe it, with parameters and packings of its own."""

import torch
from torch import nn


def split(x, n_head):
    """Split `b n (h d)` into `b h n d`."""
    return x.unflatten(-1, (n_head, -1)).transpose(1, 2)


def merge(x):
    """Merge `b h n d` into `b n (h d)`."""
    return x.transpose(1, 2).flatten(2)


def rotated(x, base):
    """Rotate `… n d`, pairing feature m with m + d/2 (Su et al. 2021)."""
    n, d = x.shape[-2:]
    m = torch.arange(d // 2, dtype=x.dtype)
    angle = torch.arange(n, dtype=x.dtype)[:, None] * base ** (-m / (d // 2))
    first, second = x.chunk(2, -1)
    return torch.cat(
        [
            first * angle.cos() - second * angle.sin(),
            first * angle.sin() + second * angle.cos(),
        ],
        -1,
    )


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


class Llama(nn.Module):
    """Touvron et al. 2023: grouped keys, rotary positions, no biases."""

    def __init__(self, d_feat, n_head, n_kv_head, d_head, base=10000.0):
        super().__init__()
        self.n_head, self.n_kv_head, self.base = n_head, n_kv_head, base
        self.wq = nn.Linear(d_feat, n_head * d_head, bias=False)
        self.wkv = nn.Linear(d_feat, 2 * n_kv_head * d_head, bias=False)
        self.wo = nn.Linear(n_head * d_head, d_feat, bias=False)

    def forward(self, x):
        keys, values = self.wkv(x).chunk(2, -1)
        q = rotated(split(self.wq(x), self.n_head), self.base)
        k = rotated(split(keys, self.n_kv_head), self.base)
        v = split(values, self.n_kv_head)
        q = q.unflatten(1, (self.n_kv_head, -1))
        scores = torch.einsum("bkgid,bkjd->bkgij", q, k) / q.shape[-1] ** 0.5
        scores = scores.where(causal(x.shape[1]), float("-inf"))
        out = torch.einsum("bkgij,bkjd->bikgd", scores.softmax(-1), v)
        return self.wo(out.flatten(2))


class Bert(nn.Module):
    """Devlin et al. 2019: Q, K and V from one matrix, packed by heads."""

    def __init__(self, d_feat, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(d_feat, 3 * d_feat)

    def forward(self, x):
        b, n, d_feat = x.shape
        q, k, v = self.qkv(x).view(b, n, self.n_head, 3, -1).permute(3, 0, 2, 1, 4)
        scores = q @ k.mT / (d_feat // self.n_head) ** 0.5
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d_feat)


class GPT2(nn.Module):
    """Radford et al. 2019: causal, with biases."""

    def __init__(self, d_feat, n_head):
        super().__init__()
        self.n_head = n_head
        self.query, self.key, self.value, self.out = (nn.Linear(d_feat, d_feat) for _ in range(4))

    def forward(self, x):
        q, k, v = (split(each(x), self.n_head) for each in (self.query, self.key, self.value))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~causal(x.shape[1]), -torch.inf)
        return self.out(merge(scores.softmax(-1) @ v))


class Qwen3(nn.Module):
    """Qwen team 2025: each query and key is normalised before its rotation."""

    def __init__(self, d_feat, n_head, n_kv_head, d_head, base=10000.0, eps=1e-6):
        super().__init__()
        self.n_head, self.n_kv_head, self.base, self.eps = n_head, n_kv_head, base, eps
        self.wq = nn.Linear(d_feat, n_head * d_head, bias=False)
        self.wk = nn.Linear(d_feat, n_kv_head * d_head, bias=False)
        self.wv = nn.Linear(d_feat, n_kv_head * d_head, bias=False)
        self.wo = nn.Linear(n_head * d_head, d_feat, bias=False)
        self.norm_of_q = nn.Parameter(torch.ones(d_head))
        self.norm_of_k = nn.Parameter(torch.ones(d_head))

    def normalised(self, x, weight):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * weight

    def forward(self, x):
        q = rotated(self.normalised(split(self.wq(x), self.n_head), self.norm_of_q), self.base)
        k = rotated(self.normalised(split(self.wk(x), self.n_kv_head), self.norm_of_k), self.base)
        v = split(self.wv(x), self.n_kv_head)
        k, v = (each.repeat_interleave(self.n_head // self.n_kv_head, 1) for each in (k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~causal(x.shape[1]), -torch.inf)
        return self.wo(merge(scores.softmax(-1) @ v))


class T5(nn.Module):
    """Raffel et al. 2020: no scale; a bias for each head and distance, in buckets."""

    def __init__(self, d_feat, n_head, d_head, n_bucket, furthest):
        super().__init__()
        self.n_head, self.n_bucket, self.furthest = n_head, n_bucket, furthest
        self.wq, self.wk, self.wv = (nn.Linear(d_feat, n_head * d_head, bias=False) for _ in range(3))
        self.wo = nn.Linear(n_head * d_head, d_feat, bias=False)
        self.bias = nn.Embedding(n_bucket, n_head)

    def buckets(self, n):
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        half = self.n_bucket // 2
        exact = half // 2
        far = distance.abs().clamp_min(1).double()
        large = (
            exact
            + ((far / exact).log() / torch.tensor(self.furthest / exact).log() * (half - exact)).long()
        )
        near = torch.where(distance.abs() < exact, distance.abs(), large.clamp_max(half - 1))
        return near + half * (distance > 0)

    def forward(self, x):
        q, k, v = (split(each(x), self.n_head) for each in (self.wq, self.wk, self.wv))
        scores = q @ k.mT + self.bias(self.buckets(x.shape[1])).permute(2, 0, 1)
        return self.wo(merge(scores.softmax(-1) @ v))


class GptOss(nn.Module):
    """OpenAI 2025: a learned sink for each head, which takes part of the softmax; biases; a window."""

    def __init__(self, d_feat, n_head, n_kv_head, d_head, base=10000.0, window=None):
        super().__init__()
        self.n_head, self.n_kv_head, self.base, self.window = n_head, n_kv_head, base, window
        self.wq = nn.Linear(d_feat, n_head * d_head)
        self.wk = nn.Linear(d_feat, n_kv_head * d_head)
        self.wv = nn.Linear(d_feat, n_kv_head * d_head)
        self.wo = nn.Linear(n_head * d_head, d_feat)
        self.sink = nn.Parameter(torch.zeros(n_head))

    def forward(self, x):
        n = x.shape[1]
        q = rotated(split(self.wq(x), self.n_head), self.base)
        k = rotated(split(self.wk(x), self.n_kv_head), self.base)
        v = split(self.wv(x), self.n_kv_head)
        k, v = (each.repeat_interleave(self.n_head // self.n_kv_head, 1) for each in (k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        visible = causal(n)
        if self.window is not None:
            visible = visible & ~causal(n).tril(-self.window)
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = scores.exp()
        weights = weights / (weights.sum(-1, keepdim=True) + self.sink.exp()[:, None, None])
        return self.wo(merge(weights @ v))
