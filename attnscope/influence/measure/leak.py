"""Find the line where positions begin to influence positions that they should not.

Both runs of the code are recorded on tapes, which are compared tensor by tensor. A tensor with one axis
of positions leaks if it moves at a position that should not move. What it comes from and has no such
axis, or two (as scores have), is followed backwards: a sum over all positions, the weights of attention.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import torch

import attnscope
from attnscope.comparison.anatomy.tape import Tape, Value
from attnscope.influence.measure.moved import EXACT, relative
from attnscope.results.audit import Line

OWN = os.path.dirname(attnscope.__file__) + os.sep
"""The folder of attnscope's own code."""

LIMIT = 2**31
"""The bytes that a tape may take."""


def first_leak(call: Callable[[bool], Any], n: int, still: Collection[int]) -> Line | None:
    """Return where the first tensor is computed that moves at a position that should not.

    Args:
        call: runs the code; its argument says whether with the changed input.
        n: the number of positions; axes of that size are axes of positions.
        still: the positions that should not move.

    Returns:
        The line; None if the two runs differ in what they call, or nothing leaks.
    """
    tapes = []
    for changed in (False, True):
        tape = Tape(limit=LIMIT, exact=True)
        with tape:
            call(changed)
        tapes.append(tape)
    before, after = (tape.values for tape in tapes)
    if [each.name for each in before] != [each.name for each in after]:
        return None
    rows = torch.tensor(sorted(still))
    moves = {
        id(one): _moves(one.tensor, other.tensor, n, rows)
        for one, other in zip(before, after, strict=True)
    }
    leak = next((each for each in before if moves[id(each)] == "leaks" and each.call is not None), None)
    return None if leak is None else _line(_origin(leak, moves))


def _moves(before: torch.Tensor, after: torch.Tensor, n: int, still: torch.Tensor) -> str:
    """Return whether a tensor `leaks`, is `mixed` (without one axis of positions), or is `clean`."""
    if before.shape != after.shape or not before.is_floating_point():
        return "clean"
    axes = [axis for axis, size in enumerate(before.shape) if size == n]
    if len(axes) != 1:
        return "clean" if torch.equal(before, after) else "mixed"
    first, second = (each.movedim(axes[0], 0).reshape(n, -1) for each in (before, after))
    gaps = relative(first, second)[still.to(first.device)]
    return "leaks" if bool((gaps > EXACT).any()) else "clean"


def _origin(leak: Value, moves: dict[int, str]) -> Value:
    """Return the tensor in which positions are mixed before the leak: weights of attention, or a sum."""
    mixed: list[Value] = []
    left = [leak]
    while left:
        for parent in left.pop().parents:
            is_new = parent.call is not None and parent not in mixed
            if is_new and moves.get(id(parent)) == "mixed":
                mixed.append(parent)
                left.append(parent)
    mixed.sort(key=lambda value: value.index)
    weights = [each for each in mixed if each.name in ("softmax", "log_softmax")]
    return weights[-1] if weights else (mixed or [leak])[0]


def _line(value: Value) -> Line | None:
    """Return where a tensor is computed."""
    place = value.place
    if place is None or place.file.startswith(OWN):  # a kernel that the audit itself calls
        return None
    return Line(place.file, place.line, place.text)
