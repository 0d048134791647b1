"""Masks: which queries may attend to which keys.

A mask is True where a query may attend. Each kind is a function of two positions, the query's
and the key's; kinds are combined with `&`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from attnscope.attention.mask_rules import HIDES
from attnscope.base.errors import OptionError

Offset = int | Sequence[int]
"""The first query's position (see `attnscope.attention.positions`), or one for each sequence. With
several, every mask below has a batch axis: `n_batch n_Q n_K`."""


def positions(n_Q: int, n_K: int, offset: Offset = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of queries, `n_Q 1`, and of keys, `n_K`: they broadcast to `n_Q n_K`.

    Args:
        n_Q, n_K: the number of queries and keys.
        offset: the first query's position, or one for each sequence.
    """
    first = offset if isinstance(offset, int) else torch.tensor(offset)[:, None, None]
    return torch.arange(n_Q)[:, None] + first, torch.arange(n_K)


def causal(n_Q: int, n_K: int, *, offset: Offset = 0) -> torch.Tensor:
    """Let each query attend to its own position and earlier ones: `n_Q n_K`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.

    >>> causal(3, 3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    q, k = positions(n_Q, n_K, offset)
    return q >= k


def window(n_Q: int, n_K: int, left: float, right: float, *, offset: Offset = 0) -> torch.Tensor:
    """Let each query attend from `left` positions before it to `right` after it: `n_Q n_K`.

    A side of infinite width is open.

    Source: Beltagy et al. 2020, "Longformer", section 3.1.
    """
    q, k = positions(n_Q, n_K, offset)
    return (q - left <= k) & (k <= q + right)


def chunk(n_Q: int, n_K: int, size: int, *, offset: Offset = 0) -> torch.Tensor:
    """Let each query attend to the keys in its own chunk of `size` positions: `n_Q n_K`.

    Source: Llama 4, chunked attention (transformers, `chunked_overlay`), without its causal mask.
    """
    q, k = positions(n_Q, n_K, offset)
    return q // size == k // size


def prefix(n_Q: int, n_K: int, length: int, *, offset: Offset = 0) -> torch.Tensor:
    """Let each query attend to the first `length` keys, and causally to the others: `n_Q n_K`.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (T5), figure 4.
    """
    q, k = positions(n_Q, n_K, offset)
    return (q >= k) | (k < length)


def lengths(of_each: Sequence[int], n_K: int) -> torch.Tensor:
    """Hide the padding after the end of each sequence from all queries: `n_batch 1 n_K`.

    Args:
        of_each: the number of keys in each sequence without padding.
        n_K: the number of keys with padding.
    """
    return torch.arange(n_K) < torch.tensor(of_each)[:, None, None]


def additive(mask: torch.Tensor, fill: float, dtype: torch.dtype) -> torch.Tensor:
    """Convert a boolean mask to an additive one: 0 where a query may attend, `fill` elsewhere."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, fill)


def hidden(mask: torch.Tensor) -> torch.Tensor:
    """Return True where a boolean or additive mask hides a key from a query."""
    return ~mask if mask.dtype == torch.bool else mask <= HIDES


def masked(scores: torch.Tensor, mask: torch.Tensor | None, fill: float = float("-inf")) -> torch.Tensor:
    """Apply a mask to the scores.

    Args:
        scores: `… n_Q n_K`, logits.
        mask: anything that broadcasts to the scores. Boolean: True where the query may
            attend. Floating point: added to the scores. None: every query sees every key,
            and the scores are returned as they are.
        fill: the score of a key that a boolean mask hides.

    Returns:
        `… n_Q n_K`, logits.

    Raises:
        OptionError: the mask is neither boolean nor floating point.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.
    """
    if mask is None:
        return scores
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise OptionError(
            f"a mask of dtype {mask.dtype} is ambiguous: it can mean 'may attend' or 'add to the"
            " scores'.",
            hint="mask.bool(), if True means that a query may attend",
        )
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, fill)
    return scores + mask


def mask_of(query: int, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return one query's row of a mask as a column: `… n_K 1` of `… n_Q n_K`, or of `n_K`."""
    if mask is None:
        return None
    if mask.dim() == 1:
        return mask[:, None]
    return mask[..., query if mask.size(-2) > 1 else 0, :, None]


Rows = Literal["nan", "uniform", "zero"]
"""The weights of queries that see no key."""


def filled(
    attention: torch.Tensor, mask: torch.Tensor | None, rows: Rows | None, dim: int = -1
) -> torch.Tensor:
    """Replace the weights of queries that see no key at all.

    The softmax of a row of -inf is 0/0: NaN, which spreads to everything computed from it. The
    softmax of a row filled with one large negative number is uniform: a query that should see
    nothing gets the mean of all values.

    Args:
        attention: `… n_Q n_K`, weights.
        mask: as in `masked`.
        rows: the weights of those rows: `nan`, `uniform` or `zero`; None: leave them unchanged.
        dim: the axis of the keys.

    Returns:
        `… n_Q n_K`, weights.
    """
    if mask is None or rows is None:
        return attention
    weight = {"nan": float("nan"), "uniform": 1 / attention.size(dim), "zero": 0.0}[rows]
    return attention.masked_fill(hidden(mask).all(dim=dim, keepdim=True), weight)
