"""Finds the first tensor of two attentions that differs although its sources are equal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan

import torch

from attnscope.code.compare.divergence.state import RoleTensors
from attnscope.code.pairs.rounding import EXACT, STRICT, usual_size

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
    "state": ("K", "V"),
    "numerator": ("Q", "state"),
    "denominator": ("Q", "K"),
    "edge_scores": (),
    "edge_attention": ("edge_scores",),
    "messages": ("edge_attention",),
    "x_raw": ("attention_drop", "V"),
    "x_merged": ("x_raw",),
    "x": ("x_merged",),
    "output": ("x",),
}
"""The tensors that each is computed from."""

BEFORE_RESULT = {"state": ("numerator", "denominator"), "messages": ("messages",)}
"""What `x_raw` is computed from in linear attention, which has a state, and over an edge list."""


def sources_of(role: str, found: Collection[str]) -> tuple[str, ...]:
    """Return the tensors that one is computed from, in an attention that has some tensors."""
    others = (sources for form, sources in BEFORE_RESULT.items() if role == "x_raw" and form in found)
    return next(others, SOURCES[role])


@dataclass(frozen=True)
class TensorDifference:
    """The difference of one tensor between two sides."""

    #: The largest absolute difference; NaN if they cannot be compared, inf if only one is finite
    #: somewhere.
    largest: float
    #: Where the difference is largest.
    index: tuple[int, ...]
    #: The share of elements that differ by more than rounding.
    share: float
    #: The factor from a's tensor to b's, if there is one for all elements.
    factor: float | None
    #: Whether they differ by no more than rounding.
    is_equal: bool

    @property
    def is_comparable(self) -> bool:
        """Whether the two have one shape."""
        return not isnan(self.largest)


def difference(a: torch.Tensor, b: torch.Tensor, tolerance: float = 0.0) -> TensorDifference:
    """Compare two tensors, arranged alike; a difference up to the tolerance counts as rounding, too."""
    if a.shape != b.shape:
        return TensorDifference(float("nan"), (), 1.0, None, is_equal=False)
    a, b = numbers(a), numbers(b)
    if a.numel() == 0:
        return TensorDifference(0.0, (), 0.0, None, is_equal=True)
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, 0.0, (a - b).abs())
    gap = torch.where(gap.isnan(), float("inf"), gap)
    usual = _usual(a)
    far = _outliers(a, usual)
    limit = max(STRICT * usual, tolerance)
    wrong = gap > torch.where(far, a.abs() * (limit / usual if usual else STRICT), limit)
    counted = torch.where(wrong, gap, 0.0) if bool(wrong.any()) else torch.where(far, 0.0, gap)
    index = unraveled(int(counted.argmax()), gap.shape)
    share = float(wrong.double().mean())
    is_equal = not bool(wrong.any())
    factor = None if is_equal else factor_between(a, b)
    return TensorDifference(float(counted.max()), index, share, factor, is_equal)


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
    return difference(a.masked_fill(both, 0.0), b.masked_fill(both, 0.0)).largest


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


HIDDEN = -1e3
"""A mask that lowers a score by this hides its key: in float64, e⁻¹⁰⁰⁰ is 0.

`HIDES` of `attention.mask_rules` is lower, because it is compared with scores that may be low by
themselves, or with what may be added to large ones.
"""


def hidden_keys(state: RoleTensors) -> torch.Tensor:
    """Mark the keys that the mask of a side hides: `lead n_Q n_K`."""
    added = state["scores_masked"] - state["scores"]
    return (added < HIDDEN) | added.isnan()


def compared_pair(a: RoleTensors, b: RoleTensors, role: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensors of a role as they are compared.

    Masked scores of hidden keys are -inf, whatever number hides them. Scores, keys and values that the
    masks of both sides hide are 0: they have no effect.
    """
    one, two = a[role], b[role]
    if a.tensor("scores") is None or b.tensor("scores") is None:
        return one, two
    if role == "scores_masked":
        one, two = (
            tensor.masked_fill(hidden_keys(state), float("-inf"))
            for tensor, state in ((one, a), (two, b))
        )
    elif role in ("scores", "K", "V"):
        hidden = hidden_on_both(a, b)
        if hidden is not None and role != "scores":
            hidden = hidden.all(-2)[..., None]
        if hidden is not None and one.shape[:2] == two.shape[:2] == hidden.shape[:2]:
            one, two = one.masked_fill(hidden, 0.0), two.masked_fill(hidden, 0.0)
    return one, two


def hidden_on_both(a: RoleTensors, b: RoleTensors) -> torch.Tensor | None:
    """Mark the keys that the masks of both sides hide: `lead n_Q n_K`; None if there are none.

    Where a query sees no key at all, its scores decide its weights.
    """
    one, two = hidden_keys(a), hidden_keys(b)
    if one.shape != two.shape:
        return None
    both = one & two
    both = both & ~both.all(-1, keepdim=True)
    return both if bool(both.any()) else None


def differences(
    a: RoleTensors, b: RoleTensors, tolerances: Mapping[str, float] | None = None
) -> dict[str, TensorDifference]:
    """Compare all tensors that both sides have, in order; missing stages count as idle.

    Masked scores are equal if their softmax is. What number hides a key does not matter, unless all keys
    of a query are hidden.
    """
    known = tolerances or {}
    result = {}
    for role in SOURCES:
        if a.tensor(role) is None or b.tensor(role) is None:
            continue
        one, two = compared_pair(a, b, role)
        result[role] = difference(one, two, known.get(role, 0.0))
        if role == "scores_masked" and one.shape == two.shape:
            first, second = (each[role].softmax(-1) for each in (a, b))
            is_same = difference(first, second, known.get("attention", 0.0)).is_equal
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
    wrong = set(_roots_of(last, found))
    return [role for role in SOURCES if role in wrong]


def _roots_of(role: str, found: Mapping[str, TensorDifference]) -> Iterator[str]:
    """Yield the tensors that explain why one differs."""
    different = [
        each
        for each in _known_sources(role, found)
        if not (found[each].is_equal or (each in ("Q", "K") and found[each].factor is not None))
    ]
    if not different or (role == "scores" and found[role].factor is not None):
        yield role
    else:
        for each in different:
            yield from _roots_of(each, found)


def _known_sources(role: str, found: Mapping[str, TensorDifference]) -> Iterator[str]:
    """Yield the nearest sources of a tensor that both sides have."""
    for source in sources_of(role, found):
        if source in found:
            yield source
        else:
            yield from _known_sources(source, found)
