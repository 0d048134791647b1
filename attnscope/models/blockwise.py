"""Replace a model's attention by one that computes a block of queries at a time, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnscope.arrays import largest_difference
from attnscope.models.attention_hook import AttentionCall, AttentionInputs
from attnscope.models.buffers import memory_for
from attnscope.models.tolerance import output_tolerance

if TYPE_CHECKING:
    import torch

    from attnscope.attention.blocks import Block, BlockedAttention


FEW = 48
"""The number of tokens used to compare attnscope's attention with the model's own."""

ROW_MULTIPLE = 32
"""Matrix products are faster with a multiple of this number of rows."""


class Blockwise:
    """Compute a layer's attention block by block, and pass the weights of each block to a callback.

    Args:
        block_bytes: the memory for a block's weights and for computing them. A block has at least one
            query.
    """

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._memory: torch.Tensor | None = None

    def attend(self, inputs: AttentionInputs, on_block: Callable[[Block], None]) -> torch.Tensor:
        """Return the weighted values, `n_batch n_Q n_head d_V`.

        Args:
            inputs: the inputs of a layer's attention.
            on_block: called with each block, whose weights are overwritten by the next one.
        """
        attention = blocked(inputs)
        rows, memory = self._room(attention)
        n_batch, n_head, n_Q, _ = inputs.query.shape
        collected = inputs.value.new_empty(n_batch, n_Q, n_head, inputs.value.shape[-1])
        for start in range(0, n_Q, rows):
            queries = range(start, min(start + rows, n_Q))
            block, x_raw = attention.block(queries, memory)
            collected[:, queries.start : queries.stop] = x_raw.transpose(1, 2)
            on_block(block)
        return collected

    def _room(self, attention: BlockedAttention) -> tuple[int, torch.Tensor]:
        """Return the number of queries in a block, and the memory for its weights."""
        of_a_query = attention.numbers_of_a_query
        rows = rounded_rows(self.block_bytes // (attention.dtype.itemsize * of_a_query), attention.n_Q)
        self._memory = memory_for(self._memory, rows * of_a_query, attention.K)
        return rows, self._memory


def disagreement(call: AttentionCall, number: int, blockwise: Blockwise) -> str | None:
    """Describe a difference from the output of a layer's own attention that exceeds rounding, if any."""
    collected = blockwise.attend(call, discard)
    difference = largest_difference(collected, call.output.to(collected))
    if difference <= output_tolerance(call):
        return None
    return f"in layer {number} they differ by {difference:.2g}"


def rounded_rows(rows: int, n_Q: int) -> int:
    """Round the number of queries in a block down to a multiple of ROW_MULTIPLE, within 1 … `n_Q`."""
    rows = max(1, min(rows, n_Q))
    return rows - rows % ROW_MULTIPLE if ROW_MULTIPLE < rows < n_Q else rows


def is_fused(model: Any, inputs: AttentionInputs) -> bool:
    """Check whether a model's own attention builds no whole map: torch's is fused if d_K equals d_V."""
    fused = model.config._attn_implementation == "sdpa"
    return fused and inputs.query.shape[-1] == inputs.value.shape[-1]


def discard(block: Block) -> None:
    """Discard the weights of a block."""


def blocked(inputs: AttentionInputs) -> BlockedAttention:
    """Return a layer's attention, to be computed in blocks."""
    from attnscope.attention.blocks import BlockedAttention

    return BlockedAttention(
        inputs.query,
        inputs.key,
        inputs.value,
        inputs.mask,
        inputs.position_bias,
        inputs.sinks,
        causal=inputs.causal,
        scale=inputs.scale,
        softcap=inputs.softcap,
    )
