"""Find the line where positions begin to influence positions that they should not.

Both runs of the code are recorded on tapes, which are compared tensor by tensor. A tensor in which no
position moves that should not is clean. One with an axis of positions, in which some do, leaks. What it
comes from may have no such axis, or more than one (as weights have), and is mixed as long as it is not
clean. The outputs are followed backwards through tensors that are not clean, to the first that leaks,
and from there to where positions were mixed before: a sum over all positions, the weights of attention.

Which axes are positions is seen from a third run, with one position less. Without it, sizes decide.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product, zip_longest
from typing import Any

import torch

import attnscope
from attnscope.auditing.measure.difference import relative
from attnscope.auditing.result import Line
from attnscope.errors import AttnscopeError
from attnscope.implementations.rounding import EXACT
from attnscope.observe.operator_names import SOFTMAXES
from attnscope.observe.operators.tape import Tape, TooLargeError, Value, tensors_in
from attnscope.units import bytes_text

OWN = os.path.dirname(attnscope.__file__) + os.sep
"""The folder of attnscope's own code."""

LIMIT = 2**31
"""The bytes that a tape may take."""


def too_large() -> str:
    """Return in words that a run does not fit on a tape."""
    return f"the tensors of a run take more than {bytes_text(LIMIT)}; smaller sizes show it"


def first_leak(
    call: Callable[[bool], Any],
    n: int,
    still: Collection[int],
    shorter: Callable[[], Any] | None = None,
    rounding: float = EXACT,
) -> tuple[Line | None, str]:
    """Find the line that computes the first tensor that moves at a position that should not.

    Args:
        call: runs the code; its argument says whether with the changed input.
        n: the number of positions.
        still: the positions that should not move.
        shorter: runs the code with one position less, which it may refuse; None: it cannot.
        rounding: the amount that rounding may cause, that of float64 unless said otherwise; otherwise
            code that asks for float32 gets it.

    Returns:
        The line, or None; and why it is not known, if that helps: nothing if the two runs differ in what
        they call, or nothing leaks.
    """
    exact = rounding <= EXACT
    try:
        before, outputs = _recorded(lambda: call(False), exact)
        after, _ = _recorded(lambda: call(True), exact)
    except TooLargeError:
        return None, f"its line is not known: {too_large()}"
    if [each.name for each in before] != [each.name for each in after]:
        return None, ""
    short: list[Value] = []
    if shorter is not None:
        with suppress(AttnscopeError, TooLargeError):
            short, _ = _recorded(shorter, exact)
    if [(each.name, each.tensor.dim()) for each in short] != [
        (each.name, each.tensor.dim()) for each in before
    ]:
        short = []
    rows = torch.tensor(sorted(still))
    moves = {
        id(one): _moves(one.tensor, other.tensor, n, rows, less.tensor.shape if less else None, rounding)
        for one, other, less in zip_longest(before, after, short)
    }

    def leaking(values: Iterable[Value]) -> list[Value]:
        return [each for each in values if moves[id(each)] == "leaks" and each.call is not None]

    ends = leaking(outputs) or leaking(before)
    leaks = leaking(_behind(ends, lambda value: moves.get(id(value), "clean") != "clean"))
    if not leaks:
        return None, ""
    first = min(leaks, key=lambda value: value.index)
    return line_of(_origin(first, moves)), ""


def _recorded(run: Callable[[], Any], exact: bool) -> tuple[list[Value], list[Value]]:
    """Return the tensors of a run, in order, and those that it returns.

    Args:
        run: runs the code.
        exact: whether code that asks for float32 gets float64.
    """
    tape = Tape(limit=LIMIT, exact=exact)
    with tape:
        outputs = [tape.value_of(each) for each in tensors_in(run())]
    return tape.values, outputs


def _moves(
    before: torch.Tensor,
    after: torch.Tensor,
    n: int,
    still: torch.Tensor,
    short: torch.Size | None,
    rounding: float,
) -> str:
    """Decide whether a tensor `leaks`, is `clean`, or is `mixed`: neither, without one such axis."""
    if before.shape != after.shape or not (before.is_floating_point() or before.is_complex()):
        return "clean"
    if torch.equal(before, after):
        return "clean"
    views = _views(before.shape, n, short)
    for view in views:
        if _is_clean(before, after, [view], still, rounding):
            return "clean"
    for pair in combinations(views, 2):  # an entry for each two positions, as scores have
        if pair[0].shape == pair[1].shape and _is_clean(before, after, pair, still, rounding):
            return "clean"
    return "leaks" if len(views) == 1 else "mixed"


@dataclass(frozen=True)
class _View:
    """A shape in which a tensor may be seen, in which one axis is positions.

    Attributes:
        shape: the shape.
        axis: the axis of positions.
        starts: where position 0 may be on it: after padding, or cut off.
    """

    shape: tuple[int, ...]
    axis: int
    starts: range = range(1)

    def places(self, still: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield where some positions may be on the axis."""
        for start in self.starts:
            places = still + start
            yield places[(places >= 0) & (places < self.shape[self.axis])]


def _is_clean(
    before: torch.Tensor,
    after: torch.Tensor,
    views: Collection[_View],
    still: torch.Tensor,
    rounding: float,
) -> bool:
    """Check that a tensor stays as it is where all of its positions should not move.

    Args:
        before, after: the tensor in both runs.
        views: the axes of positions that count, all in one shape.
        still: the positions that should not move.
        rounding: the amount that rounding may cause.
    """
    shape = next(iter(views)).shape
    axes = [view.axis for view in views]
    sizes = [shape[axis] for axis in axes]
    first, second = (
        each.reshape(shape).movedim(axes, list(range(len(axes)))).flatten(0, len(axes) - 1)
        for each in (before, after)
    )
    amounts = relative(first[:, None], second[:, None])
    has_moved = (amounts > rounding).cpu().reshape(sizes)
    return any(
        not has_moved[torch.meshgrid(*places, indexing="ij")].any()
        for places in product(*(view.places(still) for view in views))
    )


def _views(shape: torch.Size, n: int, short: torch.Size | None) -> list[_View]:
    """Return in which ways the axes of a tensor may be positions.

    Args:
        shape: the tensor's own.
        n: the number of positions.
        short: its shape with one position less; None: unknown.
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


def _behind(values: Iterable[Value], is_followed: Callable[[Value], bool]) -> list[Value]:
    """Return some values, and what they come from as long as it is followed."""
    found = list(values)
    seen = set(found)
    for value in found:  # which grows
        for parent in value.parents:
            if parent not in seen and is_followed(parent):
                seen.add(parent)
                found.append(parent)
    return found


def _origin(leak: Value, moves: dict[int, str]) -> Value:
    """Return the tensor in which positions are mixed before the leak: weights of attention, or a sum."""
    behind = _behind([leak], lambda value: value.call is not None and moves.get(id(value)) == "mixed")
    mixed = sorted(behind[1:], key=lambda value: value.index)
    weights = [each for each in mixed if each.name in SOFTMAXES]
    return weights[-1] if weights else (mixed or [leak])[0]


def line_of(value: Value) -> Line | None:
    """Find the line that computes a tensor."""
    place = value.place
    if place is None or place.file.startswith(OWN):  # a kernel that the audit itself calls
        return None
    return Line(place.file, place.line, place.text)
