"""Decide which positions of an output moved by more than rounding.

What should be equal is compared bit for bit first. If it is not, both runs are repeated in float64,
where rounding is smaller by nine orders of magnitude and everything else stays as large as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Rows = Mapping[str, torch.Tensor]
"""By stage, in the order in which they run: the outputs at some positions, `n_position d`."""

FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""What a model may raise in a run that it does not support."""

Failures = type[Exception] | tuple[type[Exception], ...]

EXACT = 1e-9
"""A difference in float64, relative to the largest number, that rounding may cause."""

SINGLE = 1e-5
"""The same for models that compute a part in float32 whatever their dtype is."""

CLOSE = 4.0
"""A difference of so many times the rounding counts as rounding."""

LARGE = {torch.float64: EXACT, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
"""A relative difference that rounding in a dtype does not cause."""


@dataclass(frozen=True)
class Moved:
    """What moved between two runs.

    Attributes:
        status: `equal`, `moved` or `undecided`.
        stage: the first stage that moved.
        position: the position that moved most in the last stage that moved, counted within the rows.
        amount: how far, relative to the largest number of that stage.
        rounding: how far rounding moves it, likewise; 0 where bits were compared.
        why: for `undecided`, the reason.
    """

    status: str
    stage: str = ""
    position: int = 0
    amount: float = 0.0
    rounding: float = 0.0
    why: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether nothing moved."""
        return self.status == "equal"


def moved(runs: Callable[[bool], tuple[Rows, Rows]]) -> Moved:
    """Run something twice, and find the first stage that moved, and the position that moved most.

    Args:
        runs: returns the rows of both runs; its argument says whether they are exact, in float64.
    """
    first, second = runs(False)
    if all(torch.equal(first[stage], second[stage]) for stage in first):
        return Moved("equal") if _finite(first) else Moved("undecided", why="its outputs are not finite")
    own = _largest(first, second)
    try:
        exact = runs(True)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return _without_exact(first, second, own, str(error).splitlines()[0])
    if not (_finite(exact[0]) and _finite(first)):
        if _finite(exact[0]) != _finite(exact[1]):
            return _moved_most(exact[0], exact[1], 0.0)
        return Moved("undecided", why="its outputs are not finite")
    rounding = max(_largest(one, other) for one, other in zip((first, second), exact, strict=True))
    gap = _largest(*exact)
    if gap > SINGLE or (gap > EXACT and own > CLOSE * rounding):
        return _moved_most(*exact, EXACT, rounding)
    dtype = next(iter(first.values())).dtype
    if own > LARGE[dtype]:
        why = f"equal in float64, but {own:.1g} apart in {dtype}: its rounding, or its kernel"
        return Moved("undecided", amount=own, rounding=rounding, why=why.replace("torch.", ""))
    return Moved("equal", amount=own, rounding=rounding)


def moved_unless_it_raises(
    runs: Callable[[bool], tuple[Rows, Rows]], failures: Failures = FAILURES
) -> Moved:
    """Return what moved, as `moved` does; undecided if a run raises one of some exceptions."""
    try:
        return moved(runs)
    except failures as error:
        lines = str(error).splitlines() or [""]
        return Moved("undecided", why=f"it raises {type(error).__name__}: {lines[0][:100]}")


def _without_exact(first: Rows, second: Rows, own: float, problem: str) -> Moved:
    """Decide by the run's own dtype alone, if the difference is large enough."""
    dtype = next(iter(first.values())).dtype
    limit = LARGE.get(dtype, EXACT)
    if own > limit:
        return _moved_most(first, second, limit)
    return Moved("undecided", amount=own, why=f"it differs, and does not run in float64: {problem}")


def relative(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return by position the largest difference, divided by the largest number: `n_position`.

    Infinite where one is not finite and the other is.
    """
    a, b = first.double().flatten(1), second.double().flatten(1)
    unlike = a.isfinite() != b.isfinite()
    gaps = torch.nan_to_num(a - b, nan=0.0, posinf=0.0, neginf=0.0).abs()
    gaps = gaps.masked_fill(unlike, float("inf"))
    scale = max(_scale(a), _scale(b))
    return gaps.amax(1) / scale if gaps.numel() else gaps.new_zeros(len(gaps))


def influences(n: int, rows: Callable[[int | None], torch.Tensor]) -> torch.Tensor:
    """Return how much each position changes each, above rounding in float64: `n_Q n_K`.

    Args:
        n: the number of positions.
        rows: returns the outputs by position, `n d`, with another input at a position, or at none.
    """
    before = rows(None)
    amounts = torch.stack([relative(before, rows(key)) for key in range(n)], 1)
    return amounts.where(amounts > EXACT, 0.0)


def _scale(numbers: torch.Tensor) -> float:
    finite = numbers[numbers.isfinite()]
    return max(float(finite.abs().max()), 1e-30) if finite.numel() else 1.0


def _largest(first: Rows, second: Rows) -> float:
    return max(float(relative(first[stage], second[stage].to(first[stage])).max()) for stage in first)


def _moved_most(first: Rows, second: Rows, limit: float, rounding: float = 0.0) -> Moved:
    """Return the first stage that moved, with the position and amount of the last one."""
    gaps = {stage: relative(first[stage], second[stage]) for stage in first}
    stages = [stage for stage, gap in gaps.items() if float(gap.max()) > limit]
    last = gaps[stages[-1]]
    return Moved("moved", stages[0], int(last.argmax()), float(last.max()), rounding)


def _finite(rows: Rows) -> bool:
    return all(bool(each.isfinite().all()) for each in rows.values())
