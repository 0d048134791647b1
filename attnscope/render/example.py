"""Parts common to all views of the worked example: which numbers of a form are new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.observe.trace import Trace
from attnscope.render.values import Shown, values_of
from attnscope.units import shape_text

if TYPE_CHECKING:
    import numpy as np

TOLERANCE = 1e-9
"""The relative difference up to which numbers are the same: the forms round differently."""


def new_numbers(trace: Trace, first: Trace) -> dict[str, Shown]:
    """Return the values of the steps of a form that are not among those of the first form."""
    values = values_of(trace)
    if trace is first:
        return values
    known = [shown.array for shown in values_of(first).values()]
    return {
        name: shown
        for name, shown in values.items()
        if not any(_contains(array, shown.array) for array in known)
    }


def same_numbers(trace: Trace, first: Trace, *, python: bool = False) -> list[str]:
    """Return lines about the steps of a form whose numbers are among those of the first form.

    Steps that are the same in both forms are left out. The first line says which option prints the
    form with its numbers: a flag of the command, or a keyword of the function if `python`.
    """
    new = new_numbers(trace, first)
    known = {(step.name, step.dims) for step in first.steps}
    steps = [
        step for step in trace.steps if step.name not in new and (step.name, step.dims) not in known
    ]
    query = trace.options.get("query")
    name, value = ("layout", "columns") if query is None else ("query", query)
    how = f"worked_example({name}={value!r}) shows" if python else f"--{name} {value} prints"
    lines = [f"the same numbers as above; {how} them in this form"] if steps else []
    cells = [(step.name, " ".join(step.dims or ()), shape_text(step.shape)) for step in steps]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for step, row in zip(steps, cells, strict=True):
        padded = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"  {padded}  {step.how if step.how == 'input' else f'= {step.how}'}")
    return lines


def _contains(array: np.ndarray, part: np.ndarray) -> bool:
    """Return whether a matrix, or its transpose, is this part, or has it as a row."""
    import numpy as np

    def same(one: np.ndarray, other: np.ndarray) -> bool:
        return one.shape == other.shape and np.allclose(one, other, TOLERANCE, TOLERANCE, equal_nan=True)

    if same(array, part) or same(array.T, part):
        return True
    row = part.ravel()
    return part.size == max(part.shape) and any(same(line, row) for line in array)
