"""Rotary positions with other frequencies, magnitudes and features: transformers' own, and planted ones."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

KINDS = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 16.0, "original_max_position_embeddings": 128, "attention_factor": 1.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 2048,
    },
}  # fmt: skip
"""The frequencies that transformers computes, and their parameters."""


def usual(width, base=10000.0):
    return base ** -(torch.arange(0, width, 2).double() / width)


def rotated(x, speeds, size=1.0, pairs="halves"):
    """Rotate `… n d`, and multiply cosines and sines by a size."""
    angle = torch.arange(x.shape[-2]).to(x)[:, None] * speeds.to(x)
    cos, sin = angle.cos() * size, angle.sin() * size
    if pairs == "halves":
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)


class Usual(nn.Module):
    """The usual frequencies, of all features."""

    def __init__(self, width=96, h=3, d_V=10):
        super().__init__()
        self.h = h
        self.q, self.k, self.v = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, h * d_V),
        )
        self.o = nn.Linear(h * d_V, width)

    def rows(self, linear, x):
        return linear(x)

    def rotated(self, x):
        return rotated(x, usual(x.shape[-1]))

    def split(self, y):
        return y.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, x):
        q, k = (self.rotated(self.split(self.rows(each, x))) for each in (self.q, self.k))
        v = self.split(self.v(x))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class ComplexNumbers(Usual):
    """The same by complex numbers, with frequencies in float64."""

    def rotated(self, x):
        angle = torch.arange(x.shape[-2])[:, None] * usual(x.shape[-1])
        first, second = x.double().chunk(2, -1)
        turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


def speeds_of_transformers(kind, width, n_head=3):
    """Return the frequencies that transformers computes, and the magnitude."""
    config = LlamaConfig(
        hidden_size=width * n_head,
        num_attention_heads=n_head,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0} | KINDS[kind],
    )
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu")


class OfTransformers(Usual):
    kind = "linear"

    def rotated(self, x):
        return rotated(x, *speeds_of_transformers(self.kind, x.shape[-1], self.h))


class Linear(OfTransformers):
    kind = "linear"


class Yarn(OfTransformers):
    kind = "yarn"


class Llama3(OfTransformers):
    kind = "llama3"


class Ntk(Usual):
    def rotated(self, x):
        width = x.shape[-1]
        return rotated(x, usual(width, 10000.0 * 4 ** (width / (width - 2))))


class Magnitude(Usual):
    size = 1.2772588722239782  # 0.1·ln 16 + 1

    def rotated(self, x):
        return rotated(x, usual(x.shape[-1]), self.size)


class First(Usual):
    """The first features of each head alone."""

    size = 1.0

    def rotated(self, x):
        return torch.cat([rotated(x[..., :8], usual(8), self.size), x[..., 8:]], -1)


class FirstWithMagnitude(First):
    size = Magnitude.size


class Last(Usual):
    def rotated(self, x):
        return torch.cat([x[..., :-8], rotated(x[..., -8:], usual(8))], -1)


class Permuted(Usual):
    """W_Q and W_K with rows for pairs side by side."""

    def rows(self, linear, x):
        weight, bias = (
            each.unflatten(0, (self.h, 2, -1)).transpose(1, 2).flatten(0, 2)
            for each in (linear.weight, linear.bias)
        )
        return F.linear(x, weight, bias)


class PermutedAndRotatedSo(Permuted):
    def rotated(self, x):
        return rotated(x, usual(x.shape[-1]), pairs="neighbours")


class Latent(nn.Module):
    """DeepSeek-AI 2024, "DeepSeek-V2": the last features of each head are rotated, those of keys shared."""

    def __init__(self, width=40, h=3, d_nope=10, d_rope=6, d_V=8, d_latent=14):
        super().__init__()
        self.h, self.d_nope, self.d_rope, self.d_V, self.d_latent = h, d_nope, d_rope, d_V, d_latent
        self.q = nn.Linear(width, h * (d_nope + d_rope), bias=False)
        self.down = nn.Linear(width, d_latent + d_rope, bias=False)
        self.up = nn.Linear(d_latent, h * (d_nope + d_V), bias=False)
        self.norm, self.o = nn.RMSNorm(d_latent), nn.Linear(h * d_V, width, bias=False)

    def rotated_query(self, x):
        return rotated(x, usual(x.shape[-1]))

    def rotated_key(self, x):
        return self.rotated_query(x)

    def joined(self, plain, positions, rotate):
        return torch.cat([plain, rotate(positions)], -1)

    def split(self, y):
        return y.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, x):
        latent, k_rope = self.down(x).split([self.d_latent, self.d_rope], -1)
        q_nope, q_rope = self.split(self.q(x)).split([self.d_nope, self.d_rope], -1)
        k_nope, v = self.split(self.up(self.norm(latent))).split([self.d_nope, self.d_V], -1)
        q = self.joined(q_nope, q_rope, self.rotated_query)
        k = self.joined(k_nope, k_rope[:, None].expand(-1, self.h, -1, -1), self.rotated_key)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class LatentInTwoProducts(Latent):
    """The same scores as a sum of two products."""

    def forward(self, x):
        latent, k_rope = self.down(x).split([self.d_latent, self.d_rope], -1)
        q = self.q(x).unflatten(-1, (self.h, -1))
        kv = self.up(self.norm(latent)).unflatten(-1, (self.h, -1))
        q_rope = self.rotated_query(q[..., self.d_nope :].transpose(1, 2))
        scores = torch.einsum("bihd,bjhd->bhij", q[..., : self.d_nope], kv[..., : self.d_nope])
        scores = scores + torch.einsum("bhid,bjd->bhij", q_rope, self.rotated_key(k_rope))
        weights = (scores / (self.d_nope + self.d_rope) ** 0.5).softmax(-1)
        return self.o(torch.einsum("bhij,bjhd->bihd", weights, kv[..., self.d_nope :]).flatten(2))


class LatentOfNeighbours(Latent):
    def rotated_query(self, x):
        return rotated(x, usual(x.shape[-1]), pairs="neighbours")


class LatentKeysOfNeighbours(Latent):
    def rotated_key(self, x):
        return rotated(x, usual(x.shape[-1]), pairs="neighbours")


class LatentKeysNotRotated(Latent):
    def rotated_key(self, x):
        return x


class LatentFirst(Latent):
    """The first features are rotated, which have no positions."""

    def joined(self, plain, positions, rotate):
        n = positions.shape[-1]
        return torch.cat([rotate(plain[..., :n]), plain[..., n:], positions], -1)
