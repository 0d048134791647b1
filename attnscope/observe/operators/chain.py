"""The way from the product Q·Kᵀ to attention: scores, masked scores, softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from attnscope.observe.operators.follow import MOVES, Elements
from attnscope.observe.operators.tape import TorchCall, Value

MASKS = {"masked_fill", "where", "setitem", "masked_scatter", "index_put"}


def scores_of(
    raw: Value, softmax: Value, places: Mapping[Value, Elements]
) -> Iterator[tuple[str, Value]]:
    """Yield the tensors between a product and its softmax, by role."""
    way = way_between(raw, softmax, places)
    before = _before_softmax(way, softmax)
    masked = way[: way.index(before) + 1]
    first_mask = next((i for i, each in enumerate(masked) if i and _is_mask(each)), len(masked))
    scores = masked[first_mask - 1]
    yield "scores", scores
    if before is not scores:
        yield "scores_masked", before
    yield "attention", softmax


def first_not_finite(output: Value) -> tuple[Value, Value, bool]:
    """Find where the first number arises that is not finite, of those that reach an output.

    Args:
        output: a tensor with NaN, or else with infinity.

    Returns:
        The tensor; one that is computed from it, or itself; and whether NaN is what was followed.
    """
    is_nan = bool(output.tensor.isnan().any())
    is_wrong = torch.isnan if is_nan else torch.isinf
    first = user = output
    left, found = [output], {output}
    while left:
        value = left.pop()
        for parent in value.parents:
            if parent not in found and bool(is_wrong(parent.tensor).any()):
                found.add(parent)
                left.append(parent)
                if parent.index < first.index:
                    first, user = parent, value
    return first, user, is_nan


def way_between(raw: Value, end: Value, places: Mapping[Value, Elements]) -> list[Value]:
    """Return the tensors from one to another that hold its elements, in order."""
    way = [end]
    while way[-1] is not raw:
        before = next((each for each in way[-1].parents if each in places), None)
        if before is None:
            break
        way.append(before)
    return way[::-1]


CASTS = {"to", "half", "float", "double", "bfloat16", "type", "type_as"}
LAYOUT = (
    MOVES - {"repeat", "repeat_interleave", "expand", "tile", "cat", "stack"}
    | CASTS
    | {"contiguous", "clone"}
)
"""Functions that only arrange elements otherwise."""


def site_of_split(way: list[Value]) -> Value:
    """Return the tensor that is split into heads: the last before anything but views and copies."""
    n = next((i for i, each in enumerate(way) if i and each.name not in LAYOUT), len(way))
    return _assigned(way[1:n]) or way[n - 1]


def site_of_operand(way: list[Value]) -> Value:
    """Return the tensor that enters a product, before it is only arranged or scaled for that."""
    changes = [each for each in way[1:] if each.name not in LAYOUT and _multiplier(each) is None]
    return changes[-1] if changes else _assigned(way[1:]) or way[-1]


def site_of_scale(ways: Iterable[list[Value]]) -> Value | None:
    """Return the last tensor on some ways that is multiplied or divided by a number; None if none is."""
    scaled = [each for way in ways for each in way[1:] if _multiplier(each) is not None]
    return scaled[-1] if scaled else None


def number_on(way: list[Value]) -> float:
    """Return the product of the numbers by which a tensor is multiplied on a way."""
    product = 1.0
    for each in way[1:]:
        product *= _multiplier(each) or 1.0
    return product


def number_after(way: list[Value]) -> float:
    """Return the product of the numbers by which scores are multiplied after a mask.

    Args:
        way: from the scores to what the softmax receives. Anything else on it than masks, numbers and
            views ends the search, with 1.
    """
    known = {*MASKS, *LAYOUT, "add", "sub"}
    others = [each for each in way[1:] if each.name not in known and _multiplier(each) is None]
    return 1.0 if others else number_on(way)


def _multiplier(value: Value) -> float | None:
    """Return the number by which a call multiplies a tensor; None if it does something else."""
    call = value.call
    if call is None or call.name not in ("mul", "div") or len(call.args) != 2:
        return None
    first, second = (_number(each) for each in call.args)
    if call.name == "div":
        return 1 / second if first is None and second else None
    return second if first is None else first


def _number(argument: object) -> float | None:
    """Return an argument that is a number, or a tensor of one element."""
    if isinstance(argument, int | float):
        return float(argument)
    if isinstance(argument, Value) and argument.tensor.numel() == 1:
        return None if argument.tensor.is_complex() else float(argument.tensor)
    return None


def _assigned(way: list[Value]) -> Value | None:
    """Return the last tensor that has a name; None if none has."""
    named = [each for each in way if each.place is not None and each.place.variable is not None]
    return named[-1] if named else None


def _before_softmax(way: list[Value], softmax: Value) -> Value:
    """Return the last tensor that is not part of the softmax itself, which may be written out.

    A cast to another dtype is part of it.
    """
    end = way.index(softmax)
    if softmax.name != "softmax":
        end = next(i for i, each in enumerate(way) if each.name == "exp")
        if way[end - 1].name == "sub" and _is_maximum(way[end - 1]):
            end -= 1
    while end > 1 and way[end - 1].name in CASTS:
        end -= 1
    return way[end - 1]


def _is_maximum(difference: Value) -> bool:
    """Check whether a maximum, or the logarithm of a sum of exponentials, is subtracted."""
    other = difference.parents[-1]
    names = {other.name, *(each.name for each in other.parents)}
    return bool(names & {"max", "amax", "logsumexp"})


def _is_mask(value: Value) -> bool:
    """Check whether a call adds something to scores, or replaces some, position by position."""
    if value.name in MASKS:
        return True
    others = [each for each in value.parents[1:] if each.tensor.ndim >= 2 and each.tensor.numel() > 1]
    return value.name in ("add", "sub", "mul", "cat", "concat", "baddbmm") and bool(others)


def calls_before(
    value: Value, *, through: Callable[[TorchCall], bool] = lambda call: True
) -> Iterator[TorchCall]:
    """Yield the calls that a tensor comes from, the nearest first of each argument, each once.

    Args:
        through: whether to go on behind a call.
    """
    visited: set[TorchCall] = set()
    left = [value.call]
    while left:
        call = left.pop()
        if call is None or call in visited:
            continue
        visited.add(call)
        yield call
        if through(call):
            left += [parent.call for parent in reversed(call.parents)]
