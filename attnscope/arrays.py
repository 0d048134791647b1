"""The values of tensors as numpy arrays.

Arrays keep the stored bits. Numpy has no bfloat16, so its raw 16 bits are kept as uint16, with
the name of the dtype beside the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.document.result import Stats

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


def stats_of(stored: np.ndarray, dtype: str = "") -> Stats:
    """Compute min, mean, max and standard deviation of the finite values; count NaN and infinities.

    Computed in float64, in chunks, because whole tensors may be too large to copy.

    Args:
        stored, dtype: from `from_tensor`, or numbers of any shape.

    Source: Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", for combining the chunks.
    """
    import numpy as np

    nan = inf = 0
    moments = []  # of each chunk: count, mean, sum of squared deviations, least, greatest
    flat = stored.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = numbers(flat[start : start + CHUNK], dtype).astype(np.float64)
        least, greatest = part.min(), part.max()  # NaN if any value is
        if not (np.isfinite(least) and np.isfinite(greatest)):
            missing = int(np.isnan(part).sum())
            finite = part[np.isfinite(part)]
            nan, inf = nan + missing, inf + part.size - finite.size - missing
            if not finite.size:
                continue
            part, least, greatest = finite, finite.min(), finite.max()
        mean = part.mean()
        deviations = part - mean
        moments.append((part.size, mean, deviations @ deviations, least, greatest))
    if not moments:
        return Stats(None, None, None, None, nan, inf)
    sizes, means, squares, leasts, greatests = map(np.array, zip(*moments, strict=True))
    mean = np.average(means, weights=sizes)
    variance = (squares + sizes * (means - mean) ** 2).sum() / sizes.sum()
    return Stats(
        min=float(leasts.min()),
        mean=float(mean),
        max=float(greatests.max()),
        std=float(np.sqrt(variance)),
        nan=nan,
        inf=inf,
    )


def largest_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference between two results; NaN if only one of two values is NaN."""
    import torch

    same = (actual == expected) | (torch.isnan(actual) & torch.isnan(expected))
    return float(torch.where(same, 0, (actual - expected).abs()).max())
