"""Heads: splitting a wide axis into several narrow ones, and merging them again."""

from __future__ import annotations

import torch

from attnscope.base.errors import groups_are_uneven, heads_do_not_divide


def split_heads(x: torch.Tensor, n_head: int | None) -> torch.Tensor:
    """Split the last axis into heads, and move the head axis before the rows. Return a view.

    Args:
        x: `n_batch n n_head·d`.
        n_head: the number of heads; None: return x unchanged.

    Returns:
        `n_batch n_head n d`.

    Raises:
        SizeError: n_head does not divide the width.
    """
    if n_head is None:
        return x
    *lead, n, width = x.shape
    if width % n_head:
        raise heads_do_not_divide(width, n_head, "the width")
    return x.view(*lead, n, n_head, width // n_head).transpose(-3, -2)


def merge_heads(x: torch.Tensor, n_head: int | None) -> torch.Tensor:
    """Undo `split_heads`: move the head axis back, and merge it with the last axis.

    Args:
        x: `n_batch n_head n d`.
        n_head: the number of heads; None: return x unchanged.

    Returns:
        `n_batch n n_head·d`; a copy, because the transposed heads are not contiguous in memory.
    """
    if n_head is None:
        return x
    return x.transpose(-3, -2).contiguous().flatten(-2)


def shared(K: torch.Tensor, Q: torch.Tensor) -> torch.Tensor:
    """Repeat keys (or values) so that every query head in a group has its own copy.

    Args:
        K: `n_batch n_kv_head n_K d`.
        Q: `n_batch n_head n_Q d_K`, where n_head is a multiple of n_kv_head; if they are equal,
            or there is no head axis, K is returned unchanged.

    Returns:
        `n_batch n_head n_K d`: the first key head n_head/n_kv_head times, then the second, ….

    Raises:
        SizeError: n_head is not a multiple of n_kv_head.

    Source: Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models";
    one key head for all: Shazeer 2019, "Fast Transformer Decoding".
    """
    if K.dim() < 4 or K.size(-3) == Q.size(-3):
        return K
    n_head, n_kv_head = Q.size(-3), K.size(-3)
    if n_head % n_kv_head:
        raise groups_are_uneven(n_head, n_kv_head)
    return K.repeat_interleave(n_head // n_kv_head, dim=-3)
