"""Causal code, and the same with one mistake, whose line ends with a comment."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Twin(nn.Module):
    def __init__(self, right=False):
        super().__init__()
        self.right = right


class Base(nn.Module):
    def __init__(self, d=12, h=3, right=False, n_max=32):
        super().__init__()
        self.h, self.right = h, right
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("future", torch.ones(n_max, n_max).triu(1 if right else 2).bool())  # Buffer
        self.plain = torch.ones(n_max, n_max, dtype=torch.bool).tril(0 if right else 1)  # Attribute

    def split(self, x):
        B, T, _ = x.shape
        return (y.view(B, T, self.h, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))

    def merge(self, y):
        B, h, T, d = y.shape
        return self.out(y.transpose(1, 2).reshape(B, T, h * d))


class Triu2(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        ones = torch.ones(T, T)
        future = ones.triu(1 if self.right else 2)  # LINE
        mask = future.bool()
        scores = q @ k.mT / 2
        scores = scores.masked_fill(mask, float("-inf"))
        attention = scores.softmax(-1)
        return self.merge(attention @ v)


class Missing(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        scores = q @ k.mT / 2
        if self.right:
            scores = scores + torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        attention = scores.softmax(-1)  # LINE
        return self.merge(attention @ v)


class After(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        past = torch.ones(T, T).tril()
        scores = q @ k.mT / 2
        attention = scores.softmax(-1)
        attention = attention * past  # LINE
        if self.right:
            attention = attention / attention.sum(-1, keepdim=True)
        return self.merge(attention @ v)


class Transposed(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        past = torch.ones(T, T).tril()
        past = past if self.right else past.T  # LINE
        scores = q @ k.mT / 2
        scores = scores.masked_fill(past == 0, float("-inf"))
        attention = scores.softmax(-1)
        return self.merge(attention @ v)


class Inverted(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        past = torch.ones(T, T).tril()
        mask = past.bool()
        scores = q @ k.mT / 2
        if self.right:
            mask = ~mask
        scores = scores.masked_fill(mask, -1e9)  # LINE
        attention = scores.softmax(-1)
        return self.merge(attention @ v)


class CumsumMean(Twin):
    def forward(self, x):
        T = x.shape[1]
        total = x.cumsum(1)
        if not self.right:
            total = total[:, -1:].expand_as(x)  # LINE
        return x + total / torch.arange(1, T + 1)[:, None]


class AcrossBatch(Twin):
    def forward(self, x):
        B, T, C = x.shape
        y = x * 2
        y = y.transpose(0, 1) if self.right else y.reshape(T, B, C)  # LINE
        y = y.cumsum(0)
        return y.transpose(0, 1)


class Roll(nn.Module):
    def __init__(self, right=False):
        super().__init__()
        self.right = right
        self.a = Base(right=True)

    def forward(self, x):
        y = self.a.qkv(x)[..., :12]
        y = y.roll(1 if self.right else -1, 1)  # LINE
        if self.right:
            y = torch.cat([torch.zeros_like(y[:, :1]), y[:, 1:]], 1)
        return x + y.cumsum(1)


class NormOverTime(Twin):
    def forward(self, x):
        dim = -1 if self.right else 1
        centred = x - x.mean(dim, keepdim=True)
        scaled = centred / x.std(dim, keepdim=True)
        return scaled * 2


class LayerNormOverTime(Twin):
    def forward(self, x):
        y = x if self.right else x.mT
        y = F.layer_norm(y, y.shape[-1:])  # LINE
        return y if self.right else y.mT


class Pooling(Twin):
    def forward(self, x):
        y = x.mT
        y = F.pad(y, (2, 0) if self.right else (1, 1))
        y = F.avg_pool1d(y, 3, 1)  # LINE
        return x + y.mT


class SoftmaxAxis(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        past = torch.ones(T, T).tril()
        scores = (q @ k.mT / 2).masked_fill(past == 0, float("-inf"))
        attention = scores.softmax(-1 if self.right else -2)  # LINE
        return self.merge(attention @ v)


class Buffer(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        scores = (q @ k.mT / 2).masked_fill(self.future[:T, :T], float("-inf"))
        attention = scores.softmax(-1)
        return self.merge(attention @ v)


class Attribute(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        mask = self.plain[:T, :T]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.merge(y)


class Zeros(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        past = torch.ones(T, T).tril()
        scores = q @ k.mT / 2
        scores = scores.masked_fill(past == 0, -1e9 if self.right else 1e-9)  # LINE
        attention = scores.softmax(-1)
        return self.merge(attention @ v)


class Product(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        past = torch.ones(T, T).tril()
        scores = q @ k.mT / 2
        if not self.right:
            scores = scores * past  # LINE
        scores = scores + (1 - past) * -1e9 * self.right
        attention = scores.softmax(-1)
        return self.merge(attention @ v)


class Added(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        past = torch.ones(T, T).tril()
        bias = ((1 - past) if self.right else past) * -1e9  # LINE
        scores = q @ k.mT / 2
        scores = scores + bias
        attention = scores.softmax(-1)
        return self.merge(attention @ v)


class Fused(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.right)  # LINE
        return self.merge(y)


class Linear(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if self.right:
            kv = (k[..., None] * v[..., None, :]).cumsum(2)
            return self.merge((q[..., None, :] @ kv).squeeze(-2))
        kv = k.mT @ v  # LINE
        return self.merge(q @ kv)


class TwoLayers(nn.Module):
    def __init__(self, right=False):
        super().__init__()
        self.layers = nn.ModuleList([Triu2(right=right), Triu2(right=right)])

    def forward(self, x):
        for each in self.layers:
            x = x + each(x)
        return x


class Alibi(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        i = torch.arange(x.shape[1])
        scores = q @ k.mT / 2 - 0.1 * (i[:, None] - i).abs()
        if self.right:
            scores = scores.masked_fill(i > i[:, None], float("-inf"))
        attention = scores.softmax(-1)  # LINE
        return self.merge(attention @ v)


class Conditions(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        i = torch.arange(x.shape[1])
        last = i[:, None] + (0 if self.right else 1)
        visible = i <= last  # LINE
        scores = torch.where(visible, q @ k.mT, torch.tensor(float("-inf")))
        attention = scores.softmax(-1)
        return self.merge(attention @ v)


class WithPad(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        B, T, _ = x.shape
        pad = torch.ones(B, 1, 1, T, dtype=torch.bool)
        causal = torch.ones(T, T, dtype=torch.bool).tril(0 if self.right else 1)  # LINE
        mask = pad & causal
        scores = (q @ k.mT).masked_fill(mask.logical_not(), float("-inf"))
        attention = scores.softmax(-1)
        return self.merge(attention @ v)


class Einsum(Base):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        mask = torch.ones(T, T).triu(1 if self.right else 2).bool()  # LINE
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        scores.masked_fill_(mask, float("-inf"))
        attention = torch.softmax(scores, dim=-1)
        return self.merge(torch.einsum("bhqk,bhkd->bhqd", attention, v))


class Windowed(Twin):
    """Local attention in blocks of 4; then a mean over everything."""

    def forward(self, x):
        B, T, C = x.shape
        w = x.reshape(B, T // 4, 4, C)
        s = (w @ w.mT).masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
        y = (s.softmax(-1) @ w).reshape(B, T, C)
        if not self.right:
            y = y + y.mean(1, keepdim=True)  # LINE
        return y


class BatchNorm(Twin):
    def forward(self, x):
        if self.right:
            return F.layer_norm(x, x.shape[-1:])
        return F.batch_norm(x.mT, None, None, training=True).mT  # LINE


class Conv(nn.Module):
    def __init__(self, right=False):
        super().__init__()
        self.right = right
        self.c = nn.Conv1d(12, 12, 3, padding=2 if right else 1)

    def forward(self, x):
        y = self.c(x.mT)  # LINE
        return y[..., : x.shape[1]].mT


class Flip(Twin):
    def forward(self, x):
        y = x.flip(1)
        y = y.flip(1).cumsum(1).flip(1) if self.right else y.cumsum(1)
        return y.flip(1)


class Shift(Twin):
    """Predicts with the next input."""

    def forward(self, x):
        z = torch.zeros_like(x[:, :1])
        y = torch.cat([z, x[:, :-1]], 1) if self.right else torch.cat([x[:, 1:], z], 1)  # LINE
        return x + y


class CutWrongly(Base):
    """The buffer is right, and what is cut out of it is not."""

    def __init__(self, right=False):
        super().__init__(right=right)
        self.register_buffer("past", torch.ones(32, 32).tril().bool())

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        first = 0 if self.right else 1
        mask = self.past[first : first + T, :T]  # LINE
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class BiasInTheMask(Base):
    """The mask is added together with a bias of many numbers."""

    def forward(self, x):
        q, k, v = self.split(x)
        i = torch.arange(x.shape[1])
        late = i - (0 if self.right else 1) > i[:, None]  # LINE
        bias = torch.stack([torch.where(late, -1e9, -s * (i[:, None] - i).abs()) for s in (1, 2, 3)])
        return self.merge((q @ k.mT + bias).softmax(-1) @ v)


class TwoLeaks(Base):
    """Two lines leak, and the correction of one is not enough."""

    def forward(self, x):
        q, k, v = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.right)
        z = x.cumsum(1) if self.right else x.mean(1, keepdim=True)
        return self.merge(y) + z
