"""Attention that knows how far apart query and key are: three ways to write it.

Buckets of distances as in T5; a learned table with one row for each of the n_Q + n_K - 1
distances; and the shifted product of queries and position embeddings, as in Transformer-XL.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class BucketedBiasAttention(nn.Module):
    """As in T5: no scale, no biases in the projections, distances in logarithmic buckets."""

    def __init__(self, d_model, n_heads, num_buckets=32, max_distance=128, bidirectional=True):
        super().__init__()
        self.n_heads = n_heads
        self.d_kv = d_model // n_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, n_heads)

    @staticmethod
    def _relative_position_bucket(relative_position, bidirectional, num_buckets, max_distance):
        relative_buckets = 0
        if bidirectional:
            num_buckets //= 2
            relative_buckets += (relative_position > 0).to(torch.long) * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        # now relative_position is in the range [0, inf)

        # half of the buckets are for exact increments in positions
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact

        # the other half are for logarithmically bigger bins in positions up to max_distance
        log_ratio = torch.log(relative_position.float() / max_exact) / math.log(max_distance / max_exact)
        relative_position_if_large = max_exact + (log_ratio * (num_buckets - max_exact)).to(torch.long)
        relative_position_if_large = torch.min(
            relative_position_if_large, torch.full_like(relative_position_if_large, num_buckets - 1)
        )

        relative_buckets += torch.where(is_small, relative_position, relative_position_if_large)
        return relative_buckets

    def compute_bias(self, query_length, key_length):
        device = self.relative_attention_bias.weight.device
        context_position = torch.arange(query_length, device=device)[:, None]
        memory_position = torch.arange(key_length, device=device)[None, :]
        relative_position = memory_position - context_position  # shape (query_length, key_length)
        bucket = self._relative_position_bucket(
            relative_position, self.bidirectional, self.num_buckets, self.max_distance
        )
        values = self.relative_attention_bias(bucket)  # shape (query_length, key_length, num_heads)
        return values.permute([2, 0, 1]).unsqueeze(0)  # shape (1, num_heads, query_length, key_length)

    def forward(self, hidden_states, key_value_states=None):
        batch_size = hidden_states.shape[0]

        def shape(states):
            return states.view(batch_size, -1, self.n_heads, self.d_kv).transpose(1, 2)

        def unshape(states):
            return states.transpose(1, 2).contiguous().view(batch_size, -1, self.n_heads * self.d_kv)

        source = hidden_states if key_value_states is None else key_value_states
        query_states = shape(self.q(hidden_states))
        key_states = shape(self.k(source))
        value_states = shape(self.v(source))

        scores = torch.matmul(query_states, key_states.transpose(3, 2))
        position_bias = self.compute_bias(query_states.shape[2], key_states.shape[2])
        scores += position_bias
        attn_weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        attn_output = unshape(torch.matmul(attn_weights, value_states))
        return self.o(attn_output)


class RelativeBiasAttention(nn.Module):
    """One learned number for each head and each distance that can occur."""

    def __init__(self, dim, num_heads, n_queries, n_keys):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, dim * 2)
        self.proj = nn.Linear(dim, dim)
        self.bias_table = nn.Parameter(torch.randn(n_queries + n_keys - 1, num_heads))
        index = torch.arange(n_queries)[:, None] - torch.arange(n_keys)[None, :] + n_keys - 1
        self.register_buffer("index", index)

    def forward(self, x, context):
        B, N, C = x.shape
        M = context.shape[1]
        q = self.q(x).reshape(B, N, self.num_heads, -1).transpose(1, 2)
        kv = self.kv(context).reshape(B, M, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]

        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.bias_table[self.index[:N, :M]].permute(2, 0, 1)
        attn = attn + bias.unsqueeze(0)
        attn = attn.softmax(dim=-1)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class ShiftedRelativeAttention(nn.Module):
    """As in Transformer-XL: time first, a memory before the segment, and the shift by a view."""

    def __init__(self, n_head, d_model, d_head):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.randn(n_head, d_head))
        self.scale = 1 / (d_head**0.5)

    def _rel_shift(self, x):
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        x = x_padded[1:].view_as(x)
        return x

    def forward(self, w, r, attn_mask=None, mems=None):
        qlen, rlen, bsz = w.size(0), r.size(0), w.size(1)

        cat = w if mems is None else torch.cat([mems, w], 0)
        w_heads = self.qkv_net(cat)
        r_head_k = self.r_net(r)
        w_head_q, w_head_k, w_head_v = torch.chunk(w_heads, 3, dim=-1)
        w_head_q = w_head_q[-qlen:]
        klen = w_head_k.size(0)

        w_head_q = w_head_q.view(qlen, bsz, self.n_head, self.d_head)  # qlen x bsz x n_head x d_head
        w_head_k = w_head_k.view(klen, bsz, self.n_head, self.d_head)  # klen x bsz x n_head x d_head
        w_head_v = w_head_v.view(klen, bsz, self.n_head, self.d_head)  # klen x bsz x n_head x d_head
        r_head_k = r_head_k.view(rlen, self.n_head, self.d_head)  # rlen x n_head x d_head

        # compute attention score
        rw_head_q = w_head_q + self.r_w_bias  # qlen x bsz x n_head x d_head
        AC = torch.einsum("ibnd,jbnd->ijbn", rw_head_q, w_head_k)  # qlen x klen x bsz x n_head

        rr_head_q = w_head_q + self.r_r_bias
        BD = torch.einsum("ibnd,jnd->ijbn", rr_head_q, r_head_k)  # qlen x klen x bsz x n_head
        BD = self._rel_shift(BD)

        # [qlen x klen x bsz x n_head]
        attn_score = AC + BD
        attn_score.mul_(self.scale)

        # compute attention probability
        if attn_mask is not None:
            attn_score = attn_score.float().masked_fill(attn_mask[:, :, None, None], -float("inf"))
        attn_prob = F.softmax(attn_score, dim=1)

        # compute attention vector
        attn_vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, w_head_v)

        # [qlen x bsz x n_head x d_head]
        attn_vec = attn_vec.contiguous().view(qlen, bsz, self.n_head * self.d_head)
        return self.o_net(attn_vec)
