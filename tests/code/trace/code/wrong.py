"""Attention with mistakes that people make: one mistake in each class, named by it.

Where the comment `# right:` stands, it says what was meant. None of them is an error to
Python at the sizes at which it goes unnoticed.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SoftmaxOverQueries(nn.Module):
    """The weights of each key sum to one, over the queries."""

    def forward(self, Q, K, V):
        scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.size(-1))
        attention = F.softmax(scores, dim=-2)  # right: dim=-1
        x = attention @ V
        return x


class MaskAfterSoftmax(nn.Module):
    """What is masked is taken out of the weights, which then sum to less than one."""

    def forward(self, Q, K, V, mask):
        scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.size(-1))
        attention = F.softmax(scores, dim=-1)
        attention = attention.masked_fill(mask == 0, 0.0)  # right: scores, -inf, before the softmax
        x = attention @ V
        return x


class MaskWithoutAxes(nn.Module):
    """A padding mask of n_batch × n_K meets scores of n_batch × n_head × n_Q × n_K.

    It is an error unless n_batch is 1 or n_Q; where it is n_Q, queries get the masks of samples.
    """

    def forward(self, Q, K, V, padding):
        scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.size(-1))
        mask = torch.zeros_like(padding, dtype=scores.dtype).masked_fill(padding, float("-inf"))
        scores = scores + mask  # right: mask[:, None, None, :]
        attention = F.softmax(scores, dim=-1)
        x = attention @ V
        return x


class ScaledByLength(nn.Module):
    """The root of the number of keys, where the root of their width was meant."""

    def forward(self, Q, K, V):
        n_k = K.size(-2)  # right: K.size(-1)
        scores = Q @ K.transpose(-2, -1) / math.sqrt(n_k)
        attention = F.softmax(scores, dim=-1)
        x = attention @ V
        return x


class ScaleMultiplied(nn.Module):
    """The scores are multiplied with the root, and so the softmax saturates."""

    def forward(self, Q, K, V):
        scores = Q @ K.transpose(-2, -1) * math.sqrt(Q.size(-1))  # right: /
        attention = F.softmax(scores, dim=-1)
        x = attention @ V
        return x


class ScaledByWidth(nn.Module):
    """Divided by the width and not by its root: the weights are nearly uniform."""

    def forward(self, Q, K, V):
        d_k = Q.size(-1)
        scores = Q @ K.transpose(-2, -1) / d_k  # right: math.sqrt(d_k)
        attention = F.softmax(scores, dim=-1)
        x = attention @ V
        return x


class FullyMaskedRow(nn.Module):
    """A causal mask that hides the diagonal too: the first query sees no key, and is NaN."""

    def forward(self, Q, K, V):
        n_Q, n_K = Q.size(-2), K.size(-2)
        scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.size(-1))
        hidden = torch.ones(n_Q, n_K, dtype=torch.bool, device=Q.device).triu()  # right: triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
        attention = F.softmax(scores, dim=-1)
        x = attention @ V
        return x


class HeadsNotTransposedBack(nn.Module):
    """Heads are merged by a view straight after the product: the shape is right, the meaning is not."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head, self.d_head = n_head, d_model // n_head
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x):
        n_batch, length, d_model = x.shape
        q = self.w_q(x).view(n_batch, length, self.n_head, self.d_head).transpose(1, 2)
        k = self.w_k(x).view(n_batch, length, self.n_head, self.d_head).transpose(1, 2)
        v = self.w_v(x).view(n_batch, length, self.n_head, self.d_head).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        attention = F.softmax(scores, dim=-1)
        heads = attention @ v
        merged = heads.view(n_batch, length, d_model)  # right: heads.transpose(1, 2).reshape(…)
        out = self.w_o(merged)
        return out


class SplitWithoutTranspose(nn.Module):
    """Heads are split by a view alone: each head gets some of the positions, whole."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head, self.d_head = n_head, d_model // n_head
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def split(self, x):
        n_batch, length, _ = x.shape
        return x.view(n_batch, self.n_head, length, self.d_head)  # right: view(…).transpose(1, 2)

    def forward(self, x):
        n_batch, length, d_model = x.shape
        q, k, v = self.split(self.w_q(x)), self.split(self.w_k(x)), self.split(self.w_v(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        attention = F.softmax(scores, dim=-1)
        heads = attention @ v
        merged = heads.transpose(1, 2).reshape(n_batch, length, d_model)
        out = self.w_o(merged)
        return out


class LogOfNegative(nn.Module):
    """A penalty of the logarithm of the distance, whose sign was forgotten: NaN for later keys."""

    def forward(self, Q, K, V):
        positions_q = torch.arange(Q.size(-2), device=Q.device)
        positions_k = torch.arange(K.size(-2), device=K.device)
        distance = (positions_q[:, None] - positions_k[None, :]).to(Q.dtype)  # right: .abs()
        penalty = torch.log(distance + 0.5)
        scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.size(-1)) - penalty
        attention = F.softmax(scores, dim=-1)
        x = attention @ V
        return x


class QueryAndKeySwapped(nn.Module):
    """Keys are compared with queries: with as many of both, the scores are merely transposed."""

    def forward(self, Q, K, V):
        scores = K @ Q.transpose(-2, -1) / math.sqrt(Q.size(-1))  # right: Q @ K.transpose(-2, -1)
        attention = F.softmax(scores, dim=-1)
        x = attention @ V
        return x


class HardCodedBatch(nn.Module):
    """The batch that it was tried with: another one is mixed across samples, where it divides."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head, self.d_head = n_head, d_model // n_head
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x):
        q = self.w_q(x).view(2, -1, self.n_head, self.d_head).transpose(1, 2)  # right: x.size(0)
        k = self.w_k(x).view(2, -1, self.n_head, self.d_head).transpose(1, 2)
        v = self.w_v(x).view(2, -1, self.n_head, self.d_head).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        attention = F.softmax(scores, dim=-1)
        heads = attention @ v
        merged = heads.transpose(1, 2).reshape(x.shape)
        out = self.w_o(merged)
        return out
