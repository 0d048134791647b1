"""Positions of queries and keys in their sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from attnscope.base.errors import OptionError, SizeError
from attnscope.base.spelling import spelled

if TYPE_CHECKING:
    import torch

Align = Literal["top-left", "bottom-right", "after-past", "lengths"]


def offset_of(
    n_Q: int, n_K: int, *, align: Align, n_past: int = 0, lengths: Sequence[int] | None = None
) -> int | tuple[int, ...]:
    """Return the position of the first query, where the first key is at position 0.

    Args:
        n_Q, n_K: the number of queries, and of keys with those of the past.
        align: `top-left`: the first query has the position of the first key. `bottom-right`: the
            last query has that of the last key, as when earlier keys come from a cache.
            `after-past`: the first query has that of the first new key. `lengths`: in each
            sequence, the last query has that of the last key that is not padding, as with a cache
            of a fixed size; queries before the first key have negative positions.
        n_past: the number of keys of the past.
        lengths: for `lengths`, the number of keys of each sequence that are not padding.

    Returns:
        A position, negative if there are more queries than keys at whose end they are; with several
        lengths, one position for each sequence.

    Raises:
        OptionError: there are no lengths.
        SizeError: a length is more than n_K.

    Source: PyTorch, `torch.nn.attention.bias.CausalVariant` (UPPER_LEFT and LOWER_RIGHT); ONNX,
    `Attention` (opset 24), `past_key` (after-past) and `nonpad_kv_seqlen` (lengths).

    >>> offset_of(1, 5, align="bottom-right")
    4
    >>> offset_of(2, 5, align="lengths", lengths=[1, 5])
    (-1, 3)
    """
    if align == "lengths":
        return _before_the_ends(n_Q, n_K, lengths)
    return {"top-left": 0, "bottom-right": n_K - n_Q, "after-past": n_past}[align]


def _before_the_ends(n_Q: int, n_K: int, lengths: Sequence[int] | None) -> int | tuple[int, ...]:
    """Return the position of the first query of each sequence whose queries are the last of its keys."""
    if not lengths:
        raise OptionError(
            "aligned at the lengths, each sequence's queries are the last of its keys, but nothing says"
            " how many keys each sequence has.",
            hint=f"{spelled(mask='lengths:N,N,…')} with {spelled(align='lengths')}",
        )
    if max(lengths) > n_K:
        raise SizeError(f"a length of {max(lengths)} is more than there are keys: n_K is {n_K}.")
    firsts = tuple(length - n_Q for length in lengths)
    return firsts if len(firsts) > 1 else firsts[0]


def places(
    Q: torch.Tensor,
    K: torch.Tensor,
    K_past: torch.Tensor | None,
    align: Align | None,
    lengths: Sequence[int] | None = None,
) -> tuple[range, int | tuple[int, ...], int]:
    """Return the range of all positions, and the offsets of the queries and new keys in it.

    Args:
        Q: `… n_Q d_K`.
        K: the new keys, `… n_new d_K`.
        K_past: `… n_past d_K`, at positions from 0 on; or None.
        align: as in `offset_of`; None: bottom-right with a past, else top-left.
        lengths: as in `offset_of`: one for each sequence, or one for all.

    Returns:
        The positions, as many as the queries and keys take; they begin below 0 where there are more
        queries than keys at whose end they are. Then the index in this range of the first query, or
        of the first query of each sequence, and that of the first new key.

    Raises:
        OptionError: as `offset_of`.
        SizeError: as `offset_of`; or there are more or fewer lengths than sequences.
    """
    n_Q, n_new = Q.size(-2), K.size(-2)
    n_past = 0 if K_past is None else K_past.size(-2)
    n_K = n_past + n_new
    align = align or ("bottom-right" if n_past else "top-left")
    first = offset_of(n_Q, n_K, align=align, n_past=n_past, lengths=lengths)
    if isinstance(first, int):
        least = min(first, 0)
        return range(least, max(first + n_Q, n_K)), first - least, n_past - least
    n_batch = Q.size(0) if Q.dim() > 2 else 1
    if len(first) != n_batch:
        raise SizeError(f"{len(first)} lengths are given for {n_batch} sequences.")
    least = min(0, *first)
    return range(least, n_K), tuple(each - least for each in first), n_past - least
