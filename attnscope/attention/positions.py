"""Positions: where queries and keys stand in the sequence that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Align = Literal["top-left", "bottom-right"]


def offset_of(n_Q: int, n_K: int, *, align: Align) -> int:
    """The position of the first query, where the first key stands at 0.

    Args:
        n_Q, n_K: how many queries and keys; keys of the past count.
        align: `top-left`: the first query stands at the first key. `bottom-right`: the last
            query stands at the last key, as it does when earlier keys come from a cache.

    Returns:
        A position; below 0 where more queries than keys are aligned at their ends.

    Source: PyTorch, `torch.nn.attention.bias.CausalVariant` (UPPER_LEFT and LOWER_RIGHT).

    >>> offset_of(1, 5, align="bottom-right")
    4
    """
    return n_K - n_Q if align == "bottom-right" else 0


def places(
    Q: torch.Tensor, K: torch.Tensor, K_past: torch.Tensor | None, align: Align | None
) -> tuple[range, int, int]:
    """All positions that there are, and where among them the queries and the new keys begin.

    Args:
        Q: `… n_Q d_K`.
        K: the new keys, `… n_new d_K`.
        K_past: `… n_past d_K`, at positions from 0 on; or None.
        align: as in `offset_of`; None: bottom-right with a past, else top-left.

    Returns:
        The positions, as many as the greater of n_Q and n_K; they begin below 0 where more
        queries than keys are aligned at their ends. And in them, the place of the first query
        and that of the first new key.
    """
    n_Q, n_new = Q.size(-2), K.size(-2)
    n_past = 0 if K_past is None else K_past.size(-2)
    n_K = n_past + n_new
    align = align or ("bottom-right" if n_past else "top-left")
    first = offset_of(n_Q, n_K, align=align)
    least = min(first, 0)
    return range(least, least + max(n_Q, n_K)), first - least, n_past - least
