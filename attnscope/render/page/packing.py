"""Attention weights as short text, which a browser unpacks by itself.

A weight w is kept as the square root of it, in 16 bits: attention is mostly small numbers, and the
root keeps their digits. The high byte of the code says

    0           w is exactly 0, as masked weights are
    1 … 254     √w lies in the cell [h - 1, h] / 254
    255         w is not a number

and the low byte divides that cell by 256. All low bytes are kept of few weights. Of many, only those
of weights that are at least `(COARSE_TO - 1) / 254` squared: below, the high byte alone is exact to
1/2000, since the square is flat near 0. Where the low byte is missing, w is taken from the middle of
the cell.

The text of a head is base64 (RFC 4648) of a zlib stream (RFC 1950), of these bytes in this order:

    the keys, 16 bits each, least significant byte first: those that get least come first
    the high bytes: for each key, in that order, one for each query
    the low bytes that are kept, in the same order

Neighbours then look alike: what queries give to one key differs less than what one query gives to
its keys. That makes a page of 512 tokens an eighth smaller than rows in their own order would.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.errors import ModelError
from attnscope.results.maps import AttentionMap

if TYPE_CHECKING:
    import numpy as np

CELLS = 254
"""How many cells of equal width the high byte divides √w into."""

NOT_A_NUMBER = 255
"""The high byte of a weight that is not a number."""

COARSE_TO = 32
"""The first high byte whose weights have a low byte in a large page."""

FINE_TO = 2**21
"""A page with at most so many weights keeps every low byte."""

THUMBNAIL = 24
"""A small map has at most so many rows and columns."""

ROUNDING = 1e-3
"""How far a softmax in bfloat16 may go past 1; what goes further is no attention."""


@dataclass(frozen=True)
class PackedHead:
    """One head's weights, as the page holds them.

    Attributes:
        text: base64, as the module says.
        largest_error: the largest absolute difference between a weight and what is unpacked.
        thumbnail: the small map, as `thumbnail` makes it; None: the map itself is as small.
    """

    text: str
    largest_error: float
    thumbnail: np.ndarray | None


def pack(maps: Sequence[AttentionMap], *, fine: bool) -> list[PackedHead]:
    """Pack several heads, on all processors at once: zlib and numpy let go of Python's lock.

    Args:
        maps: weights between 0 and 1; those that are not a number stay so.
        fine: whether all low bytes are kept.

    Raises:
        ModelError: a weight is less than 0 or more than 1.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda each: _pack_head(each, fine), maps))


def thumbnail(attention: np.ndarray, most: int = THUMBNAIL) -> np.ndarray:
    """A small map of a large one: what the queries of a block give, on average, to the keys of a block.

    Its rows sum to what the rows of the large one do, however small it is.

    Args:
        attention: `n_Q n_K`. What is not a number counts as 0.
        most: how many rows and columns it may have.

    Returns:
        √weight · 255, rounded, uint8.
    """
    import numpy as np

    n_Q, n_K = attention.shape
    finite = np.nan_to_num(attention, nan=0.0)
    starts_Q, starts_K = (np.arange(min(n, most)) * n // min(n, most) for n in (n_Q, n_K))
    sums = np.add.reduceat(np.add.reduceat(finite, starts_K, axis=1), starts_Q, axis=0)
    means = sums / np.diff(starts_Q, append=n_Q)[:, None]
    return np.rint(255 * np.sqrt(means.clip(0, 1))).astype(np.uint8)


def _pack_head(each: AttentionMap, fine: bool) -> PackedHead:
    import numpy as np

    attention = np.asarray(each.attention, dtype=np.float32)
    _check(attention, each)
    code = _code(attention)
    kept = _kept(code, fine)
    order = np.argsort(code.sum(axis=0, dtype=np.int64), kind="stable")
    by_key, kept_by_key = code.T[order], kept.T[order]
    high, low = (by_key >> 8).astype(np.uint8), by_key[kept_by_key].astype(np.uint8)
    content = order.astype("<u2").tobytes() + high.tobytes() + low.tobytes()
    error = np.abs(_decoded(code, kept) - attention)
    return PackedHead(
        text=b64encode(_deflated(content)).decode("ascii"),
        largest_error=float(np.nanmax(error, initial=0.0)),
        thumbnail=thumbnail(attention) if max(attention.shape) > THUMBNAIL else None,
    )


def _check(attention: np.ndarray, each: AttentionMap) -> None:
    """Raise a ModelError if a weight lies outside of what a softmax gives."""
    import numpy as np

    if not attention.size:
        return
    least, most = np.fmin.reduce(attention, axis=None), np.fmax.reduce(attention, axis=None)
    if least < 0 or most > 1 + ROUNDING:
        raise ModelError(
            f"layer {each.layer}, head {each.head} has a weight of {most if least >= 0 else least:.4g}:"
            " the page shows weights between 0 and 1, as a softmax gives them."
        )


def _code(attention: np.ndarray) -> np.ndarray:
    """Each weight's 16 bits."""
    import numpy as np

    missing = np.isnan(attention)
    root = np.sqrt(np.where(missing, 0, attention))
    cell = (root * (CELLS * 256)).astype(np.uint32)  # rounded down
    code = np.minimum(cell + 256, CELLS * 256 + 255).astype(np.uint16)
    code[attention == 0] = 0
    code[missing] = NOT_A_NUMBER << 8
    return code


def _kept(code: np.ndarray, fine: bool) -> np.ndarray:
    """Which weights keep their low byte."""
    return code >= (1 if fine else COARSE_TO) << 8


def _decoded(code: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The weights as the browser will see them."""
    import numpy as np

    precise = (code.astype(np.float32) - (256 - 0.5)) / (CELLS * 256)
    coarse = ((code >> 8).astype(np.float32) - 0.5) / CELLS
    weights = np.where(kept, precise, coarse) ** 2
    weights[code == 0] = 0
    weights[code == NOT_A_NUMBER << 8] = np.nan
    return weights


def _deflated(content: bytes) -> bytes:
    """A zlib stream. Short matches are chance here, and cost more than they save: hence Z_FILTERED."""
    import zlib

    stream = zlib.compressobj(level=5, strategy=zlib.Z_FILTERED)
    return stream.compress(content) + stream.flush()
