"""The values of tensors as numpy arrays.

Arrays keep the stored bits. Numpy has no bfloat16, so its raw 16 bits are kept as uint16, with
the name of the dtype beside the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch


CHUNK = 2**18
"""The number of values processed at a time, which fit into a processor's cache."""


def from_tensor(tensor: Any) -> tuple[np.ndarray, str]:
    """Convert a torch tensor to a stored array and the name of its dtype.

    Args:
        tensor: on any device but meta; not copied if it is in the host's memory.
    """
    import torch

    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("uint16"), name
    return tensor.numpy(), name


def to_tensor(stored: np.ndarray, dtype: str) -> torch.Tensor:
    """Convert a stored array to a torch tensor, which shares its memory.

    Args:
        stored, dtype: as `from_tensor` returns them.
    """
    import torch

    bits = stored.view("int16") if dtype == "bfloat16" else stored
    return torch.from_numpy(bits).view(getattr(torch, dtype))


def numbers(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Convert a stored array, without rounding, to a dtype that numpy can compute with.

    Args:
        stored: from `from_tensor`, or from a file.
        dtype: the name of its dtype, such as `bfloat16`.
    """
    import numpy as np

    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float16":
        return stored.astype(np.float32)
    return stored


def largest_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference between two results; NaN if only one of two values is NaN."""
    import torch

    same = (actual == expected) | (torch.isnan(actual) & torch.isnan(expected))
    return float(torch.where(same, 0, (actual - expected).abs()).max())
