"""The values of tensors, as numpy arrays that any part of attnscope can look at.

An array is kept as it is stored. Numpy has no bfloat16, so its 16 raw bits ride in a uint16
array, beside the dtype's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnscope.results import Stats

if TYPE_CHECKING:
    import numpy as np


CHUNK = 2**18
"""How many values are looked at together: few enough for a processor's cache."""


def from_tensor(tensor: Any) -> tuple[np.ndarray, str]:
    """A torch tensor as a stored array and the name of its dtype.

    Args:
        tensor: on any device but meta; it is not copied if it lies in the host's memory.
    """
    import torch

    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("uint16"), name
    return tensor.numpy(), name


def numbers(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The real numbers of a stored array, in a dtype that numpy computes with: exact, always.

    Args:
        stored: as `from_tensor` returns it, or as a file holds it.
        dtype: the name of its dtype, such as `bfloat16`.
    """
    import numpy as np

    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float16":
        return stored.astype(np.float32)
    return stored


def stats_of(array: np.ndarray) -> Stats:
    """Min, mean, max and standard deviation of the finite values; NaN and infinities counted.

    Args:
        array: numbers, of any shape.
    """
    import numpy as np

    nan = inf = 0
    sums = []
    for part in _parts(array):
        finite = part[np.isfinite(part)]
        missing = int(np.isnan(part).sum())
        nan, inf = nan + missing, inf + part.size - finite.size - missing
        if finite.size:
            sums.append((finite.size, finite.sum(), finite.min(), finite.max()))
    if not sums:
        return Stats(None, None, None, None, nan, inf)
    counts, totals, least, greatest = zip(*sums, strict=True)
    mean = sum(totals) / sum(counts)
    squares = (np.square(part[np.isfinite(part)] - mean).sum() for part in _parts(array))
    std = np.sqrt(sum(squares) / sum(counts))
    return Stats(float(min(least)), float(mean), float(max(greatest)), float(std), nan, inf)


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """An array's values in float64, a few at a time: whole tensors are too large to be copied."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        yield flat[start : start + CHUNK].astype("float64")
