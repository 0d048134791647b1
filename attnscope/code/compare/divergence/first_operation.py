"""Finds the first operation of which all operands are equal on both sides, and the result is not.

Both tapes are walked back together from a tensor that differs, as long as both sides call the same
functions. Of a sum of which one term differs, the walk goes on into that term.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from attnscope.code.compare.divergence.first_difference import difference
from attnscope.code.compare.divergence.state import RoleTensors
from attnscope.observe.operators.tape import Value

MAX_OPERATIONS = 4
"""How many operations one after the other may be what only one side computes."""

COMMUTATIVE = {"add", "mul"}


@dataclass(frozen=True)
class Operations:
    """Where two sides begin to differ: the results of two operations."""

    a: Value
    b: Value
    #: The side that alone has its operation, `a` or `b`, whose operand is what the other side goes on
    #: with; None if both have one.
    only: str | None = None
    kept: Value | None = None
    #: The tensor of the role with one operation corrected, and that of the other side.
    corrected: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, side: str) -> Value:
        """Return the result on a side."""
        return self.a if side == "a" else self.b


def first_operations(
    a: RoleTensors, b: RoleTensors, role: str, tolerance: float = 0.0
) -> Operations | None:
    """Find where the tensors of a role begin to differ.

    That is unknown if both sides do not call the same functions up to there, or if the correction of
    that one operation does not correct the tensor.
    """
    end = role.removesuffix("_split")  # what is split is what a projection returned, before anything
    values = [each.anatomy.roles.get(end) for each in (a, b)]
    if values[0] is None or values[1] is None:
        return None
    walk = _Walk(a, b, tolerance)
    found = walk.first(values[0].value, values[1].value)
    while found is not None:
        both = _corrected(a, b, end, found)
        if both is not None and difference(*both, tolerance).is_equal:
            return replace(found, corrected=both)
        found = walk.users_of(found)
    return None


def first_between(
    a: RoleTensors, b: RoleTensors, values: tuple[Value, Value], tolerance: float = 0.0
) -> Operations | None:
    """Find where a value of each side begins to differ; None if that is not known."""
    return _Walk(a, b, tolerance).first(*values)


class _Walk:
    """The walk back on both tapes."""

    def __init__(self, a: RoleTensors, b: RoleTensors, tolerance: float) -> None:
        self.a, self.b, self.tolerance = a, b, tolerance
        self.visited: set[tuple[Value, Value]] = set()
        self.users: dict[tuple[Value, Value], tuple[Value, Value] | None] = {}

    def first(self, x: Value, y: Value, users: tuple[Value, Value] | None = None) -> Operations | None:
        """Return the first operations before two values that differ; None if these were visited.

        `users` are the results that are computed from them.
        """
        if (x, y) in self.visited:
            return None
        self.visited.add((x, y))
        self.users[x, y] = users
        if x.call is None or y.call is None:
            return self._only(x, y, users) or (None if users is None else Operations(*users))
        if x.name != y.name or len(x.parents) != len(y.parents):
            return self._only(x, y, users) or Operations(x, y)
        before = [pair for pair in self._pairs(x, y) if not self.is_same(*pair)]
        found = [each for pair in before if (each := self.first(*pair, (x, y))) is not None]
        if before:
            return min(found, key=lambda each: each.b.index, default=None)
        return Operations(x, y)

    def users_of(self, found: Operations) -> Operations | None:
        """Return the operations behind those whose correction fails; None if the next may not be named.

        What other operations use, too, may be right there: a constant, or what only one side computes. A
        tensor of another shape takes no other's place.
        """
        users = self.users.get((found.a, found.b))
        are_constants = not found.a.parents and not found.b.parents
        is_other = are_constants or found.only or found.a.tensor.shape != found.b.tensor.shape
        return Operations(*users) if users is not None and is_other else None

    def _pairs(self, x: Value, y: Value) -> Iterator[tuple[Value, Value]]:
        """Yield the operands of both, those that are equal with each other where the order is free."""
        ours, theirs = list(x.parents), list(y.parents)
        if x.name in COMMUTATIVE and len(ours) == 2:
            straight, crosswise = (
                any(self.is_same(*pair) for pair in zip(ours, order, strict=True))
                for order in (theirs, theirs[::-1])
            )
            theirs = theirs[::-1] if crosswise and not straight else theirs
        yield from zip(ours, theirs, strict=True)

    def _only(self, x: Value, y: Value, users: tuple[Value, Value] | None) -> Operations | None:
        """Return what only one side computes, in a few operations, from the other side's tensor."""
        of_a, of_b = users or (x, y)
        found = None
        if (operand := next((each for each in _before(x) if self.is_same(each, y)), None)) is not None:
            found = Operations(x, of_b, "a", operand)
        elif (operand := next((each for each in _before(y) if self.is_same(x, each)), None)) is not None:
            found = Operations(of_a, y, "b", operand)
        if found is not None:
            self.users[found.a, found.b] = users
        return found

    def is_same(self, x: Value, y: Value) -> bool:
        """Check whether a tensor of a and one of b are equal."""
        return difference(self.a.current(x), self.b.current(y), self.tolerance).is_equal


def _before(value: Value) -> Iterator[Value]:
    """Yield what a tensor is computed from in a few operations, the nearest first."""
    values = [value]
    for _ in range(MAX_OPERATIONS):
        values = list(dict.fromkeys(parent for each in values for parent in each.parents))
        yield from values


def _corrected(
    a: RoleTensors, b: RoleTensors, role: str, found: Operations
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the tensor of a role with one operation corrected, and that of the other side."""
    wrong, right, value, source = b, a, found.b, found.a
    if found.only == "a":
        wrong, right, value = a, b, found.a
    state = right
    if found.kept is not None:
        state, source = wrong, found.kept
    new = state.current(source)
    one = None if new.shape != value.tensor.shape else wrong.corrected({value: new}, role)
    two = right.tensor(role)
    return None if one is None or two is None else (one, two)
