"""Modules whose sizes are not free: what they require, and what only helps to name axes."""

import torch
from torch import nn


class Spatial(nn.Module):
    """GroupNorm with 32 groups, then attention over the pixels."""

    def __init__(self, channels, n_head, d_head):
        super().__init__()
        self.n_head, self.d_head = n_head, d_head
        self.norm = nn.GroupNorm(32, channels)
        self.qkv = nn.Conv2d(channels, 3 * n_head * d_head, 1)
        self.out = nn.Conv2d(n_head * d_head, channels, 1)

    def forward(self, x):
        b, _, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.n_head, self.d_head, h * w).unbind(1)
        p = (q.mT @ k / self.d_head**0.5).softmax(-1)
        y = (v @ p.mT).reshape(b, -1, h, w)
        return x + self.out(y)


class Positions(nn.Module):
    """Sines in even channels, cosines in odd ones: the width is even."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.to_q, self.to_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        table = torch.zeros(100, d_model)
        angle = torch.arange(100)[:, None] * torch.exp(torch.arange(0, d_model, 2) * -0.1)
        table[:, 0::2] = angle.sin()
        table[:, 1::2] = angle.cos()
        self.register_buffer("table", table)

    def forward(self, x):
        b, n, _ = x.shape
        x = x + self.table[:n]
        q = self.to_q(x).view(b, n, self.n_head, -1).transpose(1, 2)
        k = self.to_k(x).view(b, n, self.n_head, -1).transpose(1, 2)
        p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return p


class Latent(nn.Module):
    """One projection to two widths, one of which is given by a literal table."""

    def __init__(self, dim, d_latent, d_rot):
        super().__init__()
        self.sizes = [d_latent, d_rot]
        self.to_q = nn.Linear(dim, d_rot)
        self.down = nn.Linear(dim, d_latent + d_rot)

    def forward(self, x, table):
        q = self.to_q(x).unflatten(-1, (-1, 2)) * table[:, :, None]
        kv = self.down(x)
        latent, rot = kv.split(self.sizes, dim=-1)
        rot = rot.unflatten(-1, (-1, 2)) * table[:, :, None]
        return q, latent, rot


class Squares(nn.Module):
    """The tokens are the pixels of a square."""

    def __init__(self, dim, n_head):
        super().__init__()
        self.n_head = n_head
        self.conv = nn.Conv2d(dim, dim, 3, padding=1)
        self.q = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        side = int(n**0.5)
        y = self.conv(x.mT.reshape(b, c, side, side)).flatten(2).mT
        q = self.q(y).view(b, n, self.n_head, c // self.n_head).transpose(1, 2)
        p = (q @ q.mT / q.size(-1) ** 0.5).softmax(-1)
        return p


class Spectrum(nn.Module):
    """Products in the spectrum of the sequence: n/2+1 frequencies."""

    def forward(self, q, k):
        n = q.shape[-1]
        q_f = torch.fft.rfft(q)
        k_f = torch.fft.rfft(k)
        c = torch.fft.irfft(q_f * k_f.conj(), n=n)
        return c.softmax(-1)


class Unequal(nn.Module):
    """LeViT: values are wider than keys by a factor."""

    def __init__(self, dim, d_key, n_head, ratio):
        super().__init__()
        self.n_head, self.d_key, self.d_value = n_head, d_key, ratio * d_key
        self.qkv = nn.Linear(dim, n_head * (2 * d_key + ratio * d_key))

    def forward(self, x):
        b, n, _ = x.shape
        qkv = self.qkv(x)
        q, k, v = qkv.view(b, n, self.n_head, -1).split([self.d_key, self.d_key, self.d_value], dim=3)
        p = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * self.d_key**-0.5).softmax(-1)
        return p @ v.transpose(1, 2)


class Explicit(nn.Module):
    """The width of a head is an argument, although it is the width over the heads here."""

    def __init__(self, dim, heads, dim_head):
        super().__init__()
        assert dim % heads == 0, "dim must be a multiple of heads"
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * heads * dim_head)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return p @ v


class Windows(nn.Module):
    """Each window sees the one before it."""

    def __init__(self, window):
        super().__init__()
        self.window = window

    def forward(self, q, k):
        b, n, d = q.shape
        if n % self.window:
            raise ValueError("the length must be a multiple of the window")
        q = q.view(b, n // self.window, self.window, d)
        k = k.view(b, n // self.window, self.window, d)
        padded = torch.cat([torch.zeros_like(k[:, :1]), k], dim=1)
        k = torch.cat([padded[:, :-1], padded[:, 1:]], dim=2)
        p = (q @ k.mT / d**0.5).softmax(-1)
        return p


class Class(nn.Module):
    """A class token and the pixels of an image whose sides are numbers (CvT)."""

    def __init__(self, dim_in, dim_out, n_head):
        super().__init__()
        self.n_head = n_head
        self.conv = nn.Conv2d(dim_in, dim_in, 3, stride=2, padding=1)
        self.to_q, self.to_k = nn.Linear(dim_in, dim_out), nn.Linear(dim_in, dim_out)

    def forward(self, x, h, w):
        cls, x = torch.split(x, [1, h * w], 1)
        k = self.conv(x.mT.unflatten(2, (h, w))).flatten(2).mT
        q, k = torch.cat([cls, x], 1), torch.cat([cls, k], 1)
        q = self.to_q(q).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        k = self.to_k(k).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return p


class Merge(nn.Module):
    """Heads are split off the width and folded into the batch by one view."""

    def __init__(self, width, n_head):
        super().__init__()
        self.n_head, self.d_head = n_head, width // n_head
        self.v = nn.Linear(width, width)

    def forward(self, v):
        b = v.shape[1]
        return self.v(v).view(-1, b * self.n_head, self.d_head).transpose(0, 1)


class Grouped(nn.Module):
    """Groups of heads, whose number is rounded down wherever it is used."""

    def __init__(self, width, n_head, n_kv_head, d_head):
        super().__init__()
        self.n_kv_head, self.d_head = n_kv_head, d_head
        self.q = nn.Linear(width, n_head // n_kv_head * n_kv_head * d_head)
        self.k = nn.Linear(width, n_kv_head * d_head)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.n_kv_head, -1, self.d_head).permute(0, 2, 3, 1, 4)
        k = self.k(x).view(b, n, self.n_kv_head, self.d_head).transpose(1, 2)
        return torch.einsum("bkgnd,bkmd->bkgnm", q, k / self.d_head**0.5).softmax(-1)


class Slopes(nn.Module):
    """Slopes for a number of heads that is a power of two."""

    def __init__(self, n_head):
        super().__init__()
        if n_head & (n_head - 1):
            raise ValueError("the number of heads must be a power of two")
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, n_head + 1))

    def forward(self, scores):
        n = scores.shape[-1]
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        return (scores + distance * self.slopes[:, None, None]).softmax(-1)


class Distances(nn.Module):
    """A vector for each distance between two positions."""

    def forward(self, q, table):
        n = q.shape[-2]
        index = torch.arange(n)[None, :] - torch.arange(n)[:, None] + n - 1
        if table.shape[0] != 2 * n - 1:
            raise ValueError("a row for each distance, please")
        return torch.einsum("bid,ijd->bij", q, table[index])


class Doubled(nn.Module):
    """A table with at least twice as many rows as there are positions."""

    def forward(self, x, table):
        n = x.shape[1]
        assert table.shape[0] >= 2 * n
        return x + table[n : 2 * n]


class Buckets(nn.Module):
    """Attention within buckets, of which there is an even number."""

    def __init__(self, n_head, bucket):
        super().__init__()
        self.n_head, self.bucket = n_head, bucket

    def forward(self, x):
        b, t, d = x.shape
        assert t % (2 * self.bucket) == 0, "the number of buckets must be even"
        q = x.view(b, t, self.n_head, d // self.n_head).transpose(1, 2)
        half = q.new_ones(b, self.n_head, t, t // self.bucket // 2)
        q = q.unflatten(2, (t // self.bucket, -1))
        return half, (q @ q.mT / q.shape[-1] ** 0.5).softmax(-1)


class Interleaved(nn.Module):
    """Queries, keys and values of a head are next to each other in one width."""

    def __init__(self, n_head):
        super().__init__()
        self.n_head = n_head

    def forward(self, qkv):
        b, width, t = qkv.shape
        assert width % (3 * self.n_head) == 0
        d_head = width // (3 * self.n_head)
        q, k, v = qkv.reshape(b * self.n_head, d_head * 3, t).split(d_head, dim=1)
        attention = (q.mT @ k / d_head**0.5).softmax(-1)
        return v @ attention.mT


class Biased(nn.Module):
    """Groups of heads, each head with a bias of its own."""

    def __init__(self, width, n_head, n_kv_head):
        super().__init__()
        assert width % n_head == 0
        assert n_head % n_kv_head == 0
        self.d_head, self.n_group = width // n_head, n_head // n_kv_head
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, n_kv_head * self.d_head)

    def forward(self, x, bias):
        q = self.q(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2).repeat_interleave(self.n_group, 1)
        return (q @ k.mT / self.d_head**0.5 + bias).softmax(-1)
