"""Positions of queries and keys in their sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Align = Literal["top-left", "bottom-right"]


def offset_of(n_Q: int, n_K: int, *, align: Align) -> int:
    """Return the position of the first query, where the first key is at position 0.

    Args:
        n_Q, n_K: the number of queries, and of keys with those of the past.
        align: `top-left`: the first query has the position of the first key. `bottom-right`: the
            last query has that of the last key, as when earlier keys come from a cache.

    Returns:
        A position; negative for bottom-right alignment with more queries than keys.

    Source: PyTorch, `torch.nn.attention.bias.CausalVariant` (UPPER_LEFT and LOWER_RIGHT).

    >>> offset_of(1, 5, align="bottom-right")
    4
    """
    return n_K - n_Q if align == "bottom-right" else 0


def places(
    Q: torch.Tensor, K: torch.Tensor, K_past: torch.Tensor | None, align: Align | None
) -> tuple[range, int, int]:
    """Return the range of all positions, and the offsets of the queries and new keys in it.

    Args:
        Q: `… n_Q d_K`.
        K: the new keys, `… n_new d_K`.
        K_past: `… n_past d_K`, at positions from 0 on; or None.
        align: as in `offset_of`; None: bottom-right with a past, else top-left.

    Returns:
        The positions, max(n_Q, n_K) of them; they begin below 0 for bottom-right alignment with
        more queries than keys. Then the index in this range of the first query, and that of the
        first new key.
    """
    n_Q, n_new = Q.size(-2), K.size(-2)
    n_past = 0 if K_past is None else K_past.size(-2)
    n_K = n_past + n_new
    align = align or ("bottom-right" if n_past else "top-left")
    first = offset_of(n_Q, n_K, align=align)
    least = min(first, 0)
    return range(least, least + max(n_Q, n_K)), first - least, n_past - least
