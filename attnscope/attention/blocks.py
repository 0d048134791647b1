"""Attention in blocks of queries: the same formula, and never more than a few rows of its weights.

A query's weights depend on that query alone. So a few queries at a time are enough, with all the keys
that they can see; what becomes of their weights is up to who looks, and then the next block takes
their memory. What is kept grows with the length of a text, and not with its square.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch


@dataclass(frozen=True)
class Block:
    """Some queries, and the keys that at least one of them can see.

    Attributes:
        queries, keys: positions.
        attention: the weights, `n_batch n_head queries keys`. Its memory is the next block's.
        entropy: −Σ_j a_ij ln a_ij of each row, `n_batch n_head queries`, in nats.
        largest: max_j a_ij, the same.
        total: Σ_j a_ij, the same: 1, or less where a sink takes a part.
    """

    queries: range
    keys: range
    attention: torch.Tensor
    entropy: torch.Tensor
    largest: torch.Tensor
    total: torch.Tensor
    _sight: Callable[[], torch.Tensor]

    @property
    def visible(self) -> torch.Tensor:
        """Whether a query sees a key: `n_batch n_head queries keys`, or 1 where nothing differs."""
        return self._sight()


class BlockedAttention:
    """Attention from given queries, keys and values, a block at a time.

    Args:
        Q: queries, `n_batch n_head n_Q d_K`.
        K: keys, `n_batch n_kv_head n_K d_K`; a group of neighbouring query heads reads each.
        V: values, `n_batch n_kv_head n_K d_V`.
        mask: True where a query may attend, or added to the scores; broadcasts to `n_batch n_head n_Q
            n_K`.
        position_bias: added to the scores; broadcasts to the same.
        sinks: a score for each head, `n_head`, that takes part in the softmax and gets no value.
        causal: whether no query sees a key after it; queries and keys begin together.
        scale: what the dot products are multiplied with.
        softcap: the scores are soft-capped at this.

    Everything is computed in float32 at least.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1; that rows can be computed by
    themselves: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory"; what is shared by
    groups: Ainslie et al. 2023, "GQA", section 2.2.
    """

    def __init__(
        self,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        mask: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        *,
        causal: bool = False,
        scale: float,
        softcap: float | None = None,
    ) -> None:
        self.dtype = torch.promote_types(Q.dtype, torch.float32)
        self.Q = Q
        self.K, self.V = K.to(self.dtype).contiguous(), V.to(self.dtype).contiguous()
        self.mask, self.position_bias, self.sinks = _four_axes(mask), _four_axes(position_bias), sinks
        self.causal, self.scale, self.softcap = causal, scale, softcap
        self.n_batch, self.n_head, self.n_Q, _ = Q.shape
        _, self.n_kv_head, self.n_K, _ = K.shape

    @property
    def numbers_of_a_query(self) -> int:
        """How many numbers a block needs for each of its queries."""
        return 2 * self.n_batch * self.n_head * self.n_K

    def block(self, queries: range, memory: torch.Tensor) -> tuple[Block, torch.Tensor]:
        """Attend from some queries.

        Args:
            queries: their positions.
            memory: `numbers_of_a_query` for each of them, which are written over.

        Returns:
            The block; and what its queries collect, `n_batch n_head queries d_V`.
        """
        keys, hide = self._sees(queries)
        n_rows, n_keys = len(queries), len(keys)
        size = self.n_batch * self.n_head * n_rows * n_keys
        shape = (self.n_batch, self.n_head, n_rows, n_keys)
        # One product for a group of heads that share a key head: their queries stand below each other.
        Q = self.Q[:, :, queries.start : queries.stop].to(self.dtype) * self.scale
        Q = Q.reshape(self.n_batch * self.n_kv_head, -1, Q.shape[-1])  # [·, group·rows, d_K]
        K = self.K[:, :, keys.start : keys.stop].flatten(0, 1)  # [n_batch·n_kv_head, keys, d_K]
        V = self.V[:, :, keys.start : keys.stop].flatten(0, 1)  # [n_batch·n_kv_head, keys, d_V]

        memory = memory[: 2 * size].view(2, *shape)
        torch.bmm(Q, K.mT, out=memory[0].view(*Q.shape[:2], n_keys))
        scores = memory[0]
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.position_bias is not None:
            scores.add_(_part(self.position_bias, queries, keys))
        hide(scores)
        attention, entropy, largest, total = self._softmax(scores, out=memory[1])

        x_raw = torch.bmm(attention.view(*Q.shape[:2], n_keys), V)  # [·, group·rows, d_V]
        sight = partial(self._visible, queries, keys)
        block = Block(queries, keys, attention, entropy, largest, total, sight)
        return block, x_raw.view(self.n_batch, self.n_head, n_rows, -1)

    def _sees(self, queries: range) -> tuple[range, Callable[[torch.Tensor], object]]:
        """The keys that some of these queries see, and what takes the others out of their scores."""
        lowest = torch.finfo(self.dtype).min
        if self.mask is None and not self.causal:
            return range(self.n_K), lambda scores: None
        if self.mask is None:  # only among themselves can there be a later key
            keys = range(min(queries.stop, self.n_K))
            own = range(min(queries.start, keys.stop), keys.stop)
            later = ~self._visible(queries, own)
            return keys, lambda scores: scores[..., own.start :].masked_fill_(later, lowest)
        seen = self._visible(queries, range(self.n_K))
        of_some = seen.expand(*seen.shape[:3], self.n_K).flatten(0, 2).any(0).nonzero()
        keys = range(int(of_some[0]), int(of_some[-1]) + 1) if len(of_some) else range(self.n_K)
        part = _part(self.mask, queries, keys)
        if part.dtype == torch.bool:
            return keys, lambda scores: scores.masked_fill_(~part, lowest)
        return keys, lambda scores: scores.add_(part).clamp_(min=lowest)

    def _visible(self, queries: range, keys: range) -> torch.Tensor:
        """Who of these sees which: `n_batch n_head queries keys`, or 1 where nothing differs."""
        if self.mask is not None:
            seen = _part(self.mask, queries, keys)
            return seen if seen.dtype == torch.bool else seen > torch.finfo(seen.dtype).min / 2
        if not self.causal:
            return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.K.device)
        i = torch.arange(queries.start, queries.stop, dtype=torch.int32, device=self.K.device)
        j = torch.arange(keys.start, keys.stop, dtype=torch.int32, device=self.K.device)
        return (j <= i[:, None])[None, None]

    def _softmax(self, scores: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The weights, in `out`; of each row the entropy, the largest weight, and what all sum to.

        The scores are written over. With m the largest score and u_j = s_j − m, the weights are
        exp(u_j) / Z, the largest of them is 1 / Z, and the entropy −Σ_j a_j ln a_j is
        ln Z − Σ_j a_j u_j: no logarithm for each weight. A sink leaves the keys a share p of a row; then
        the entropy of p·a is p · (entropy of a) − p ln p.
        """
        m = scores.amax(dim=-1)
        attention = torch.softmax(scores, dim=-1, out=out)
        largest = attention.amax(dim=-1)
        entropy = -largest.log() - scores.sub_(m[..., None]).mul_(attention).sum(dim=-1)
        entropy.clamp_(min=0)  # rounding
        if self.sinks is None:
            return attention, entropy, largest, torch.ones_like(entropy)
        p = torch.sigmoid(m - largest.log() - self.sinks.flatten().to(m)[:, None])
        attention.mul_(p[..., None])
        return attention, p * entropy + torch.special.entr(p), p * largest, p


def of_weights(attention: torch.Tensor, queries: range | None = None) -> Block:
    """All rows of a map that somebody else computed, as one block.

    Which keys a query sees, its weights tell: one that no head gives any weight to, it does not see.

    Args:
        attention: `n_batch n_head n_Q n_K`.
        queries: the positions of the queries; None: from the first on.
    """
    n_Q, n_K = attention.shape[-2:]
    visible = (attention > 0).any(dim=1, keepdim=True)
    entropy, largest = torch.special.entr(attention).sum(dim=-1), attention.amax(dim=-1)
    total = attention.sum(dim=-1)
    return Block(queries or range(n_Q), range(n_K), attention, entropy, largest, total, lambda: visible)


def without_keys(block: Block, left_out: torch.Tensor, memory: torch.Tensor) -> Block:
    """A block as if some keys were not there: weights over the others, which sum to 1 in each row.

    The weights are changed where they are. A row that gives nothing to others, because it sees none or
    because all of its weight is the sink's, is 0 everywhere, and so is its `total`.

    Args:
        block: some queries, with the weights that they give to all keys that they see.
        left_out: True for keys that are left out, `n_batch n_K`.
        memory: as many numbers as the block has weights, which are written over.
    """
    attention, shape = block.attention, block.attention.shape
    hidden = left_out[:, None, None, block.keys.start : block.keys.stop]
    p = attention.masked_fill_(hidden, 0).sum(dim=-1)
    attention.div_(torch.where(p > 0, p, 1)[..., None])
    entropies = torch.special.entr(attention, out=memory[: attention.numel()].view(shape))
    return replace(
        block,
        entropy=entropies.sum(dim=-1),
        largest=attention.amax(dim=-1),
        total=(p > 0).to(attention.dtype),
        _sight=lambda: block.visible & ~hidden,
    )


def _four_axes(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """A tensor with leading axes of size 1, as broadcasting adds them."""
    return tensor if tensor is None else tensor[(None,) * (4 - tensor.dim())]


def _part(tensor: torch.Tensor, queries: range, keys: range) -> torch.Tensor:
    """The part of what broadcasts to `n_batch n_head n_Q n_K` that belongs to a block."""
    if tensor.shape[-2] != 1:
        tensor = tensor[:, :, queries.start : queries.stop]
    if tensor.shape[-1] != 1:
        tensor = tensor[..., keys.start : keys.stop]
    return tensor
