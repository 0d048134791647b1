"""Measure how a head's matrices, and the products of two of them, change between two checkpoints.

A relative change is ‖B − A‖/‖A‖ in Frobenius norms, computed in float64 from the stored values.

Its rank counts the singular values of B − A above what rounding could cause. Rounding a number x to a
dtype with unit roundoff u errs by at most u·|x|. If errors are independent, the largest singular value
of a matrix of them is about the norm of its largest row plus that of its largest column, and so are
these times u at most, for the entries of A and of B.

A circuit W_Qᵀ·W_K or W_O·W_V is never formed. With W = Q·R for [W_B − W_A, W_A] of each factor, the
change of the product is Q₁·(R₁·R₂ᵀ)·Q₂ᵀ, and R₁·R₂ᵀ is only `2·d_head 2·d_head`.

With rotary positions, the score of a query x and a key y at the distance Δ is the sum of
Re(exp(iθΔ)·xᵀ·q̄·kᵀ·y) over pairs (a, b) of features, with q = W_Q[a] + i·W_Q[b], k = W_K[a] + i·W_K[b]
and the frequency θ of the pair (Su et al., section 3.2). Frequencies differ, so scores
are the same at every distance if and only if the complex matrix q̄·kᵀ of every pair is. The mean of
‖Re(exp(iθΔ)·q̄·kᵀ)‖² over all distances is half of ‖q̄·kᵀ‖², which is ‖q‖²·‖k‖²; the norm of a change
follows from the QR of two columns.

Sources: Bandeira and van Handel 2016, "Sharp nonasymptotic bounds on the norm of random matrices with
independent entries", theorem 1.1; Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits", for the products; Su et al. 2021, "RoFormer"; Higham 2002, "Accuracy and Stability of
Numerical Algorithms", theorem 2.2, for the unit roundoff, and section 20.4 for the Gram matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, inf
from typing import TYPE_CHECKING

from attnscope.base.arrays import numbers
from attnscope.base.dtypes import DTYPES, FLOATS
from attnscope.model.files.result import WeightSlice

if TYPE_CHECKING:
    import numpy as np

    from attnscope.model.families.rotary import Pairs

EXPLAINED = 0.25
"""The most of a change that may be left where it is called a permutation: what quantisation changes."""

MOST_SHOWN = 8
"""The most features that the description of an order lists."""

Order = tuple[int, ...]
"""For each feature in B its index in A."""

UNIT_ROUNDOFF = {name: 2.0 ** -DTYPES[name].precision for name in FLOATS}
"""Half the distance between 1 and the next number, in each dtype."""

ROUNDED_PRODUCT, CANCELLED = 16, 0.1
"""Two factors' changes cancel if the product's change is at most so many u·√Σ‖qᵢ‖²‖kᵢ‖², and at most
this share of what either would cause alone. Rounding each entry once causes about 0.6 of these,
computing a rotation in the same dtype several."""


@dataclass(frozen=True)
class RelativeChange:
    """A change: its relative size, infinite if A is 0; and its rank.

    None: a value is not finite, or the size is undecided.
    """

    relative: float | None
    rank: int | None


EQUAL = RelativeChange(0.0, 0)


class MatrixChange:
    """The change of one matrix, or one bias, from A to B. Values are read when they are needed.

    Args:
        exact: whether B was computed from the very values of A, so that only B is rounded.
    """

    def __init__(self, a: WeightSlice, b: WeightSlice, *, exact: bool = False) -> None:
        self.a, self.b, self.exact = a, b, exact

    @cached_property
    def equal(self) -> bool:
        """Whether both are equal bit for bit."""
        a, b = self.a, self.b
        if a.dtype != b.dtype:
            return False
        bits = f"u{a.array.dtype.itemsize}"
        return bool((a.array.view(bits) == b.array.view(bits)).all())

    @cached_property
    def measured(self) -> RelativeChange:
        """The relative change and its rank; of a bias, only its relative change."""
        import numpy as np

        if self.equal:
            return EQUAL
        if self.a.array.ndim == 1:
            a, b = exact(self.a), exact(self.b)
            if not np.isfinite(a).all() or not np.isfinite(b).all():
                return RelativeChange(None, None)
            return RelativeChange(_ratio(_norm(b - a), _norm(a)), None)
        factor = self.factor
        if not factor.finite:
            return RelativeChange(None, None)
        sigma = np.linalg.svd(factor.change, compute_uv=False)
        rank = int((sigma > factor.rounding).sum())
        return RelativeChange(_ratio(_norm(factor.change), _norm(factor.before)), rank)

    @cached_property
    def permutation(self) -> Order | None:
        """The order of the features of A that B has, if that is what changed."""
        if self.a.array.ndim == 1 or self.equal or not self.factor.finite:
            return None
        return permutation_of(self.factor.side)

    @cached_property
    def factor(self) -> Factor:
        """Both matrices in a small basis. The slices are not read again."""
        import numpy as np

        d_head = next((axis for axis, name in enumerate(self.a.dims) if name == "d_head"), None)
        a, b = exact(self.a), exact(self.b)
        if (a.shape[0] > a.shape[1]) if d_head is None else (d_head == 1):
            a, b = a.T, b.T
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return Factor(a, a, 0.0, 0.0, finite=False)
        unit_a = 0.0 if self.exact else UNIT_ROUNDOFF[self.a.dtype]
        unit = max(unit_a, UNIT_ROUNDOFF[self.b.dtype])
        precise = unit < UNIT_ROUNDOFF["float16"]
        unit = max(unit, max(a.shape) * UNIT_ROUNDOFF["float64"])
        squares = b * b
        if not self.exact:
            squares += a * a
        rounding = unit * (squares.sum(1).max() ** 0.5 + squares.sum(0).max() ** 0.5)
        del squares
        if self.equal:
            before = _triangle(a, precise)
            return Factor(np.zeros_like(before), before, unit, rounding=0.0)
        triangle = _triangle(np.concatenate([b - a, a]), precise)
        return Factor(triangle[:, : len(a)], triangle[:, len(a) :], unit, rounding)


@dataclass(frozen=True)
class Factor:
    """The change of a matrix and the matrix before it, in a basis of the space of their columns."""

    #: change, before: `k d_head`.
    change: np.ndarray
    before: np.ndarray
    #: the unit roundoff of the coarser dtype.
    unit: float
    #: the largest singular value that rounding could cause in the change.
    rounding: float
    finite: bool = True

    @cached_property
    def after(self) -> np.ndarray:
        """The matrix after the change: `k d_head`."""
        return self.before + self.change

    @property
    def side(self) -> FactorChange:
        """The matrix as a factor of a product."""
        return FactorChange(self.before, self.after, self.change)

    @cached_property
    def spectral_norm(self) -> float:
        """The largest singular value, before or after."""
        import numpy as np

        grams = [each.T @ each for each in (self.before, self.after)]
        return max(float(np.linalg.eigvalsh(gram)[-1]) for gram in grams) ** 0.5


def with_bias(weight: MatrixChange, bias: MatrixChange | None) -> MatrixChange:
    """Return the change of a weight with its bias as one more column, which is that of an input of 1."""
    import numpy as np

    if bias is None:
        return weight
    pairs = (weight.a, bias.a), (weight.b, bias.b)
    same = all(w.dtype == b.dtype for w, b in pairs)
    both = []
    for w, b in pairs:
        values = (w.array, b.array) if same else (numbers(w.array, w.dtype), numbers(b.array, b.dtype))
        array = np.concatenate([values[0], values[1][:, None]], axis=1)
        both.append(replace(w, array=array, dtype=w.dtype if same else str(array.dtype)))
    return MatrixChange(*both, exact=weight.exact)


def circuit_change(
    left: MatrixChange, right: MatrixChange, pairs: BothPairs | None = None
) -> RelativeChange:
    """Measure the change of a product of two matrices of a head, contracted over d_head.

    If the change of one factor undoes that of the other up to rounding, as a rotation of the head's
    basis does, the product's change is 0 (`CANCELLED`).

    Returns:
        The relative change of the product, in the mean over all distances if positions rotate it; and
        the rank of the change of the product that nothing rotates.
    """
    import numpy as np

    if left.equal and right.equal:
        return EQUAL
    one, other = left.factor, right.factor
    if not (one.finite and other.finite):
        return RelativeChange(None, None)
    sides = one.side, other.side
    product = over_pairs(*sides, pairs) if pairs else over_features(*sides)
    rounding = ROUNDED_PRODUCT * max(one.unit, other.unit) * product.level
    if product.change <= min(rounding, CANCELLED * product.by_left, CANCELLED * product.by_right):
        return EQUAL
    sigma = np.linalg.svd(change_of_product(*sides), compute_uv=False)
    tolerance = one.rounding * other.spectral_norm + one.spectral_norm * other.rounding
    rank = int((sigma > tolerance).sum())
    return RelativeChange(_ratio(product.change, product.before), rank)


def _triangle(rows: np.ndarray, precise: bool) -> np.ndarray:
    """Return a matrix R with RᵀR = M·Mᵀ, whose columns stand for the rows of M: R of the QR of Mᵀ.

    Args:
        rows: M, `n d`.
        precise: whether singular values below 1e-6 of the largest matter; else R is computed from
            the Gram matrix M·Mᵀ, several times faster.

    Returns:
        `k n`, with k at most n.
    """
    import numpy as np

    if precise or len(rows) > rows.shape[1]:
        return np.asarray(np.linalg.qr(rows.T, mode="r"))
    gram = rows @ rows.T
    scale = np.sqrt(gram.diagonal())
    scale[scale == 0] = 1.0
    gram /= scale[:, None] * scale
    gram[np.diag_indices_from(gram)] += 4 * len(gram) * UNIT_ROUNDOFF["float64"]
    return np.linalg.cholesky(gram).T * scale


def exact(slice_: WeightSlice) -> np.ndarray:
    """Return the values of a slice in float64."""
    import numpy as np

    return numbers(slice_.array, slice_.dtype).astype(np.float64)


def _norm(values: np.ndarray) -> float:
    flat = values.ravel()
    return float(flat @ flat) ** 0.5


def _ratio(change: float, before: float) -> float:
    if before:
        return change / before
    return inf if change else 0.0


# Features in another order.


def permutation_of(side: FactorChange) -> Order | None:
    """Return the order of A's features in which they are nearest to those of B.

    Args:
        side: a matrix in A and B, with a column for each feature.

    Returns:
        None if it is the order of A, names a feature twice, or leaves more than a share of the change.
    """
    import numpy as np

    a, b = side.before, side.after
    distances = (b * b).sum(0)[:, None] + (a * a).sum(0) - 2 * b.T @ a
    order = distances.argmin(1)
    if np.array_equal(order, np.arange(len(order))) or len(set(order.tolist())) < len(order):
        return None
    rest = np.linalg.norm(b - a[:, order])
    return tuple(order.tolist()) if rest <= EXPLAINED * np.linalg.norm(side.change) else None


def described(order: Order) -> str:
    """Describe an order of features: whether halves became neighbours, and the first of them."""
    shown = " ".join(map(str, order[:MOST_SHOWN])) + (" …" if len(order) > MOST_SHOWN else "")
    moved = [i for i, j in enumerate(order) if i != j]
    n_feature = moved[-1] + 2  # the last feature stays in both conventions
    halves = [*range(0, n_feature, 2), *range(1, n_feature, 2)]
    rest = [*range(n_feature, len(order))]
    words = ""
    if [*order] == [*halves, *rest]:
        words = "from neighbouring features to the two halves "
    elif [halves[i] for i in order[:n_feature]] + [*order[n_feature:]] == [*range(len(order))]:
        words = "from the two halves to neighbouring features "
    return f"{words}({shown})"


# The product of two matrices of a head: over all features, or for each pair of rotated ones.

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
