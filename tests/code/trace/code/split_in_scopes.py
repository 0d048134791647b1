"""Projections that a generator, a lambda, a comprehension or an inner function splits into heads."""

from dataclasses import dataclass

from torch import nn


@dataclass
class Config:
    d_model: int = 48
    n_head: int = 4


class _SelfAttention(nn.Module):
    def __init__(self, d_model=48, n_head=4):
        super().__init__()
        self.cfg = Config(d_model, n_head)
        self.proj = nn.Linear(d_model, 3 * d_model)

    def attend(self, q, k, v):
        weights = (q @ k.transpose(-2, -1) / k.size(-1) ** 0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class InAGenerator(_SelfAttention):
    def forward(self, x):
        B, T, _ = x.shape
        qkv = self.proj(x).split(self.cfg.d_model, dim=-1)
        q, k, v = (t.view(B, T, self.cfg.n_head, -1).transpose(1, 2) for t in qkv)
        return self.attend(q, k, v)


class InALambda(_SelfAttention):
    def forward(self, x):
        B, T, _ = x.shape
        split = lambda t: t.view(B, T, self.cfg.n_head, -1).transpose(1, 2)  # noqa: E731
        q, k, v = map(split, self.proj(x).split(self.cfg.d_model, dim=-1))
        return self.attend(q, k, v)


class InAComprehension(_SelfAttention):
    def forward(self, x):
        B, T, _ = x.shape
        qkv = self.proj(x).split(self.cfg.d_model, dim=-1)
        q, k, v = [t.view(B, T, self.cfg.n_head, -1).transpose(1, 2) for t in qkv]
        return self.attend(q, k, v)


class InAFunction(_SelfAttention):
    def forward(self, x):
        B, T, _ = x.shape

        def split(t):
            return t.view(B, T, self.cfg.n_head, -1).transpose(1, 2)

        q, k, v = map(split, self.proj(x).split(self.cfg.d_model, dim=-1))
        return self.attend(q, k, v)
