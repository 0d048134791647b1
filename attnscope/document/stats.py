"""Statistics of the values of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.base.arrays import CHUNK, numbers
from attnscope.document.result import Stats

if TYPE_CHECKING:
    import numpy as np


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
