"""The memory for showing and writing values, in addition to the values themselves."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.observe.trace import Trace

PER_VALUE_IN_JSON = 110
"""Bytes of a number while a JSON document is written: a Python float, twice in lists, and its text."""


def bytes_to_save(plan: Trace) -> int:
    """Return the bytes for writing all tensors of a plan: those not contiguous are copied."""
    return sum(step.bytes for step in plan.steps if not step.contiguous)


def bytes_to_show(plan: Trace, values: Sequence[tuple[str, int]], *, json: bool) -> int:
    """Return the bytes for showing values of a plan.

    Args:
        plan: the plan of the run.
        values: for each step shown, its name and the number of its values.
        json: they are shown in a JSON document, every one of them.
    """
    shown = 0
    for name, n in values:
        if json:
            shown += PER_VALUE_IN_JSON * n
        if plan[name].dtype in ("bfloat16", "float16"):
            shown += 4 * n
    if any(plan[name].dtype == "bfloat16" for name, _ in values):
        shown += 4 * max(n for _, n in values)
    return shown
