"""Latent attention as DeepSeek-V2 publishes it, and with the keys' projection absorbed into the queries.

Both are scaled by 1/√(d_nope + d_rope), the width of the product before it was reassociated.
"""

import torch
from torch import nn


class Latent(nn.Module):
    def __init__(self, d_model=40, n_head=3, d_nope=6, d_rope=4, d_latent=14, d_v=5, width=None):
        super().__init__()
        self.n_head, self.d_nope, self.d_rope = n_head, d_nope, d_rope
        self.scale = (width or d_nope + d_rope) ** -0.5
        self.W_Q = nn.Linear(d_model, n_head * (d_nope + d_rope), bias=False)
        self.W_latent = nn.Linear(d_model, d_latent + d_rope, bias=False)
        self.norm = nn.LayerNorm(d_latent)
        self.W_KV = nn.Linear(d_latent, n_head * (d_nope + d_v), bias=False)
        self.W_O = nn.Linear(n_head * d_v, d_model, bias=False)
        self.d_latent = d_latent

    def parts(self, x):
        b, n, _ = x.shape
        q = self.W_Q(x).view(b, n, self.n_head, -1)
        q_nope, q_rope = q.split([self.d_nope, self.d_rope], -1)
        latent, k_rope = self.W_latent(x).split([self.d_latent, self.d_rope], -1)
        turn = torch.arange(n).outer(torch.ones(self.d_rope)).cos()
        return q_nope, q_rope * turn[:, None], self.norm(latent), k_rope * turn

    def matrices(self):
        """W_UK and W_UV of each head."""
        both = self.W_KV.weight.view(self.n_head, -1, self.d_latent)
        return both[:, : self.d_nope], both[:, self.d_nope :]

    def out(self, x):
        return self.W_O(x.flatten(2))


class Expanded(Latent):
    def forward(self, x):
        b, n, _ = x.shape
        q_nope, q_rope, latent, k_rope = self.parts(x)
        kv = self.W_KV(latent).view(b, n, self.n_head, -1)
        k_nope, v = kv[..., : self.d_nope], kv[..., self.d_nope :]
        q = torch.cat([q_nope, q_rope], -1).transpose(1, 2)
        k = torch.cat([k_nope, k_rope[:, :, None].expand(-1, -1, self.n_head, -1)], -1).transpose(1, 2)
        attention = (q @ k.mT * self.scale).softmax(-1)
        return self.out((attention @ v.transpose(1, 2)).transpose(1, 2))


class Absorbed(Latent):
    """Scores as a sum of two products."""

    def forward(self, x):
        q_nope, q_rope, latent, k_rope = self.parts(x)
        W_UK, W_UV = self.matrices()
        q_latent = torch.einsum("bnhd,hdc->bnhc", q_nope, W_UK)
        scores = torch.einsum("bnhc,bmc->bhnm", q_latent, latent)
        scores = scores + torch.einsum("bnhr,bmr->bhnm", q_rope, k_rope)
        attention = (scores * self.scale).softmax(-1)
        x = torch.einsum("bhnm,bmc->bnhc", attention, latent)
        return self.out(torch.einsum("bnhc,hvc->bnhv", x, W_UV))


class Joined(Latent):
    """One product, of queries and keys as wide as latent and positions together."""

    def forward(self, x):
        q_nope, q_rope, latent, k_rope = self.parts(x)
        W_UK, W_UV = self.matrices()
        q_latent = (q_nope.transpose(1, 2) @ W_UK).transpose(1, 2)
        q = torch.cat([q_latent, q_rope], -1).transpose(1, 2)
        k = torch.cat([latent, k_rope], -1)[:, None]
        attention = (q @ k.mT * self.scale).softmax(-1)
        x = (attention @ latent[:, None]) @ W_UV.mT
        return self.out(x.transpose(1, 2))


class Filled(Joined):
    """Queries that are written into a tensor, part by part."""

    def forward(self, x):
        q_nope, q_rope, latent, k_rope = self.parts(x)
        W_UK, W_UV = self.matrices()
        b, n, _ = x.shape
        q = x.new_zeros(b, self.n_head, n, self.d_latent + self.d_rope)
        q[..., : self.d_latent] = q_nope.transpose(1, 2) @ W_UK
        q[..., self.d_latent :] = q_rope.transpose(1, 2)
        k = torch.cat([latent, k_rope], -1)[:, None]
        attention = (q @ k.mT * self.scale).softmax(-1)
        x = (attention @ latent[:, None]) @ W_UV.mT
        return self.out(x.transpose(1, 2))


class Fused(Joined):
    """The fused kernel, with a scale."""

    def forward(self, x):
        q_nope, q_rope, latent, k_rope = self.parts(x)
        W_UK, W_UV = self.matrices()
        q = torch.cat([q_nope.transpose(1, 2) @ W_UK, q_rope.transpose(1, 2)], -1)
        k = torch.cat([latent, k_rope], -1)[:, None].expand(-1, self.n_head, -1, -1)
        v = latent[:, None].expand(-1, self.n_head, -1, -1)
        x = nn.functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.out((x @ W_UV.mT).transpose(1, 2))


class Premultiplied(Latent):
    """W_Q and W_UK are one matrix, which forward computes."""

    def forward(self, x):
        _, q_rope, latent, k_rope = self.parts(x)
        W_UK, W_UV = self.matrices()
        W_Q = self.W_Q.weight.view(self.n_head, -1, x.shape[-1])[:, : self.d_nope]
        q_latent = x[:, None] @ (W_Q.mT @ W_UK)
        q = torch.cat([q_latent, q_rope.transpose(1, 2)], -1)
        k = torch.cat([latent, k_rope], -1)[:, None]
        attention = (q @ k.mT * self.scale).softmax(-1)
        x = (attention @ latent[:, None]) @ W_UV.mT
        return self.out(x.transpose(1, 2))


class PerHead(nn.Module):
    """Each head has a matrix of its own, and the scale is that of all heads together: the usual slip."""

    def __init__(self, d_model=40, n_head=3, d_head=6, slip=True):
        super().__init__()
        self.scale = (d_model if slip else d_head) ** -0.5
        self.W_Q = nn.Parameter(torch.randn(n_head, d_model, d_head))
        self.W_K = nn.Parameter(torch.randn(n_head, d_model, d_head))

    def forward(self, x):
        q, k = x[:, None] @ self.W_Q, x[:, None] @ self.W_K
        return (q @ k.mT * self.scale).softmax(-1) @ x[:, None]
