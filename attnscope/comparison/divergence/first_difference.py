"""Finds the first tensor of two attentions that differs although its sources are equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan

import torch

from attnscope.comparison.divergence.state import UNCHANGED, RoleTensors
from attnscope.implementations.rounding import EXACT, STRICT, usual_size

SOURCES: dict[str, tuple[str, ...]] = {
    "Q_feat": (),
    "K_feat": (),
    "V_feat": (),
    "Q_split": ("Q_feat",),
    "K_split": ("K_feat",),
    "V_split": ("V_feat",),
    "Q": ("Q_split",),
    "K": ("K_split",),
    "V": ("V_split",),
    "scores": ("Q", "K"),
    "scores_masked": ("scores",),
    "attention": ("scores_masked",),
    "attention_drop": ("attention",),
    "x_raw": ("attention_drop", "V"),
    "x_merged": ("x_raw",),
    "x": ("x_merged",),
    "output": ("x",),
}
"""The tensors that each is computed from."""


@dataclass(frozen=True)
class TensorDifference:
    """The difference of one tensor between two sides.

    Attributes:
        role: its role.
        largest: the largest absolute difference; NaN if they cannot be compared, inf if only one is
            finite somewhere.
        index: where the difference is largest.
        share: the share of elements that differ by more than rounding.
        factor: the factor from a's tensor to b's, if there is one for all elements.
        is_equal: whether they differ by no more than rounding.
    """

    role: str
    largest: float
    index: tuple[int, ...]
    share: float
    factor: float | None
    is_equal: bool

    @property
    def is_comparable(self) -> bool:
        """Whether the two have one shape."""
        return not isnan(self.largest)


def difference(role: str, a: torch.Tensor, b: torch.Tensor, tolerance: float = 0.0) -> TensorDifference:
    """Compare two tensors of one role.

    Args:
        role: the role.
        a, b: the tensors, arranged alike.
        tolerance: a difference that counts as rounding, too.
    """
    if a.shape != b.shape:
        return TensorDifference(role, float("nan"), (), 1.0, None, is_equal=False)
    a, b = numbers(a), numbers(b)
    if a.numel() == 0:
        return TensorDifference(role, 0.0, (), 0.0, None, is_equal=True)
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, 0.0, (a - b).abs())
    gap = torch.where(gap.isnan(), float("inf"), gap)
    usual = _usual(a)
    far = _outliers(a, usual)
    limit = max(STRICT * usual, tolerance)
    wrong = gap > torch.where(far, a.abs() * (limit / usual if usual else STRICT), limit)
    counted = torch.where(wrong, gap, 0.0) if bool(wrong.any()) else torch.where(far, 0.0, gap)
    place = int(counted.argmax())
    index = unraveled(place, gap.shape)
    share = float(wrong.double().mean())
    is_equal = not bool(wrong.any())
    factor = None if is_equal else factor_between(a, b)
    return TensorDifference(role, float(counted.max()), index, share, factor, is_equal)


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64; a complex one in complex128, with its imaginary part."""
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def _usual(tensor: torch.Tensor) -> float:
    """Return the largest absolute value of a tensor, apart from outliers."""
    return usual_size(tensor, least=1.0)


def _outliers(tensor: torch.Tensor, usual: float) -> torch.Tensor:
    """Mark the finite numbers of a tensor beyond the usual ones, such as −10⁹.

    An outlier stands for infinity: it may be the logit of a word that does not exist. It is compared
    with itself alone: what counts as rounding beside it does not for the others.
    """
    return (tensor.abs() > usual) & tensor.isfinite()


def usual_gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference of two tensors of one shape, but for outliers in both."""
    a, b = numbers(a), numbers(b)
    both = _outliers(a, _usual(a)) & _outliers(b, _usual(b))
    return difference("", a.masked_fill(both, 0.0), b.masked_fill(both, 0.0)).largest


def factor_between(a: torch.Tensor, b: torch.Tensor) -> float | None:
    """Return the number c with b = c · a up to rounding; None if there is none."""
    a, b = numbers(a), numbers(b)
    finite = a.isfinite() & b.isfinite()
    if not bool(finite.all()) and not bool((a.isfinite() == b.isfinite()).all()):
        return None
    x, y = a[finite], b[finite]
    usual = ~_outliers(x, _usual(x))
    norm = float(x[usual].abs().square().sum())
    if norm == 0.0:
        return None
    factor = float((x[usual].conj() * y[usual]).sum().real) / norm
    sizes = y.abs().clamp(min=_usual(y))
    is_exact = bool(((y - factor * x).abs() <= EXACT * sizes).all())
    return factor if factor != 0.0 and is_exact else None


def unraveled(flat_index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index of an element by its flat index; `torch.unravel_index` imports sympy for that."""
    index = []
    for size in reversed(shape):
        index.append(flat_index % size)
        flat_index //= size
    return tuple(reversed(index))


def common_roles(a: RoleTensors, b: RoleTensors) -> list[str]:
    """Return the roles of tensors that both sides have, in order; missing stages count as idle."""
    return [
        role for role in SOURCES if tensor_of(a, role) is not None and tensor_of(b, role) is not None
    ]


def tensor_of(state: RoleTensors, role: str) -> torch.Tensor | None:
    """Return a role's tensor; where a stage is missing, what it would have received."""
    tensor = state.tensor(role)
    if tensor is None and role in UNCHANGED:
        return tensor_of(state, UNCHANGED[role])
    return tensor


def require_tensor(state: RoleTensors, role: str) -> torch.Tensor:
    """Return a role's tensor, which must be there."""
    tensor = tensor_of(state, role)
    if tensor is None:
        raise KeyError(role)
    return tensor


HIDDEN = -1e3
"""A mask that lowers a score by this hides its key: in float64, e⁻¹⁰⁰⁰ is 0.

`HIDES` of `attention.mask_rules` is lower, because it is compared with scores that may be low by
themselves, or with what may be added to large ones.
"""


def hidden_keys(state: RoleTensors) -> torch.Tensor:
    """Mark the keys that the mask of a side hides: `lead n_Q n_K`."""
    added = require_tensor(state, "scores_masked") - require_tensor(state, "scores")
    return (added < HIDDEN) | added.isnan()


def compared_tensor(state: RoleTensors, role: str) -> torch.Tensor:
    """Return a role's tensor, with -inf for the scores of hidden keys, whatever number hides them."""
    tensor = require_tensor(state, role)
    if role != "scores_masked" or tensor_of(state, "scores") is None:
        return tensor
    return tensor.masked_fill(hidden_keys(state), float("-inf"))


def differences(
    a: RoleTensors, b: RoleTensors, tolerances: Mapping[str, float] | None = None
) -> dict[str, TensorDifference]:
    """Compare all tensors that both sides have.

    Masked scores are equal if their softmax is. What number hides a key does not matter, unless all keys
    of a query are hidden.
    """
    known = tolerances or {}
    result = {}
    for role in common_roles(a, b):
        one, two = compared_tensor(a, role), compared_tensor(b, role)
        result[role] = difference(role, one, two, known.get(role, 0.0))
        if role == "scores_masked" and one.shape == two.shape:
            first, second = (require_tensor(each, role).softmax(-1) for each in (a, b))
            is_same = difference(role, first, second, known.get("attention", 0.0)).is_equal
            is_blind = bool((one == float("-inf")).all(-1).any())
            is_equal = is_same or (result[role].is_equal and not is_blind)
            result[role] = replace(result[role], is_equal=is_equal)
    return result


def roots(found: Mapping[str, TensorDifference]) -> list[str]:
    """Return the tensors that matter and differ although their sources are equal, in order.

    A difference matters if the output differs, and every tensor on the way to it. A factor between
    two Qs, or Ks, does not count: it may come back in the scale.
    """
    last = next((role for role in reversed(SOURCES) if role in found), None)
    if last is None or found[last].is_equal:
        return []
    wrong: set[str] = set()
    _collect(last, found, wrong)
    return [role for role in SOURCES if role in wrong]


def _collect(role: str, found: Mapping[str, TensorDifference], wrong: set[str]) -> None:
    """Add the tensors that explain why one differs."""
    if role == "scores" and found[role].factor is not None:
        wrong.add(role)
        return
    different = [
        each
        for each in _known_sources(role, found)
        if not (found[each].is_equal or (each in ("Q", "K") and found[each].factor is not None))
    ]
    if not different:
        wrong.add(role)
    for each in different:
        _collect(each, found, wrong)


def _known_sources(role: str, found: Mapping[str, TensorDifference]) -> Iterator[str]:
    """Yield the nearest sources of a tensor that both sides have."""
    for source in SOURCES[role]:
        if source in found:
            yield source
        else:
            yield from _known_sources(source, found)
