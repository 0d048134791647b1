"""Replace a model's attention by one that computes a block of queries at a time, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from attnscope.base.arrays import largest_difference
from attnscope.model.run.attention_hook import AttentionCall, AttentionInputs
from attnscope.model.run.validate import output_tolerance

if TYPE_CHECKING:
    import torch

    from attnscope.attention.blocks import Block, BlockedAttention


FEW = 48
"""The number of tokens used to compare attnscope's attention with the model's own."""

ROW_MULTIPLE = 32
"""Matrix products are faster with a multiple of this number of rows."""


class Blockwise:
    """Compute a layer's attention block by block, and pass the weights of each block to a callback."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._memory: torch.Tensor | None = None

    def attend(self, inputs: AttentionInputs, on_block: Callable[[Block], None]) -> torch.Tensor:
        """Return the weighted values, `n_batch n_Q n_head d_V`.

        Args:
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


class Store:
    """Memory for numbers about pairs of tokens, which is allocated once and overwritten repeatedly.

    The blocks of a causal model grow with the keys that their queries see. If each allocated memory of
    its own size and left something small behind, none would fit into the gap of an earlier one: with
    glibc, a process that used a few hundred MiB grew to ten GiB.
    """

    def __init__(self, keep: int = 0) -> None:
        self.keep = keep  # bytes of all layers together that may be kept
        self._kept: torch.Tensor | None = None
        self._current: torch.Tensor | None = None
        self._n_kept = 0

    def forget(self) -> None:
        """Release all kept numbers, whose memory is reused."""
        self._n_kept = 0

    def buffer(
        self, shape: tuple[int, ...], most: int, like: torch.Tensor, *, keep: bool = False
    ) -> tuple[torch.Tensor, bool]:
        """Return an uninitialized tensor, and whether it is kept until `forget` is called.

        Memory is allocated once for `most` numbers, those of the largest later call.
        """
        size = prod(shape)
        if keep and (self._n_kept + size) * like.itemsize <= self.keep:
            self._kept = memory_for(self._kept, self.keep // like.itemsize, like)
            start, self._n_kept = self._n_kept, self._n_kept + size
            return self._kept[start : start + size].view(shape), True
        self._current = memory_for(self._current, max(most, size), like)
        return self._current[:size].view(shape), False


def memory_for(old: torch.Tensor | None, size: int, like: torch.Tensor) -> torch.Tensor:
    """Return memory for `size` numbers: `old`, if it is large enough, of the same dtype and device."""
    import torch

    if old is not None and old.numel() >= size and (old.device, old.dtype) == (like.device, like.dtype):
        return old
    return torch.empty(size, dtype=like.dtype, device=like.device)
