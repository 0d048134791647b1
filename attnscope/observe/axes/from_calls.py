"""Names of axes from how sizes change from call to call.

Where an operator hides the origin of an axis, several calls may tell: an axis that has the size of `T`
in each of them, while `T` changes, is `T`. Only axes of the call's arguments lend their names, because
they are what a program changes; and only if one of them alone has these sizes, with a name or without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from attnscope.observe.trace import Step

Key = tuple[str | None, int | None, str, int]
"""A step's file, line and name, and how often it has occurred."""

Sizes = tuple[int, ...]
"""The size of an axis in each call."""


def name_by_changes(calls: Sequence[Sequence[Step]]) -> None:
    """Name axes without a name that change as an axis of an argument does.

    Args:
        calls: the steps of each call.
    """
    by_key = [dict(zip(_keys(steps), steps, strict=True)) for steps in calls]
    rows = [
        [steps[key] for steps in by_key]
        for key in (by_key[0] if by_key else ())
        if all(key in steps and steps[key].dims for steps in by_key)
    ]
    names: dict[Sizes, set[str]] = {}  # of the arguments' axes
    for steps in rows:
        if _is_argument(steps[0]):
            for sizes, words in _axes(steps):
                names.setdefault(sizes, set()).update(words)
    for steps in rows:
        for axis, (sizes, words) in enumerate(_axes(steps)):
            known = names.get(sizes, set())
            unnamed = all(word.isdigit() for word in words) and not _is_argument(steps[0])
            if len(set(sizes)) > 1 and unnamed and len(known) == 1 and not next(iter(known)).isdigit():
                for step in steps:
                    dims = [*(step.dims or ())]
                    dims[axis : axis + 1] = known
                    step.dims = tuple(dims)


def _keys(steps: Sequence[Step]) -> Iterator[Key]:
    counts: Counter[tuple[str | None, int | None, str]] = Counter()
    for step in steps:
        place = step.file, step.line, step.name
        counts[place] += 1
        yield *place, counts[place]


def _is_argument(step: Step) -> bool:
    """Check whether a step is an argument of the call."""
    return step.how == "input" and step.depth == 0


def _axes(steps: Sequence[Step]) -> Iterator[tuple[Sizes, set[str]]]:
    """Yield the sizes of each axis of a tensor in all calls, and its names; none if they differ."""
    if len({len(step.shape) for step in steps}) == 1:
        dims = zip(*(step.dims or () for step in steps), strict=True)
        for sizes, words in zip(zip(*(step.shape for step in steps), strict=True), dims, strict=True):
            yield sizes, set(words)
