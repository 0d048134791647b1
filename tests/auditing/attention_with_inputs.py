"""Attention with masks, positions, a memory and other inputs: right, and the same with mistakes."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import nn


def attend(x, see, fill=float("-inf"), y=None):
    """Attention of x to y, or to itself, at the pairs `n_Q n_K` that see each other."""
    y = x if y is None else y
    return (x @ y.mT / x.shape[-1] ** 0.5).masked_fill(~see, fill).softmax(-1) @ y


def later(x, shift=0):
    """The pairs whose key is not later, or at most so much."""
    return torch.ones(x.shape[1], x.shape[1]).tril(shift).bool()


def hidden_keys(x, mask):
    return attend(x, later(x) & mask[:, None], -1e9)


def hidden_keys_leaky(x, mask):
    return attend(x, later(x, 1) & mask[:, None], -1e9)


def of_pairs(x, mask):
    return attend(x, mask)


def of_pairs_that_hide(x, hidden):
    return F.scaled_dot_product_attention(x, x, x, ~hidden)


def of_pairs_added(x, attn_bias):
    return F.scaled_dot_product_attention(x, x, x, attn_bias)


def of_pairs_leaky(x, mask):
    return attend(x, mask) + x.mean(1, keepdim=True)


def by_position(x, position_ids):
    return attend(x, position_ids[:, :, None] >= position_ids[:, None])


def by_position_leaky(x, position_ids):
    return attend(x, position_ids[:, :, None] >= position_ids[:, None] - 1)


def mask_ignored(x, mask):
    return attend(x, later(x))


def on_the_right_alone(x, mask):
    return attend(x, (torch.arange(x.shape[1]) < mask.sum(1, keepdim=True))[:, None], -1e9)


def by_length(x, lengths):
    return attend(x, (torch.arange(x.shape[1]) < lengths[:, None])[:, None])


def by_length_one_more(x, lengths):
    return attend(x, (torch.arange(x.shape[1]) <= lengths[:, None])[:, None])


def flags(x, is_bold):
    return attend(x + is_bold[..., None], later(x))


class Padded(nn.Module):
    """PyTorch's attention: True hides a key."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d, 2, batch_first=True)

    def forward(self, x, key_padding_mask):
        return self.attention(x, x, x, key_padding_mask=key_padding_mask)[0]


class TwoMasks(nn.Module):
    """PyTorch's encoder and decoder, each with a mask of its own."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.both = nn.Transformer(d, 2, 1, 1, 2 * d, 0.0, batch_first=True)

    def forward(self, src, tgt, src_pad, tgt_pad):
        return self.both(
            src, tgt, tgt_mask=~later(tgt), src_key_padding_mask=src_pad,
            tgt_key_padding_mask=tgt_pad, memory_key_padding_mask=src_pad,
        )  # fmt: skip


def decoder(x, memory, shift=0):
    return attend(attend(x, later(x, shift)), torch.tensor(True), y=memory)


def decoder_leaky(x, memory):
    return decoder(x, memory, 1)


def cross(x, memory):
    return attend(x, later(x), y=memory)


def cross_leaky(x, memory):
    return attend(x, later(x, 1), y=memory)


def with_indices(x, block_indices):
    return attend(x, later(x)) + 0 * block_indices.sum()


def last(x):
    return attend(x, later(x))[:, [-1]]


def pooled(x):
    return attend(x, later(x)).mean(1)


def strictly_before(x):
    return attend(x, later(x, -1), -1e9)


def in_place(x):
    x += 0.1
    return attend(x, later(x))


def in_place_leaky(x):
    x += 0.1
    return attend(x, later(x, 1))


def noisy(x):
    return attend(x, later(x)) * random.uniform(0.9, 1.1)


class Remembers(nn.Module):
    """Keeps the keys of the call before."""

    past = None

    def forward(self, x):
        keys = x if self.past is None else torch.cat([self.past, x], 1)
        self.past = keys
        return attend(x, torch.ones(x.shape[1], keys.shape[1]).bool(), y=keys)


def ends_the_process(x):
    raise SystemExit(0)


def weights_first(x, shift=0):
    weights = (x @ x.mT).masked_fill(~later(x), float("-inf")).softmax(-1)
    return weights, weights @ x + shift * x.mean(1, keepdim=True)


def weights_first_leaky(x):
    return weights_first(x, shift=1)


def scores_first(x):
    scores = x @ x.mT
    out = scores.masked_fill(~later(x), float("-inf")).softmax(-1) @ x
    return {"loss": out.square().mean(), "scores": scores, "out": out}


class ZeroGate(nn.Module):
    """A layer whose gate and output projection begin as zeros."""

    def __init__(self, d: int = 8, shift: int = 0) -> None:
        super().__init__()
        self.shift, self.gate, self.out = shift, nn.Parameter(torch.zeros(1)), nn.Linear(d, d)
        nn.init.zeros_(self.out.weight)

    def forward(self, x):
        return x + self.gate.tanh() * self.out(attend(x, later(x, self.shift)))


class Table(nn.Module):
    """A table in a plain attribute, which no cast reaches, and a faint leak from the mean."""

    def __init__(self, d: int = 8, shift: int = 0, faint: float = 0.0) -> None:
        super().__init__()
        self.shift, self.faint, self.out = shift, faint, nn.Linear(d, d)
        self.table = torch.linspace(0.5, 1.5, 32)[:, None]

    def forward(self, x):
        assert self.table.dtype == x.dtype, "another dtype"
        x = x * self.table[: x.shape[1]]
        return self.out(attend(x, later(x, self.shift))) + self.faint * x.mean(1, keepdim=True)


def sequence_first(x):
    return attend(x.transpose(0, 1), torch.tensor(True)).transpose(0, 1)


def by_depth(x, depth):
    return attend(x, later(x) & (depth[:, :, None] >= depth[:, None]))


class TwoLayers(nn.Module):
    """Two layers, of which some apply the mask; padding on the left sees no key."""

    def __init__(self, d: int = 8, fill: float = -1e9, masked: int = 2) -> None:
        super().__init__()
        self.layers, self.fill, self.masked = nn.ModuleList([nn.Linear(d, d)] * 2), fill, masked

    def forward(self, x, mask):
        for i, layer in enumerate(self.layers):
            see = later(x) & mask[:, None] if i < self.masked else later(x)
            x = x + attend(layer(x), see, self.fill)
        return x


class SequenceFirst(torch.nn.Module):
    """Attention of PyTorch with the positions first, whose queries do not see the next keys."""

    def __init__(self, d, n_hidden=12):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(d, 2)
        self.n_hidden = n_hidden

    def forward(self, x):
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1).tril(self.n_hidden)
        return self.attention(x, x, x, attn_mask=hidden)[0]


def rows_mixed_sequence_first(x):
    return torch.cumsum(x, 0) + x.mean(1, keepdim=True)


def window_of_three(x):
    return attend(x, later(x).triu(-2))


class OptionalMask(torch.nn.Module):
    """Attention with a mask that it works without."""

    def __init__(self, width):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x, key_padding_mask=None):
        return self.attention(x, x, x, key_padding_mask=key_padding_mask)[0]


class Words(torch.nn.Module):
    """Token ids, read from the left."""

    def __init__(self, d):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, d)

    def forward(self, ids):
        x = self.embedding(ids)
        return attend(x, later(x))


def mask_added(x, mask):
    return (x @ x.mT / x.shape[-1] ** 0.5 + mask[:, None]).softmax(-1) @ x


def mask_converted(x, mask):
    return mask_added(x, (1 - mask) * -1e9)


def mask_times_weights(x, mask):
    weights = (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1) * mask[:, None]
    return weights / weights.sum(-1, keepdim=True) @ x
