"""Heads: one wide tensor as several narrow ones, side by side."""

from __future__ import annotations

import torch

from attnscope.errors import groups_are_uneven, heads_do_not_divide


def split_heads(x: torch.Tensor, n_head: int | None) -> torch.Tensor:
    """Cut the last axis into heads, and move the heads before the rows: a view.

    Args:
        x: `n_batch n n_head·d`.
        n_head: how many; None: it stays as it is.

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
    """Undo `split_heads`: move the heads back, and put them side by side in one axis.

    Args:
        x: `n_batch n_head n d`.
        n_head: how many; None: it stays as it is.

    Returns:
        `n_batch n n_head·d`; a copy, because heads that stand side by side do not lie so.
    """
    if n_head is None:
        return x
    return x.transpose(-3, -2).contiguous().flatten(-2)


def shared(K: torch.Tensor, Q: torch.Tensor) -> torch.Tensor:
    """Give each query head its keys (or values): the heads of one group have the same.

    Args:
        K: `n_batch n_kv_head n_K d`.
        Q: `n_batch n_head n_Q d_K`, where n_head is a multiple of n_kv_head; if they are equal,
            or there are no heads at all, K stays as it is.

    Returns:
        `n_batch n_head n_K d`: the first key head n_head/n_kv_head times, then the second, ….

    Raises:
        SizeError: n_head is no multiple of n_kv_head.

    Source: Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models";
    one key head for all: Shazeer 2019, "Fast Transformer Decoding".
    """
    if K.dim() < 4 or K.size(-3) == Q.size(-3):
        return K
    n_head, n_kv_head = Q.size(-3), K.size(-3)
    if n_head % n_kv_head:
        raise groups_are_uneven(n_head, n_kv_head)
    return K.repeat_interleave(n_head // n_kv_head, dim=-3)
