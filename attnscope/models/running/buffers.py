"""Memory of one size that blocks of weights are written into, over and over."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Store:
    """Memory for what is asked of pairs of tokens: it is taken once, and written over again and again.

    Blocks of a causal model grow with what their queries see. Where each takes memory of its own size
    and leaves something small behind, none fits where an earlier one was: with glibc, a process that
    held a few hundred MiB grew to ten GiB.

    Args:
        keep: how many bytes may be kept until the store forgets, of all layers together.
    """

    def __init__(self, keep: int = 0) -> None:
        self.keep = keep
        self._kept: torch.Tensor | None = None
        self._current: torch.Tensor | None = None
        self._n_kept = 0

    def forget(self) -> None:
        """Give the room of all that is kept to others."""
        self._n_kept = 0

    def room(self, shape: tuple[int, ...], most: int, like: torch.Tensor, *, keep: bool = False) -> Room:
        """Room for numbers that are not known yet.

        Args:
            shape: theirs.
            most: how many there may be another time: so large is the memory that is taken.
            like: a tensor of the same dtype and device.
            keep: whether they may be kept.
        """
        size = prod(shape)
        if keep and (self._n_kept + size) * like.itemsize <= self.keep:
            self._kept = memory_for(self._kept, self.keep // like.itemsize, like)
            start, self._n_kept = self._n_kept, self._n_kept + size
            return Room(self._kept[start : start + size].view(shape), kept=True)
        self._current = memory_for(self._current, max(most, size), like)
        return Room(self._current[:size].view(shape), kept=False)


@dataclass(frozen=True)
class Room:
    """Memory to write numbers into.

    Attributes:
        numbers: a tensor, whose values mean nothing yet.
        kept: whether nothing else is written there before the store forgets.
    """

    numbers: torch.Tensor
    kept: bool


def memory_for(old: torch.Tensor | None, size: int, like: torch.Tensor) -> torch.Tensor:
    """Memory for so many numbers: what there is, if it is large enough and of the same kind."""
    import torch

    if old is not None and old.numel() >= size and (old.device, old.dtype) == (like.device, like.dtype):
        return old
    return torch.empty(size, dtype=like.dtype, device=like.device)
