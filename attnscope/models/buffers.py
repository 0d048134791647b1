"""Reusable memory of constant size for blocks of weights."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Store:
    """Memory for numbers about pairs of tokens, which is allocated once and overwritten repeatedly.

    The blocks of a causal model grow with the keys that their queries see. If each allocated memory of
    its own size and left something small behind, none would fit into the gap of an earlier one: with
    glibc, a process that used a few hundred MiB grew to ten GiB.

    Args:
        keep: the bytes of all layers together that may be kept until `forget` is called.
    """

    def __init__(self, keep: int = 0) -> None:
        self.keep = keep
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

        Args:
            shape: the shape of the numbers.
            most: the most numbers of any later call, which determines the size of the allocation.
            like: a tensor of the same dtype and device.
            keep: whether the numbers may be kept.
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
