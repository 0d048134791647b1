"""Folding of the repeated steps of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnscope.observe.trace import Step

MAX_STEPS = 200
"""The maximal number of steps in a loop body that is folded."""


def fold_loops(steps: Sequence[Step]) -> list[Step]:
    """Replace identical iterations of each loop by a single one.

    Each step counts its iterations in `times`, and has the tensor of the last one. Nested loops
    are folded from the inside out.

    >>> from attnscope.observe.trace import Step
    >>> def step(name):
    ...     return Step(name, None, (2,), "float32", "…", 8)
    >>> [(s.name, s.times) for s in fold_loops([step(name) for name in "x ab ab ab y".replace(" ", "")])]
    [('x', 1), ('a', 3), ('b', 3), ('y', 1)]
    """
    result = list(steps)
    length = 1
    while length <= min(MAX_STEPS, len(result) // 2):
        once = _fold_bodies(result, length)
        length = length + 1 if len(once) == len(result) else 1
        result = once
    return result


def _fold_bodies(steps: list[Step], length: int) -> list[Step]:
    """Fold all loop bodies of one length."""
    keys = [_iteration_key(step) for step in steps]
    result: list[Step] = []
    start = 0
    while start < len(steps):
        body, end = keys[start : start + length], start + length
        while keys[end : end + length] == body and len(body) == length:
            end += length
        turns = (end - start) // length
        if turns > 1:
            last = steps[end - length : end]
            result += [
                replace(step, times=step.times * turns, tensor=latest.tensor)
                for step, latest in zip(steps[start : start + length], last, strict=True)
            ]
            start = end
        else:
            result.append(steps[start])
            start += 1
    return result


def _iteration_key(step: Step) -> tuple:
    """Collect what must be equal for two steps to count as the same iteration."""
    where = step.file, step.line, step.name, step.depth, step.times
    return (
        *where,
        step.dims,
        step.shape,
        step.dtype,
        step.bytes,
        step.flops,
        step.fresh_bytes,
        step.strides,
    )
