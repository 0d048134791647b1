"""Other factors of the scores, and soft caps."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis


def other_scale(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b multiplies Q·Kᵀ by another number."""
    a, b = case.of("a"), case.of("b")
    finite = a.isfinite() & b.isfinite()
    x, y = a[finite], b[finite]
    factor = float((x * y).sum() / (x * x).sum().clamp_min(1e-300))
    if factor == 0.0:
        return
    kind, text = "another scale", f"multiplying b's scores by {_number(1 / factor)} makes both equal"
    in_a, in_b = _scale(case, a), _scale(case, b)
    if in_a is None or in_b is None:
        yield Hypothesis(kind, text, a, b / factor)
        return
    if (isclose(in_b, in_a * in_a, rel_tol=1e-6) and not isclose(in_a, 1)) or (
        isclose(in_a, in_b * in_b, rel_tol=1e-6) and not isclose(in_b, 1)
    ):
        kind = "scaled twice"
    elif isclose(in_b, 1, rel_tol=1e-6):
        kind = "scale missing"
    elif isclose(in_a, 1, rel_tol=1e-6):
        kind = "scale added"
    widths = case.widths
    text += f": b {_meaning(in_b, widths)}, a {_meaning(in_a, widths)}"
    yield Hypothesis(kind, text, a, b / factor)


def another_factor(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side's tensor is the other's times a number, where no product gives a scale."""
    factor = case.found.factor
    if factor is not None:
        text = f"b's {case.role} are a's times {_number(factor)}"
        yield Hypothesis("another scale", text, case.of("a") * factor, case.of("b"))


def _scale(case: Case, scores: torch.Tensor) -> float | None:
    """Return the factor from Q·Kᵀ to scores, if there is one.

    Q and K are those of the side that has not scaled them.
    """
    pairs = [(case.of(side, "Q"), case.of(side, "K")) for side in "ab"]
    Q, K = max(pairs, key=lambda pair: float(pair[0].norm() * pair[1].norm()))
    product = Q @ K.mT
    counted = scores.isfinite() & (scores != 0)
    x, y = product[counted], scores[counted]
    factor = float((x * y).sum() / (x * x).sum().clamp_min(1e-300))
    return factor if factor and case.is_same(factor * x, y) else None


def _meaning(scale: float, widths: dict[str, int]) -> str:
    """Say what a scale divides by: `divides by √d_head = √40`."""
    if isclose(scale, 1, rel_tol=1e-6):
        return "does not scale them"
    for power, does, root in (
        (-0.5, "divides", "√"), (-1, "divides", ""), (0.5, "multiplies", "√"), (-0.25, "divides", "⁴√")
    ):  # fmt: skip
        for name, width in widths.items():
            is_usual = power != -0.25 or name.startswith("d_")
            if is_usual and isclose(scale, width**power, rel_tol=1e-6):
                return f"{does} by {root}{name} = {root}{width}"
    return f"multiplies Q·Kᵀ by {scale:.4g}"


def _number(factor: float) -> str:
    """Return a factor as √n or n, if it is one.

    >>> _number(5**0.5), _number(0.2), _number(0.3)
    ('√5', '1/5', '0.3')
    """
    for value, before in ((factor, ""), (1 / factor, "1/")):
        if isclose(value, round(value), rel_tol=1e-9) and round(value) >= 1:
            return f"{before}{round(value)}"
        square = value * value
        if isclose(square, round(square), rel_tol=1e-9) and round(square) >= 2:
            return f"{before}√{round(square)}"
    return f"{factor:.6g}"


def soft_cap(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side bounds its scores: cap · tanh(scores / cap)."""
    plain, capped = case.of_right(), case.of_wrong()
    cap = _cap(plain, capped)
    if cap is not None:
        text = f"{case.wrong} caps its scores: {cap:.6g}·tanh(scores/{cap:.6g})"
        kind = case.named("soft cap", "soft cap missing")
        yield Hypothesis(kind, text, cap * torch.tanh(plain / cap), capped)


def _cap(plain: torch.Tensor, capped: torch.Tensor) -> float | None:
    """Return the cap with capped = cap · tanh(plain / cap) at the largest score, by bisection."""
    place = int(plain.abs().argmax())
    x, y = abs(float(plain.reshape(-1)[place])), abs(float(capped.reshape(-1)[place]))
    if not 0 < y < x < float("inf"):
        return None
    low, high = y, 1e6 * x
    for _ in range(200):
        middle = (low * high) ** 0.5
        value = middle * float(torch.tanh(torch.tensor(x / middle, dtype=torch.float64)))
        low, high = (middle, high) if value < y else (low, middle)
    return (low * high) ** 0.5
