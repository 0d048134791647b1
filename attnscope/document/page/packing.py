"""Pack attention weights as compact text, which a browser unpacks without a library.

A weight w is stored as its square root, in 16 bits: most attention weights are small, and the root
preserves their digits. The high byte h of the code means

    0           w is exactly 0, as masked weights are
    1 … 254     √w lies in the cell [h - 1, h] / 254
    255         w is NaN

and the low byte divides that cell into 256 parts. A small page keeps all low bytes. A large one keeps
only those of weights of at least `(COARSE_TO - 1) / 254` squared: below, the high byte alone is exact
to 1/2000, since the square is flat near 0. If the low byte is missing, √w is the middle of the cell.

The text of a head is base64 (RFC 4648) of a zlib stream (RFC 1950) of these bytes, in this order:

    the key indices, 16 bits each, least significant byte first: keys of the least weight come first
    the high bytes: for each key, in that order, one for each query
    the low bytes that are kept, in the same order

Neighbouring bytes are then similar: the weights that one key receives differ less than those that one
query gives. This makes a page of 512 tokens an eighth smaller than with rows in their own order.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.base.errors import ModelError
from attnscope.document.page.protocols import PageHead

if TYPE_CHECKING:
    import numpy as np

CELLS = 254
"""The number of cells of equal width that the high byte divides √w into."""

NOT_A_NUMBER = 255
"""The high byte of NaN."""

COARSE_TO = 32
"""The first high byte whose weights have a low byte in a large page."""

FINE_TO = 2**21
"""The largest number of weights for which a page keeps every low byte."""

THUMBNAIL = 24
"""The most rows and columns of a thumbnail."""

ROUNDING = 1e-3
"""How far a weight may exceed 1 by rounding in bfloat16; a larger one is an error."""


@dataclass(frozen=True)
class PackedHead:
    """One head's weights, as the page stores them."""

    text: str  #: base64, as described in the module's docstring
    largest_error: float  #: the largest absolute difference between a weight and its unpacked value
    thumbnail: np.ndarray | None  #: the result of `thumbnail`; None: the map itself is as small


def pack(maps: Sequence[PageHead], *, fine: bool, unit: float = 1.0) -> list[PackedHead]:
    """Pack several heads in parallel threads: zlib and numpy release Python's global lock.

    Weights are between 0 and `unit`, of which shares are stored, or NaN; a ModelError is raised for
    others. `fine` keeps all low bytes.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda each: _pack_head(each, fine, unit), maps))


def thumbnail(attention: np.ndarray, most: int = THUMBNAIL) -> np.ndarray:
    """Reduce a map to `most` rows and columns: average over blocks of queries, sum over blocks of keys.

    So its rows, before the root is taken, sum to what those of the map do on average. NaN counts as 0.
    Return √weight · 255, rounded, uint8.
    """
    import numpy as np

    n_Q, n_K = attention.shape
    finite = np.nan_to_num(attention, nan=0.0)
    starts_Q, starts_K = (np.arange(min(n, most)) * n // min(n, most) for n in (n_Q, n_K))
    sums = np.add.reduceat(np.add.reduceat(finite, starts_K, axis=1), starts_Q, axis=0)
    means = sums / np.diff(starts_Q, append=n_Q)[:, None]
    return np.rint(255 * np.sqrt(means.clip(0, 1))).astype(np.uint8)


def _pack_head(each: PageHead, fine: bool, unit: float) -> PackedHead:
    import numpy as np

    attention = np.asarray(each.attention, dtype=np.float32) / np.float32(unit)
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
        largest_error=float(np.nanmax(error, initial=0.0)) * unit,
        thumbnail=thumbnail(attention) if max(attention.shape) > THUMBNAIL else None,
    )


def _check(attention: np.ndarray, each: PageHead) -> None:
    """Raise a ModelError if a weight is outside the range of a softmax."""
    import numpy as np

    if not attention.size:
        return
    least, most = np.fmin.reduce(attention, axis=None), np.fmax.reduce(attention, axis=None)
    if least < 0 or most > 1 + ROUNDING:
        raise ModelError(
            f"layer {each.layer}, head {each.head} has a weight of"
            f" {most if least >= 0 else least:.4g}: the page shows only weights of a softmax, from"
            " 0 to 1."
        )


def _code(attention: np.ndarray) -> np.ndarray:
    """Return the 16-bit code of each weight."""
    import numpy as np

    missing = np.isnan(attention)
    root = np.sqrt(np.where(missing, 0, attention))
    cell = (root * (CELLS * 256)).astype(np.uint32)  # rounded down
    code = np.minimum(cell + 256, CELLS * 256 + 255).astype(np.uint16)
    code[attention == 0] = 0
    code[missing] = NOT_A_NUMBER << 8
    return code


def _kept(code: np.ndarray, fine: bool) -> np.ndarray:
    """Return a mask of the weights that keep their low byte."""
    return code >= (1 if fine else COARSE_TO) << 8


def _decoded(code: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the weights as the browser will unpack them."""
    import numpy as np

    precise = (code.astype(np.float32) - (256 - 0.5)) / (CELLS * 256)
    coarse = ((code >> 8).astype(np.float32) - 0.5) / CELLS
    weights = np.where(kept, precise, coarse) ** 2
    weights[code == 0] = 0
    weights[code == NOT_A_NUMBER << 8] = np.nan
    return weights


def _deflated(content: bytes) -> bytes:
    """Compress bytes with zlib and Z_FILTERED: short matches are random here, and cost space."""
    import zlib

    stream = zlib.compressobj(level=5, strategy=zlib.Z_FILTERED)
    return stream.compress(content) + stream.flush()
