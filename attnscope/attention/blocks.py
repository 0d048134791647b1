"""Attention in blocks of queries: the same formula, with only a few rows of weights in memory.

The weights of a query do not depend on other queries. So a block holds a few queries and all the keys
that they can see; the caller collects what it needs from the block's weights, and the next block reuses
their memory. Memory grows linearly with the length of a text, not quadratically.
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
        attention: the weights, `n_batch n_head queries keys`. The next block reuses this memory.
        entropy: −Σ_j a_ij ln a_ij of each row, `n_batch n_head queries`, in nats.
        largest: max_j a_ij, same shape.
        total: Σ_j a_ij, same shape: 1, or less where a sink takes a share.
    """

    queries: range
    keys: range
    attention: torch.Tensor
    entropy: torch.Tensor
    largest: torch.Tensor
    total: torch.Tensor
    _visibility: Callable[[], torch.Tensor]

    @property
    def visible(self) -> torch.Tensor:
        """True where a query sees a key: broadcasts to `n_batch n_head queries keys`."""
        return self._visibility()


class BlockedAttention:
    """Attention over queries, keys and values, computed block by block.

    Args:
        Q: queries, `n_batch n_head n_Q d_K`.
        K: keys, `n_batch n_kv_head n_K d_K`; a group of adjacent query heads shares each.
        V: values, `n_batch n_kv_head n_K d_V`.
        mask: True where a query may attend, or added to the scores; broadcasts to `n_batch n_head n_Q
            n_K`.
        position_bias: added to the scores; broadcasts to the same shape.
        sinks: one score per head, `n_head`, or per query, `n_batch n_head n_Q 1`, that takes part in the
            softmax and has no value.
        causal: hide keys after the query; the first query and the first key have the same position.
        scale: the factor of the dot products.
        softcap: the bound for soft-capping the scores.

    Everything is computed in float32 at least.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1; independent rows:
    Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory"; heads shared by
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
        """The number of elements of memory that a block needs per query."""
        return 2 * self.n_batch * self.n_head * self.n_K

    def block(self, queries: range, memory: torch.Tensor) -> tuple[Block, torch.Tensor]:
        """Compute attention for a range of queries.

        Args:
            queries: their positions.
            memory: `numbers_of_a_query` elements for each of them; overwritten.

        Returns:
            The block, and the output of attention for its queries, `n_batch n_head queries d_V`.
        """
        keys, hide = self._visible_keys(queries)
        n_rows, n_keys = len(queries), len(keys)
        size = self.n_batch * self.n_head * n_rows * n_keys
        shape = (self.n_batch, self.n_head, n_rows, n_keys)
        # One product for the query heads that share a key head: their queries are stacked as rows.
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
        attention, entropy, largest, total = self._softmax(scores, queries, out=memory[1])

        x_raw = torch.bmm(attention.view(*Q.shape[:2], n_keys), V)  # [·, group·rows, d_V]
        visibility = partial(self._visible, queries, keys)
        block = Block(queries, keys, attention, entropy, largest, total, visibility)
        return block, x_raw.view(self.n_batch, self.n_head, n_rows, -1)

    def _visible_keys(self, queries: range) -> tuple[range, Callable[[torch.Tensor], object]]:
        """Return the keys that any of these queries sees, and a function that masks their scores."""
        lowest = torch.finfo(self.dtype).min
        if self.mask is None and not self.causal:
            return range(self.n_K), lambda scores: None
        if self.mask is None:  # every key before the block is visible to all of its queries
            keys = range(min(queries.stop, self.n_K))
            diagonal = range(min(queries.start, keys.stop), keys.stop)
            later = ~self._visible(queries, diagonal)
            return keys, lambda scores: scores[..., diagonal.start :].masked_fill_(later, lowest)
        visible = self._visible(queries, range(self.n_K))
        indices = visible.expand(*visible.shape[:3], self.n_K).flatten(0, 2).any(0).nonzero()
        keys = range(int(indices[0]), int(indices[-1]) + 1) if len(indices) else range(self.n_K)
        part = _part(self.mask, queries, keys)
        if part.dtype == torch.bool:
            return keys, lambda scores: scores.masked_fill_(~part, lowest)
        return keys, lambda scores: scores.add_(part).clamp_(min=lowest)

    def _visible(self, queries: range, keys: range) -> torch.Tensor:
        """Return True where a query sees a key: broadcasts to `n_batch n_head queries keys`."""
        if self.mask is not None:
            mask = _part(self.mask, queries, keys)
            # a hidden key has the lowest number of the dtype; −10,000 may be a bias
            return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        if not self.causal:
            return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.K.device)
        i = torch.arange(queries.start, queries.stop, dtype=torch.int32, device=self.K.device)
        j = torch.arange(keys.start, keys.stop, dtype=torch.int32, device=self.K.device)
        return (j <= i[:, None])[None, None]

    def _softmax(
        self, scores: torch.Tensor, queries: range, out: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Compute the weights into `out`; return them and each row's entropy, largest weight and sum.

        The scores are overwritten. With m the largest score and u_j = s_j − m, the weights are
        exp(u_j) / Z, the largest of them is 1 / Z, and the entropy −Σ_j a_j ln a_j is
        ln Z − Σ_j a_j u_j, which needs no logarithm per weight. Where a sink leaves the keys a share p
        of the row, the entropy of p·a is p · (entropy of a) − p ln p.
        """
        m = scores.amax(dim=-1)
        attention = torch.softmax(scores, dim=-1, out=out)
        largest = attention.amax(dim=-1)
        entropy = -largest.log() - scores.sub_(m[..., None]).mul_(attention).sum(dim=-1)
        entropy.clamp_(min=0)  # rounding
        if self.sinks is None:
            return attention, entropy, largest, torch.ones_like(entropy)
        of_all = self.sinks.dim() == 1
        sinks = self.sinks[:, None] if of_all else self.sinks[:, :, queries.start : queries.stop, 0]
        p = torch.sigmoid(m - largest.log() - sinks.to(m))
        attention.mul_(p[..., None])
        return attention, p * entropy + torch.special.entr(p), p * largest, p


def of_weights(attention: torch.Tensor, queries: range | None = None) -> Block:
    """Return precomputed attention weights as a single block.

    Visibility is inferred from the weights: a key with zero weight in every head counts as hidden.

    Args:
        attention: `n_batch n_head n_Q n_K`.
        queries: the positions of the queries; None: 0 to n_Q − 1.
    """
    n_Q, n_K = attention.shape[-2:]
    visible = (attention > 0).any(dim=1, keepdim=True)
    entropy, largest = torch.special.entr(attention).sum(dim=-1), attention.amax(dim=-1)
    total = attention.sum(dim=-1)
    return Block(queries or range(n_Q), range(n_K), attention, entropy, largest, total, lambda: visible)


def without_keys(block: Block, excluded: torch.Tensor, memory: torch.Tensor) -> Block:
    """Remove keys from a block, and renormalize the remaining weights so that each row sums to 1.

    The weights are changed in place. A row without weight on the remaining keys, because it sees none of
    them or because a sink takes all of its weight, is 0 everywhere, and so is its `total`.

    Args:
        block: queries, with their weights over all the keys that they see.
        excluded: True for keys to remove, `n_batch n_K`.
        memory: as many elements as the block has weights; overwritten.
    """
    hidden = excluded[:, None, None, block.keys.start : block.keys.stop]
    block.attention.masked_fill_(hidden, 0)
    return replace(_renormalized(block, memory), _visibility=lambda: block.visible & ~hidden)


def weighed_keys(block: Block, factors: torch.Tensor, memory: torch.Tensor) -> Block:
    """Multiply the weights of each key by a factor, and renormalize them so that each row sums to 1.

    The weights are changed in place. A row whose products are all 0 stays so, and its `total` is 0. A
    key with the factor 0 remains visible.

    Args:
        block: queries, with their weights over all the keys that they see.
        factors: the factor of each key, not negative, `n_batch n_head n_K`.
        memory: as many elements as the block has weights; overwritten.
    """
    block.attention.mul_(factors[:, :, None, block.keys.start : block.keys.stop])
    return _renormalized(block, memory)


def _renormalized(block: Block, memory: torch.Tensor) -> Block:
    """Divide the weights of a block by the sums of their rows, in place, unless these are 0."""
    attention = block.attention
    p = attention.sum(dim=-1)
    attention.div_(torch.where(p > 0, p, 1)[..., None])
    entropies = torch.special.entr(attention, out=memory[: attention.numel()].view(attention.shape))
    return replace(
        block,
        entropy=entropies.sum(dim=-1),
        largest=attention.amax(dim=-1),
        total=(p > 0).to(attention.dtype),
    )


def _four_axes(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Add leading axes of size 1, as broadcasting does, until there are four."""
    return tensor if tensor is None else tensor[(None,) * (4 - tensor.dim())]


def _part(tensor: torch.Tensor, queries: range, keys: range) -> torch.Tensor:
    """Return a block's slice of a tensor that broadcasts to `n_batch n_head n_Q n_K`."""
    if tensor.shape[-2] != 1:
        tensor = tensor[:, :, queries.start : queries.stop]
    if tensor.shape[-1] != 1:
        tensor = tensor[..., keys.start : keys.stop]
    return tensor
