"""Which differences rounding explains: two numbers are equal if they differ by no more."""

from __future__ import annotations

from math import gcd

import torch

STRICT = 1e-10
"""A difference in float64, relative to the largest numbers, that rounding causes in one attention."""

EXACT = 1e-9
"""The same where more is computed: all layers of a model, or a factor that is fitted to two tensors."""

CLOSE = 4.0
"""A difference of so many times the rounding that was measured counts as rounding, too."""

OUTLIER = 1e4
"""A number so many times as large as most does not measure them: a hidden score, say."""

SAMPLE = 2**16
"""The numbers from which it is estimated how large most are."""


def usual_size(numbers: torch.Tensor, least: float = 0.0) -> float:
    """Return the largest absolute value, apart from outliers and what is not finite; 0 if there is none.

    Most numbers are larger than their first decile, and in outputs of networks much less than `OUTLIER`
    times as large. A number is an outlier only if it is `OUTLIER` times as large as `least`, too.
    """
    sizes = numbers.abs()
    step = max(1, sizes.numel() // SAMPLE)
    while step > 1 and gcd(step, sizes.shape[-1]) > 1:  # or whole columns would be left out
        step += 1
    for some in (sizes.flatten()[::step], sizes.flatten()):
        some = some[some.isfinite() & (some > 0)]
        if some.numel():
            decile = float(some.kthvalue(1 + some.numel() // 10).values)
            return float(sizes.where(sizes <= OUTLIER * max(decile, least), 0.0).max())
    return 0.0
