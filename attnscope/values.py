"""The values of tensors, as numpy arrays that any part of attnscope can look at.

An array is kept as it is stored. Numpy has no bfloat16, so its 16 raw bits ride in a uint16
array, beside the dtype's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.results import Stats

if TYPE_CHECKING:
    import numpy as np


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

    if array.dtype.kind not in "f":
        array = array.astype(np.float64)
    finite = np.isfinite(array)
    nan = int(np.isnan(array).sum())
    inf = array.size - int(finite.sum()) - nan
    values = array if finite.all() else array[finite]
    if values.size == 0:
        return Stats(None, None, None, None, nan, inf)
    mean, std = values.mean(dtype=np.float64), values.std(dtype=np.float64)
    return Stats(float(values.min()), float(mean), float(values.max()), float(std), nan, inf)
