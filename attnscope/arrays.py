"""The values of tensors, as numpy arrays that any part of attnscope can look at.

An array is kept as it is stored. Numpy has no bfloat16, so its 16 raw bits ride in a uint16
array, beside the dtype's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.results.common import Stats

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

    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
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


def stats_of(stored: np.ndarray, dtype: str = "") -> Stats:
    """Min, mean, max and standard deviation of the finite values; NaN and infinities counted.

    Computed in float64, a few values at a time: whole tensors are too large to be copied.

    Args:
        stored, dtype: as `from_tensor` returns them, or numbers of any shape.

    Source: Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", for putting the parts together.
    """
    import numpy as np

    nan = inf = 0
    moments = []  # of each part: how many, mean, sum of squared deviations, least, greatest
    flat = stored.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = numbers(flat[start : start + CHUNK], dtype).astype(np.float64)
        least, greatest = part.min(), part.max()  # NaN if there is one
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
