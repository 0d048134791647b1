"""Decide where two runs differ by more than rounding, and which positions of a tensor move.

What should be equal is compared bit for bit first. If it is not, both runs are repeated in float64,
where rounding is smaller by nine orders of magnitude and everything else stays as large as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

import torch

from attnscope.code.pairs.implementation import same
from attnscope.code.pairs.rounding import CLOSE, EXACT, usual_size
from attnscope.observe.operators.tape import Tape, Value

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


@dataclass(eq=False)
class ChangedRun:
    """A run with another input, beside the one without."""

    tape: Tape
    still: torch.Tensor  #: the positions that should not move
    plain: Tape  #: the tape of the run without the change
    n: int
    #: the shapes of all tensors in a run with one position less; None: unknown
    lengths: list[torch.Size] | None
    rounding: float  #: the amount that rounding may cause
    _states: dict[int, str] = field(default_factory=dict)

    def state(self, index: int) -> str:
        """Return whether a tensor is `clean`, `leaks`, or is `mixed`."""
        if index not in self._states:
            before, after = self.plain.values[index].tensor, self.tape.values[index].tensor
            self._states[index] = self.state_of(index, before, after)
        return self._states[index]

    def state_of(self, index: int, before: torch.Tensor, after: torch.Tensor) -> str:
        """Return the state that a tensor would have with these values.

        It `leaks`, is `clean`, or is `mixed`: neither, without one axis of positions.
        """
        if before.shape != after.shape or not (before.is_floating_point() or before.is_complex()):
            return "clean"
        if torch.equal(before, after):
            return "clean"
        views = self.views(index)
        pairs = [each for each in combinations(views, 2) if each[0].shape == each[1].shape]
        # of one axis, or an entry for each two positions, as scores have
        if any(self._is_clean(before, after, each) for each in [*zip(views), *pairs]):
            return "clean"
        return "leaks" if len(views) == 1 else "mixed"

    def _is_clean(self, before: torch.Tensor, after: torch.Tensor, views: Sequence[_View]) -> bool:
        """Check that a tensor stays as it is where all of its positions should not move.

        The views are the axes of positions that count, all in one shape.
        """
        shape, axes = views[0].shape, [view.axis for view in views]
        first, second = (
            each.reshape(shape).movedim(axes, list(range(len(axes)))).flatten(0, len(axes) - 1)
            for each in (before, after)
        )
        amounts = relative(first[:, None], second[:, None])
        has_moved = (amounts > self.rounding).cpu().reshape([shape[axis] for axis in axes])
        return any(
            not has_moved[torch.meshgrid(*places, indexing="ij")].any()
            for places in product(*(view.places(self.still) for view in views))
        )

    def views(self, index: int) -> list[_View]:
        """Return in which ways the axes of a tensor may be positions."""
        short = self.lengths[index] if self.lengths is not None else None
        return _views(self.tape.values[index].tensor.shape, self.n, short)

    def moves(self, value: Value) -> bool:
        """Whether a tensor changes at all."""
        other = self.tape.values[value.index].tensor
        return not same(value.tensor, other)


@dataclass(frozen=True)
class _View:
    """A shape in which a tensor may be seen, in which one axis is positions."""

    shape: tuple[int, ...]
    axis: int  #: the axis of positions
    starts: range = range(1)  #: where position 0 may be on it: after padding, or cut off

    def places(self, still: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield where some positions may be on the axis."""
        for start in self.starts:
            places = still + start
            yield places[(places >= 0) & (places < self.shape[self.axis])]


def _views(shape: torch.Size, n: int, short: torch.Size | None) -> list[_View]:
    """Return in which ways the axes of a tensor may be positions.

    `short` is the shape with one position less; None: unknown.
    """

    def is_changed(axis: int) -> bool:
        return short is None or short[axis] == shape[axis] // n * (n - 1)

    views = []
    for axis, size in enumerate(shape):
        if size == n and is_changed(axis):
            views.append(_View(tuple(shape), axis))
        elif short is not None and size - short[axis] == 1 and size > (n + 1) // 2:  # not every second
            starts = range(min(0, size - n), max(0, size - n) + 1)
            views.append(_View(tuple(shape), axis, starts))
    if views:
        return views
    for axis, size in enumerate(shape):
        if size > n and size % n == 0 and is_changed(axis):  # positions and heads on one axis
            for place, split in enumerate(((n, size // n), (size // n, n))):
                views.append(_View((*shape[:axis], *split, *shape[axis + 1 :]), axis + place))
    return views
