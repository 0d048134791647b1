"""Unpack what `packing` packed, with a plain loop that follows only that module's docstring."""

import zlib
from base64 import b64decode
from math import nan

import numpy as np


def unpacked(text: str, n_Q: int, n_K: int, *, fine: bool) -> np.ndarray:
    content = zlib.decompress(b64decode(text))
    order = [content[2 * i] + 256 * content[2 * i + 1] for i in range(n_K)]
    high = content[2 * n_K : 2 * n_K + n_Q * n_K]
    low = iter(content[2 * n_K + n_Q * n_K :])
    attention = np.full((n_Q, n_K), -1.0)
    for place, key in enumerate(order):
        for query in range(n_Q):
            byte = high[place * n_Q + query]
            within = (next(low) + 0.5) / 256 if byte >= (1 if fine else 32) else 0.5
            attention[query, key] = (
                0 if byte == 0 else nan if byte == 255 else ((byte - 1 + within) / 254) ** 2
            )
    assert next(low, None) is None, "there are bytes left over"
    return attention
