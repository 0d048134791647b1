"""Latent attention: keys and values expanded from the latent, or their weights absorbed by the others."""

import torch
from torch import nn


class Expanded(nn.Module):
    def __init__(self, width, h, d_latent):
        super().__init__()
        self.h = h
        self.q, self.down = (
            nn.Linear(width, width, bias=False),
            nn.Linear(width, d_latent, bias=False),
        )
        self.up_k, self.up_v = (nn.Linear(d_latent, width, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)

    def split(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, x):
        q, latent = self.split(self.q(x)), self.down(x)
        k, v = self.split(self.up_k(latent)), self.split(self.up_v(latent))
        attention = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.o((attention @ v).transpose(1, 2).flatten(2))


class Absorbed(Expanded):
    def scale(self, q, absorbed):
        return q.shape[-1] ** -0.5

    def forward(self, x):
        q, latent = self.split(self.q(x)), self.down(x)
        up_k = self.up_k.weight.unflatten(0, (self.h, -1))
        up_v = self.up_v.weight.unflatten(0, (self.h, -1))
        absorbed = torch.einsum("bhnd,hdr->bhnr", q, up_k)
        scores = torch.einsum("bhnr,bmr->bhnm", absorbed, latent) * self.scale(q, absorbed)
        merged = torch.einsum("bhnm,bmr->bhnr", scores.softmax(-1), latent)
        return self.o(torch.einsum("bhnr,hdr->bhnd", merged, up_v).transpose(1, 2).flatten(2))


class ScaledByTheLatent(Absorbed):
    def scale(self, q, absorbed):
        return absorbed.shape[-1] ** -0.5
