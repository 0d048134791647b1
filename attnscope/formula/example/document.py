"""The document of the worked example: every number once, and whether the forms agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from attnscope.base.spelling import either, spelled
from attnscope.base.text import printable
from attnscope.base.units import shape_text
from attnscope.document.blocks import Block, Drawing, Table
from attnscope.document.columns import check_columns
from attnscope.document.html import rendered
from attnscope.document.pieces import pieces_of
from attnscope.document.styles import dims_pieces, shape_pieces
from attnscope.document.terminal import print_line
from attnscope.document.values import Shown
from attnscope.formula.example.result import WorkedExample
from attnscope.observe.document.document import heading
from attnscope.observe.document.numbers import matrices, numbers_text, print_numbers, values_of
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    import numpy as np

TOLERANCE = 1e-9
"""The relative difference up to which numbers are the same: the forms round differently."""

BESIDE = [("W_Q", "W_K", "W_V"), ("Q", "K", "V")]
"""Matrices that a terminal shows side by side."""


def document(example: WorkedExample) -> list[Block]:
    """Build the first form whole, and of the others what is new; each is compared with that by rows."""
    first = next(iter(example.forms.values()))
    blocks: list[Block] = []
    for trace in example.forms.values():
        blocks.append(FormDrawing(trace, first))
        if trace.checks:
            blocks.append(Table(check_columns(trace.checks), whole=True))
    return blocks


@dataclass(frozen=True)
class FormDrawing(Drawing):
    """A form of the example: its heading, and its numbers that the first form does not have."""

    trace: Trace
    first: Trace

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print the matrices below their names; those that belong together side by side."""
        of_trace = heading(self.trace)
        is_first = self.trace is self.first
        print_line(console, Text(("" if is_first else "\n\n") + of_trace.title, "bold"))
        for line in of_trace.about if is_first else same_numbers(self.trace, self.first):
            print_line(console, Text(line, "" if is_first else "dim"))
        print_numbers(self.trace, new_numbers(self.trace, self.first), console, beside=BESIDE)

    def html(self) -> str:
        """Return each matrix as a table, in a box beside the others."""
        of_trace = heading(self.trace)
        about, same = of_trace.about, []
        if self.trace is not self.first:
            about, same = [], same_numbers(self.trace, self.first)
        return rendered(
            HTML,
            heading=[printable(line) for line in [of_trace.title, *about]],
            same=[printable(line) for line in same],
            steps=list(self._steps()),
        )

    def markdown(self) -> list[str]:
        """Return each matrix as a block of code."""
        of_trace = heading(self.trace)
        about = of_trace.about
        if self.trace is not self.first:
            sentence, *lines = same_numbers(self.trace, self.first) or ["the same numbers as above"]
            about = [sentence, "\n".join(["```", *lines, "```"])] if lines else [sentence]
        numbers = new_numbers(self.trace, self.first)
        parts = [numbers_text(self.trace, numbers)] if numbers else []
        return [f"## {of_trace.title}", *about, *parts]

    def _steps(self) -> Iterator[dict[str, Any]]:
        """Yield what HTML shows of each step: its name, axes and expression, and its matrices."""
        values = new_numbers(self.trace, self.first)
        for step in self.trace.steps:
            if (
                step.name not in values or self.trace[step.name] is not step
            ):  # a later step has this name
                continue
            shown = values[step.name]
            blocks, left_out = matrices(shown, self.trace.sizes) if shown.array.size else ([], {})
            yield {
                "name": printable(step.name),
                "dims": dims_pieces(shown.dims),
                "shape": shape_pieces(shown.dims, shown.array.shape),
                "how": step.how if step.how == "input" else f"= {printable(step.how)}",
                "blocks": [[[pieces_of(cell) for cell in row] for row in block] for block in blocks],
                "left_out": left_out,
            }


HTML = """\
{% import "parts.html.j2" as parts %}
{{ parts.title(heading) }}
{% if same %}
<pre class="soft">{{ same | join("\\n") }}</pre>
{% endif %}
<div class="steps">
{% for step in steps %}
<div class="step"><p><span class="bold">{{ step.name }}</span> {{ parts.pieces(step.dims, " ") }} {{
  parts.pieces(step.shape, "×")
}}</p>
<p class="soft">{{ step.how }}</p>
{% for block in step.blocks %}
{% if loop.index0 in step.left_out %}
<p class="soft">… {{ step.left_out[loop.index0] }} more</p>
{% endif %}
<table class="matrix"><tbody>
{% for row in block %}
<tr>{% for cell in row %}<td>{{ parts.pieces(cell) }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table>
{% endfor %}
</div>
{% endfor %}
</div>
"""


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


def same_numbers(trace: Trace, first: Trace) -> list[str]:
    """Return lines about the steps of a form whose numbers are among those of the first form.

    Steps that are the same in both forms are left out. The first line says which option prints the
    form with its numbers: a flag of the command, or a keyword of the function.
    """
    new = new_numbers(trace, first)
    known = {(step.name, step.dims) for step in first.steps}
    steps = [
        step for step in trace.steps if step.name not in new and (step.name, step.dims) not in known
    ]
    query = trace.options.get("query")
    name, value = ("layout", "columns") if query is None else ("query", query)
    in_python = f"worked_example({spelled(name, value)}) shows"
    how = either(command_line=f"{spelled(name, value)} prints", python=in_python)
    lines = [f"the same numbers as above; {how} them in this form"] if steps else []
    cells = [(step.name, " ".join(step.dims or ()), shape_text(step.shape)) for step in steps]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for step, row in zip(steps, cells, strict=True):
        padded = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"  {padded}  {step.how if step.how == 'input' else f'= {step.how}'}")
    return lines


def _contains(array: np.ndarray, part: np.ndarray) -> bool:
    """Check whether a matrix, or its transpose, is this part, or has it as a row."""
    import numpy as np

    def same(one: np.ndarray, other: np.ndarray) -> bool:
        return one.shape == other.shape and np.allclose(one, other, TOLERANCE, TOLERANCE, equal_nan=True)

    if same(array, part) or same(array.T, part):
        return True
    row = part.ravel()
    return part.size == max(part.shape) and any(same(line, row) for line in array)
