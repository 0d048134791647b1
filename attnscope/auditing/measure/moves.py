"""Which positions of a tensor move between two runs: compared along the axes that are positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

import torch

from attnscope.auditing.measure.difference import relative
from attnscope.code.pairs.implementation import same
from attnscope.observe.operators.tape import Tape, Value


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
