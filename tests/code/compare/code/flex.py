"""FlexAttention in functions and modules, with masks, biases and grouped heads."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def plain(Q, K, V):
    return flex_attention(Q, K, V)


def scaled(Q, K, V):
    return flex_attention(Q, K, V, scale=0.5)


def compiled(Q, K, V):
    return torch.compile(flex_attention)(Q, K, V)


def causal(Q, K, V, shift=0):
    def mask_mod(b, h, i, j):
        return j <= i + shift

    mask = create_block_mask(mask_mod, None, None, Q.shape[-2], K.shape[-2], device="cpu")
    return flex_attention(Q, K, V, block_mask=mask)


def shifted(Q, K, V):
    return causal(Q, K, V, shift=1)


def written_out(Q, K, V, slope=0.1):
    """Causal, with a bias for each head and distance."""
    i, j = torch.arange(Q.shape[-2])[:, None], torch.arange(K.shape[-2])
    bias = slope * (torch.arange(Q.shape[1])[:, None, None] + 1) * (j - i)
    scores = Q @ K.mT / Q.shape[-1] ** 0.5 + bias
    return scores.masked_fill(j > i, -torch.inf).softmax(-1) @ V


def biased(Q, K, V, slope=0.1):
    def score_mod(score, b, h, i, j):
        return torch.where(j <= i, score + slope * (h + 1) * (j - i), -torch.inf)

    return flex_attention(Q, K, V, score_mod=score_mod)


def steeper(Q, K, V):
    return biased(Q, K, V, slope=0.2)


def grouped(Q, K, V):
    return flex_attention(Q, K, V, enable_gqa=True)


def shared(Q, K, V):
    K, V = (each.repeat_interleave(Q.shape[1] // K.shape[1], 1) for each in (K, V))
    return (Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-1) @ V


class Module(nn.Module):
    """Its projections have gradients, which FlexAttention refuses on the CPU."""

    def __init__(self, width, shift=0):
        super().__init__()
        self.shift, self.qkv = shift, nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = (y[:, None] for y in self.qkv(x).chunk(3, -1))
        return causal(q, k, v, self.shift)[:, 0]
