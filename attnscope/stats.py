"""The values of an array in six numbers."""

from __future__ import annotations

from typing import Any

from attnscope.results import Stats


def stats_of(array: Any) -> Stats:
    """Min, mean, max and standard deviation of the finite values; NaN and infinities counted.

    Args:
        array: a numpy array of any shape and of a real dtype.
    """
    import numpy as np

    if array.dtype.kind not in "fc":
        array = array.astype(np.float64)
    elif array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    finite = np.isfinite(array)
    nan = int(np.isnan(array).sum())
    inf = array.size - int(finite.sum()) - nan
    values = array if finite.all() else array[finite]
    if values.size == 0:
        return Stats(None, None, None, None, nan, inf)
    mean, std = values.mean(dtype=np.float64), values.std(dtype=np.float64)
    return Stats(float(values.min()), float(mean), float(values.max()), float(std), nan, inf)
