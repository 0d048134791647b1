"""Compute attention in a model's place, a block of queries at a time, in as much memory as is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnscope.models.running.attention_hook import Call, Handed
from attnscope.models.running.buffers import memory_for
from attnscope.models.running.tolerance import difference_of, output_tolerance

if TYPE_CHECKING:
    import torch

    from attnscope.attention.blocks import Block, BlockedAttention


FEW = 48
"""How many tokens are read to compare attnscope's attention with the model's own."""

TIDY = 32
"""Matrix products are faster with a multiple of so many rows."""


class Blockwise:
    """Computes what a layer's attention returns, and shows the weights of each block on the way.

    Args:
        block_bytes: how much a block's weights, and what they are made of, may take. It is at least one
            query's.
    """

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._memory: torch.Tensor | None = None

    def attend(self, handed: Handed, see: Callable[[Block], None]) -> torch.Tensor:
        """What the values are collected to, `n_batch n_Q n_head d_V`.

        Args:
            handed: what a layer hands to its attention.
            see: gets each block; its weights are gone when the next one comes.
        """
        attention = blocked(handed)
        rows, memory = self._room(attention)
        n_batch, n_head, n_Q, _ = handed.query.shape
        collected = handed.value.new_empty(n_batch, n_Q, n_head, handed.value.shape[-1])
        for start in range(0, n_Q, rows):
            queries = range(start, min(start + rows, n_Q))
            block, x_raw = attention.block(queries, memory)
            collected[:, queries.start : queries.stop] = x_raw.transpose(1, 2)
            see(block)
        return collected

    def _room(self, attention: BlockedAttention) -> tuple[int, torch.Tensor]:
        """How many queries there are in a block, and the memory for its weights."""
        of_a_query = attention.numbers_of_a_query
        rows = tidy(self.block_bytes // (attention.dtype.itemsize * of_a_query), attention.n_Q)
        self._memory = memory_for(self._memory, rows * of_a_query, attention.K)
        return rows, self._memory


def disagreement(call: Call, number: int, blockwise: Blockwise) -> str | None:
    """How far blocks are from what a layer's own attention returned, if rounding does not explain it."""
    collected = blockwise.attend(call, let_go)
    difference = difference_of(collected, call.output.to(collected))
    if difference <= output_tolerance(call):
        return None
    return f"in layer {number} it is {difference:.2g} off"


def tidy(rows: int, n_Q: int) -> int:
    """How many queries a block has, of those that there is room for: one at least, `n_Q` at most."""
    rows = max(1, min(rows, n_Q))
    return rows - rows % TIDY if TIDY < rows < n_Q else rows


def is_lean(model: Any, handed: Handed) -> bool:
    """Whether a model's own attention makes no whole map: torch's is fused where K and V are as wide."""
    fused = model.config._attn_implementation == "sdpa"
    return fused and handed.query.shape[-1] == handed.value.shape[-1]


def let_go(block: Block) -> None:
    """Discard the weights of a block."""


def blocked(handed: Handed) -> BlockedAttention:
    """The attention that a layer asks for, to be computed in blocks."""
    from attnscope.attention.blocks import BlockedAttention

    return BlockedAttention(
        handed.query,
        handed.key,
        handed.value,
        handed.mask,
        handed.position_bias,
        handed.sinks,
        causal=handed.causal,
        scale=handed.scale,
        softcap=handed.softcap,
    )
