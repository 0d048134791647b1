"""Attention that is linear in the length: a softmax of queries and one of keys, none of scores."""

import torch
from torch import nn


class LinearAttention(nn.Module):
    """Efficient attention (Shen et al. 2018): keys over positions, queries over features, then a scale."""

    def __init__(self, dim=48, n_head=4):
        super().__init__()
        self.n_head, self.dim_head = n_head, dim // n_head
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, dim = x.shape
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(b, n, self.n_head, self.dim_head).transpose(1, 2) for t in qkv)
        q = q.softmax(-1) * self.dim_head**-0.5
        k = k.softmax(dim=-2)
        context = torch.einsum("bhnd,bhne->bhde", k, v)
        heads = torch.einsum("bhnd,bhde->bnhe", q, context)
        return self.to_out(heads.reshape(b, n, dim))


class SeparateProjections(nn.Module):
    """The same with three projections, whose outputs enter the softmax as they are."""

    def __init__(self, dim=48, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x):
        b, n, dim = x.shape
        q = self.to_q(x).view(b, n, self.n_head, -1).transpose(1, 2)
        k = self.to_k(x).view(b, n, self.n_head, -1).transpose(1, 2)
        v = self.to_v(x).view(b, n, self.n_head, -1).transpose(1, 2)
        q = q.softmax(-1) * dim**-0.5
        k = k.softmax(-1)
        context = k.transpose(-2, -1) @ v
        return (q @ context).transpose(1, 2).reshape(b, n, dim)
