"""Rotary positions: queries and keys are rotated by angles that grow with their positions.

So their dot product depends on the distance between the two positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnscope.base.errors import width_is_odd


def rotary_angles(
    positions: range, like: torch.Tensor, theta: float | None
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """Return the cosines and sines of the angles at every position.

    Pair i of a vector's d/2 pairs is rotated by position · theta^(-2i/d): the first pair fast,
    the last one slowly.

    Args:
        positions: the positions of the vectors to rotate, `n_pos` in all.
        like: queries, `… d_K`, whose width, dtype and device the result has. The angles are
            computed in float32 at least.
        theta: the base; None: no rotary positions.

    Returns:
        cos and sin, each `n_pos d_K`: the d/2 angles twice, because the two halves of a vector
        are the two coordinates of its pairs (Llama's way).

    Raises:
        SizeError: d_K is odd.

    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding",
    equation 34; halves instead of neighbours: GPT-NeoX and Llama.
    """
    if theta is None:
        return None, None
    d = like.size(-1)
    if d % 2:
        raise width_is_odd("d_K", d)
    precision = torch.promote_types(like.dtype, torch.float32)
    pairs = torch.arange(0, d, 2, dtype=precision, device=like.device)
    places = torch.arange(positions.start, positions.stop, dtype=precision, device=like.device)
    angles = places[:, None] * theta ** -(pairs / d)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotated(
    x: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    start: int | Sequence[int] = 0,
) -> torch.Tensor:
    """Rotate each vector by the angles of its position.

    The pair (x_i, x_{i+d/2}) becomes (x_i cos − x_{i+d/2} sin, x_{i+d/2} cos + x_i sin).

    Args:
        x: `… n d_K`.
        cos, sin: as `rotary_angles` returns them; None: return x unchanged.
        start: the index of the first vector in cos and sin, or one for each sequence.

    Returns:
        `… n d_K`; the norm of each vector stays the same.
    """
    if cos is None or sin is None:
        return x
    cos, sin = (_from(start, angles, x) for angles in (cos, sin))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _from(start: int | Sequence[int], angles: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the angles of x, `n d_K`; with several starts, `n_batch n d_K` or `n_batch 1 n d_K`."""
    n = x.size(-2)
    if isinstance(start, int):
        return angles[start : start + n]
    of_each = torch.stack([angles[first : first + n] for first in start])
    return of_each if x.dim() == 3 else of_each.unsqueeze(1)
