"""Masks of blocks: of blocks of keys, and of summaries of blocks, such as their means."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis
from attnscope.code.compare.causes.masks import hides, pattern, without_masks


def block_mask(case: Case) -> Iterator[Hypothesis]:
    """Suppose that the masks of both sides are of blocks, or one is, and that they are others.

    Sources: Yuan et al. 2025, "Native Sparse Attention", section 3.3.1, for summaries of blocks; Arriola
    et al. 2025, "Block Diffusion", section 3, for blocks.
    """
    right, wrong = (hides(case, side) for side in (case.right, case.wrong))
    words = [_summaries(each) or _blocks(each) for each in (right, wrong)]
    if None in words or words[0] == words[1] or not any("block" in str(each) for each in words):
        return
    text = f"in {case.wrong}, {words[1]}; in {case.right}, {words[0]}"
    yield Hypothesis("another mask of blocks", text, *without_masks(case))


def _summaries(hidden: torch.Tensor) -> str | None:
    """Say from which query on each of few keys is seen, if these are summaries of blocks of one size."""
    visible = pattern(hidden)
    if visible is None:
        return None
    n_Q, n_K = visible.shape
    first = (~visible).sum(0)  # of the queries that see a key
    expected = torch.arange(n_Q)[:, None] >= first
    reached = first[first < n_Q]  # the last blocks may never be seen
    steps = reached.diff()
    if n_K < 2 or n_K * 2 > n_Q or not bool((visible == expected).all()) or reached.numel() < 2:
        return None
    size = int(steps[-1])
    if size < 2 or not bool((steps[1:] == size).all()):
        return None
    offset = int(reached[-1]) - size * (reached.numel() - 1)
    ends = {0: "its first position", size - 1: "its last position", size: "the position after its last"}
    place = ends.get(offset, f"its position {offset}")
    return f"a query sees the summary of a block of {size} keys from {place} on"


def _blocks(hidden: torch.Tensor) -> str | None:
    """Say which blocks of keys a query sees, if the mask is one of blocks; or that it is causal."""
    visible = pattern(hidden)
    if visible is None or visible.shape[0] != visible.shape[1]:
        return None
    n = visible.shape[0]
    if bool(visible.all()):
        return "a query sees all keys"
    size = int(visible[0].sum())  # query 0 is in the first block
    if not size:
        return None
    block = torch.arange(n) // size
    own, earlier = block[:, None] == block, block[:, None] > block
    if bool((visible == (own | earlier)).all()):
        if size == 1:
            return "a query sees the keys up to its own"
        return f"a query sees its own block of {size} keys, and those before it"
    return f"a query sees its own block of {size} keys alone" if bool((visible == own).all()) else None
