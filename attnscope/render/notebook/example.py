"""The worked example as matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnscope.document.axes import dims_pieces, shape_pieces
from attnscope.document.columns import Column, check_columns
from attnscope.document.pieces import Piece, pieces_of, shown_columns
from attnscope.observe.trace import Trace
from attnscope.render.example import new_numbers, same_numbers
from attnscope.render.heading import heading
from attnscope.render.numbers import matrices
from attnscope.render.values import Shown
from attnscope.text import printable
from attnscope.textbook.example.result import WorkedExample


@dataclass(frozen=True)
class StepView:
    """A step for the template: name, axes, sizes, expression, and its matrices as rows of cells."""

    name: str
    dims: list[Piece]
    shape: list[Piece]
    how: str
    blocks: list[list[list[list[Piece]]]]
    left_out: dict[int, int]


@dataclass(frozen=True)
class FormView:
    """A form for the template: its heading, what it repeats, its new steps, and its comparison."""

    heading: list[str]
    same: list[str]
    steps: list[StepView]
    checks: list[Column]


def forms(example: WorkedExample) -> list[FormView]:
    """Return the first form whole, and of the others what is new."""
    first = next(iter(example.forms.values()))
    return [
        FormView(
            [printable(line) for line in heading(trace)[: None if trace is first else 1]],
            []
            if trace is first
            else [printable(line) for line in same_numbers(trace, first, python=True)],
            list(_steps(trace, new_numbers(trace, first))),
            shown_columns(check_columns(trace.checks or [])),
        )
        for trace in example.forms.values()
    ]


def _steps(trace: Trace, values: dict[str, Shown]) -> Iterator[StepView]:
    for step in trace.steps:
        if step.name not in values or trace[step.name] is not step:  # a later step has this name
            continue
        shown = values[step.name]
        blocks, left_out = matrices(shown, trace.sizes) if shown.array.size else ([], {})
        yield StepView(
            printable(step.name),
            dims_pieces(shown.dims),
            shape_pieces(shown.dims, shown.array.shape),
            step.how if step.how == "input" else f"= {printable(step.how)}",
            [[[pieces_of(cell) for cell in row] for row in block] for block in blocks],
            left_out,
        )
