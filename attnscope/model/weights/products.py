"""Change of the product of two matrices of a head: over all features, or for each pair of rotated ones.

With rotary positions, the score of a query x and a key y at the distance Δ is the sum of
Re(exp(iθΔ)·xᵀ·q̄·kᵀ·y) over pairs (a, b) of features, with q = W_Q[a] + i·W_Q[b], k = W_K[a] + i·W_K[b]
and the frequency θ of the pair (Su et al. 2021, "RoFormer", section 3.2). Frequencies differ, so scores
are the same at every distance if and only if the complex matrix q̄·kᵀ of every pair is. The mean of
‖Re(exp(iθΔ)·q̄·kᵀ)‖² over all distances is half of ‖q̄·kᵀ‖², which is ‖q‖²·‖k‖²; the norm of a change
follows from the QR of two columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from attnscope.model.families.rotary import Pairs

MEAN = 0.5**0.5
"""The square root of the mean of cos²."""

BothPairs = tuple["Pairs", "Pairs"]
"""The pairs of features that positions rotate in A and in B, as many in both."""


@dataclass(frozen=True)
class FactorChange:
    """One of the two matrices, in a basis of the space of its columns; a column for each feature."""

    #: before, after: in A and in B: `k d_head`.
    before: np.ndarray
    after: np.ndarray
    #: the difference, as exact as it is known.
    change: np.ndarray


@dataclass(frozen=True)
class ProductChange:
    """Frobenius norms of a product and of its change; of several products, of all of them together."""

    change: float
    #: by_left, by_right: of the change that either factor would cause alone.
    by_left: float
    by_right: float
    before: float
    #: √Σ‖qᵢ‖²‖kᵢ‖² over the columns i in A and in B, to which rounding is relative.
    level: float

    def __add__(self, other: ProductChange) -> ProductChange:
        return ProductChange(*map(hypot, vars(self).values(), vars(other).values()))


def change_of_product(left: FactorChange, right: FactorChange) -> np.ndarray:
    """Return the change of a product that is contracted over all features: `k k`."""
    return left.change @ right.after.T + left.before @ right.change.T


def over_features(left: FactorChange, right: FactorChange) -> ProductChange:
    """Measure the change of a product that is contracted over all features."""
    import numpy as np

    return ProductChange(
        change=float(np.linalg.norm(change_of_product(left, right))),
        by_left=float(np.linalg.norm(left.change @ right.after.T)),
        by_right=float(np.linalg.norm(left.before @ right.change.T)),
        before=float(np.linalg.norm(left.before @ right.before.T)),
        level=_level(left, right),
    )


def over_pairs(left: FactorChange, right: FactorChange, pairs: BothPairs) -> ProductChange:
    """Measure the change of a product whose features positions rotate: the mean over all distances."""
    import numpy as np

    q, k = _complex(left, pairs), _complex(right, pairs)
    columns = [q.change.conj(), q.before.conj()], [k.after, k.change]
    R_q, R_k = (
        np.asarray(np.linalg.qr(np.stack(each, -1).swapaxes(0, 1), mode="r")) for each in columns
    )
    rotated = ProductChange(
        change=MEAN * float(np.linalg.norm(R_q @ R_k.swapaxes(1, 2))),
        by_left=MEAN * _size(q.change, k.after),
        by_right=MEAN * _size(q.before, k.change),
        before=MEAN * _size(q.before, k.before),
        level=MEAN * _level(q, k),
    )
    others = [
        sorted({*range(left.before.shape[1])} - {i for pair in each for i in pair}) for each in pairs
    ]
    return rotated + over_features(_columns(left, others), _columns(right, others))


def _size(left: np.ndarray, right: np.ndarray) -> float:
    """Return √Σ‖qᵢ‖²‖kᵢ‖² over the columns i."""
    import numpy as np

    return float(np.linalg.norm(np.linalg.norm(left, axis=0) * np.linalg.norm(right, axis=0)))


def _level(left: FactorChange, right: FactorChange) -> float:
    return hypot(_size(left.before, right.before), _size(left.after, right.after))


def _columns(side: FactorChange, features: list[list[int]]) -> FactorChange:
    """Return some columns of a side: those of A, and those of B."""
    of_a, of_b = features
    before, after = side.before[:, of_a], side.after[:, of_b]
    return FactorChange(before, after, side.change[:, of_a] if of_a == of_b else after - before)


def _complex(side: FactorChange, pairs: BothPairs) -> FactorChange:
    """Return a column for each pair: its first feature plus i times its second."""
    first, second = (_columns(side, [[pair[i] for pair in each] for each in pairs]) for i in (0, 1))
    return FactorChange(
        *(x + 1j * y for x, y in zip(vars(first).values(), vars(second).values(), strict=True))
    )
