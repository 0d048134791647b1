"""Decide where the outputs of two runs differ by more than rounding.

What should be equal is compared bit for bit first. If it is not, both runs are repeated in float64,
where rounding is smaller by nine orders of magnitude and everything else stays as large as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from attnscope.code.pairs.rounding import CLOSE, EXACT, usual_size

Rows = Mapping[str, torch.Tensor]
"""By stage, in the order in which they run: the outputs at some positions, `n_position d`."""

FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)
"""What a model may raise in a run that it does not support."""

SINGLE = 1e-5
"""What `EXACT` is for models that compute a part in float32 whatever their dtype is."""

LARGE = {torch.float64: EXACT, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
"""A relative difference that rounding in a dtype does not cause."""


@dataclass(frozen=True)
class RunDifference:
    """The difference of two runs."""

    status: str  #: `equal`, `different` or `undecided`
    stage: str = ""  #: the first stage that differs
    #: the position that differs most in the last stage that does, counted within the rows
    position: int = 0
    amount: float = 0.0  #: how far, relative to the largest number of that stage
    rounding: float = 0.0  #: how much of it rounding causes, likewise; 0 where bits were compared
    why: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return self.status == "equal"


def difference(runs: Callable[[bool], tuple[Rows, Rows]]) -> RunDifference:
    """Run something twice, and find the first stage that differs, and the position that differs most.

    `runs` returns the rows of both runs; its argument says whether they are exact, in float64.
    """
    first, second = runs(False)
    if all(torch.equal(first[stage], second[stage]) for stage in first):
        if _finite(first):
            return RunDifference("equal")
        return RunDifference("undecided", why="its outputs are not finite")
    own = _largest(first, second)
    try:
        exact = runs(True)
    except (RuntimeError, TypeError, ValueError) as error:
        limit = LARGE.get(next(iter(first.values())).dtype, EXACT)
        if own > limit:  # large enough to decide by the run's own dtype alone
            return _largest_difference(first, second, limit)
        why = f"it differs, and does not run in float64: {str(error).splitlines()[0]}"
        return RunDifference("undecided", amount=own, why=why)
    if not (_finite(exact[0]) and _finite(first)):
        if _finite(exact[0]) != _finite(exact[1]):
            return _largest_difference(exact[0], exact[1], 0.0)
        return RunDifference("undecided", why="its outputs are not finite")
    rounding = max(_largest(one, other) for one, other in zip((first, second), exact, strict=True))
    gap = _largest(*exact)
    if gap > SINGLE or (gap > EXACT and own > CLOSE * rounding):
        return _largest_difference(*exact, EXACT, rounding)
    dtype = next(iter(first.values())).dtype
    if own > LARGE[dtype]:
        why = f"equal in float64, but {own:.1g} apart in {dtype}: its rounding, or its kernel"
        return RunDifference("undecided", amount=own, rounding=rounding, why=why.replace("torch.", ""))
    return RunDifference("equal", amount=own, rounding=rounding)


def difference_unless_it_raises(
    runs: Callable[[bool], tuple[Rows, Rows]], failures: tuple[type[Exception], ...] = FAILURES
) -> RunDifference:
    """Find the difference of two runs; it is undecided if a run raises one of some exceptions."""
    try:
        return difference(runs)
    except failures as error:
        lines = str(error).splitlines() or [""]
        return RunDifference("undecided", why=f"it raises {type(error).__name__}: {lines[0][:100]}")


def relative(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return by position the largest difference, divided by the largest number: `n_position`.

    A number that is far larger than the others is compared with itself alone: see `usual_size`.
    A difference is infinite where one number is finite and the other is not, and 0 where both are not,
    which says nothing.
    """
    a, b = _numbers(first), _numbers(second)
    unlike = a.isfinite() != b.isfinite()
    gaps = torch.nan_to_num(a - b, nan=0.0, posinf=0.0, neginf=0.0).abs()
    if not gaps.numel():
        return gaps.new_zeros(len(gaps))
    sizes = torch.maximum(a.abs(), b.abs()).nan_to_num(nan=0.0, posinf=0.0)
    scale = max(usual_size(a), usual_size(b), 1e-30)
    return (gaps / sizes.clamp(min=scale)).masked_fill(unlike, float("inf")).amax(1)


def _numbers(rows: torch.Tensor) -> torch.Tensor:
    """Return rows of real numbers in double precision, `n_position d`: complex ones are two each."""
    return (torch.view_as_real(rows) if rows.is_complex() else rows).double().flatten(1)


def equality(amount: float) -> str:
    """Say in words how equal two runs are."""
    return "bit for bit" if amount == 0 else f"up to rounding ({amount:.1g})"


def influences(before: torch.Tensor, changed: Iterable[torch.Tensor]) -> torch.Tensor:
    """Measure how much each position changes each, rounding included: `n_Q n_K`.

    `before` are the outputs by position, `n d`; `changed` the same with another input at each position
    in turn.
    """
    return torch.stack([relative(before, after) for after in changed], 1)


def _largest(first: Rows, second: Rows) -> float:
    return max(float(relative(first[stage], second[stage].to(first[stage])).max()) for stage in first)


def _largest_difference(first: Rows, second: Rows, limit: float, rounding: float = 0.0) -> RunDifference:
    """Return the first stage that differs, with the position and amount of the last one."""
    gaps = {stage: relative(first[stage], second[stage]) for stage in first}
    stages = [stage for stage, gap in gaps.items() if float(gap.max()) > limit]
    last = gaps[stages[-1]]
    return RunDifference("different", stages[0], int(last.argmax()), float(last.max()), rounding)


def _finite(rows: Rows) -> bool:
    return all(bool(each.isfinite().all()) for each in rows.values())
