"""The values of every step as matrices; of large ones, only the corners."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import isfinite, isnan, prod
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from attnscope.base.units import shape_text
from attnscope.document.blocks import Drawing
from attnscope.document.styles import GOOD, ORANGE, WRONG, dims_pieces, shape_pieces
from attnscope.document.text import READABLE, break_expression, joined, said_once, wrapped
from attnscope.document.values import Shown, select, shown_record
from attnscope.observe.trace import Step, Trace

if TYPE_CHECKING:
    import numpy as np

MOST = 12  # rows, or columns, of a matrix; if there are more, a mark replaces those in the middle
MATRICES = 4  # of a tensor, likewise
GAP = 2  # between two columns, and before the first
DECIMALS = 4
LARGE, SMALL = 1e6, 1e-2  # outside this range, a fixed number of decimals is too many or too few
BETWEEN = "…"
BELOW = "⋮"
CORNER = "⋱"

LETTERS = {"n_Q": "q", "n_K": "k", "n_past": "k", "n_new": "k", "embeddings": "x"}
"""The names of entries along an axis: q0, q1, … for queries, k0, k1, … for keys."""

Labels = list[tuple[int | None, Text]]  # the indices of an axis that are shown, and their names


@dataclass(frozen=True)
class Numbers(Drawing):
    """The values of every step, without the sentences that explain the steps."""

    trace: Trace

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print each step, followed by its values."""
        print_numbers(self._without_words(), values_of(self.trace), console)

    def markdown(self) -> list[str]:
        """Return a paragraph and a block of code for each step."""
        return [numbers_text(self._without_words(), values_of(self.trace))]

    def _without_words(self) -> Trace:
        return replace(self.trace, steps=[replace(step, why=None) for step in self.trace.steps])


def values_of(trace: Trace) -> dict[str, Shown]:
    """Return the values of every step of a trace, by name; its tensors must have been kept."""
    from attnscope.base.arrays import numbers

    shown = {}
    for step in trace.steps:
        array, dtype = step.stored()
        shown[step.name] = select(step.name, (), numbers(array, dtype), dtype, step.dims)
    return shown


def print_numbers(
    trace: Trace,
    values: Mapping[str, Shown],
    console: Console,
    *,
    beside: Sequence[tuple[str, ...]] = (),
) -> None:
    """Print each step of a trace, followed by its values.

    Args:
        values: the values of each step by its name; a step without values is left out.
        console: the console; piped output is as wide as necessary.
        beside: names of consecutive steps that are printed side by side where there is room.
    """
    width = console.width if console.is_terminal else None
    steps = [step for step, _ in _steps(trace, values)]
    names = [step.name for step in steps]
    why = dict(zip(names, said_once(names, [step.why or "" for step in steps]), strict=True))
    for group in _grouped(steps, beside):
        lines = _side_by_side(group, values, trace, width) if len(group) > 1 else []
        for step in group if not lines else ():
            numbers = _lines(step, values[step.name], values, trace, width and width - GAP)
            lines += [Text(), *_headline(step, values[step.name], width), *_why(why[step.name], width)]
            lines += [Text(" " * GAP).append_text(line) for line in numbers]
        for line in lines:
            console.print(line, soft_wrap=True)


def _grouped(steps: Iterable[Step], beside: Sequence[tuple[str, ...]]) -> list[list[Step]]:
    """Return the steps, those that stand side by side in one list."""
    groups: list[list[Step]] = []
    for step in steps:
        if groups and any({groups[-1][-1].name, step.name} <= set(names) for names in beside):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _why(sentence: str | None, width: int | None) -> list[Text]:
    """Return the lines of an explanation."""
    lines = wrapped(sentence or "", min(width, READABLE) - GAP if width else None)
    return [Text(" " * GAP + line, "dim italic") for line in lines]


def _side_by_side(
    steps: Sequence[Step], values: Mapping[str, Shown], trace: Trace, width: int | None
) -> list[Text]:
    """Return the lines of several steps side by side; none if they do not fit into the width.

    Explanations that differ in a matrix's letter only are given once.
    """
    heads, numbers = [], []
    for step in steps:
        shown = values[step.name]
        how = [] if step.how == "input" else [Text(f"  = {step.how}", "dim")]
        heads.append([Text("  ").join(_title(shown)), *how])
        matrix = _lines(step, shown, values, trace, None)
        numbers.append([Text(" " * GAP).append_text(line) for line in matrix])
    blocks = zip(heads, numbers, strict=True)
    widths = [max(line.cell_len for line in head + matrix) for head, matrix in blocks]
    if width is not None and sum(widths) + 2 * GAP * (len(widths) - 1) > width:
        return []
    sentences = {re.sub(r"_[QKV]\b", "", step.why or ""): step.why for step in reversed(steps)}
    why = [line for sentence in reversed(sentences.values()) for line in _why(sentence, width)]
    return [Text(), *_beside(heads, widths), *why, *_beside(numbers, widths)]


def _beside(blocks: Sequence[Sequence[Text]], widths: Sequence[int]) -> Iterator[Text]:
    """Yield the lines of blocks side by side, each block as wide as its width says."""
    for row in zip_longest(*blocks, fillvalue=Text()):
        line = Text()
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            line.append(" " * (2 * GAP if place else 0)).append_text(cell)
            line.append(" " * (width - cell.cell_len))
        line.rstrip()
        yield line


def numbers_text(trace: Trace, values: Mapping[str, Shown]) -> str:
    """Return the same as Markdown: a paragraph and a code block for each step."""
    parts = []
    for step, shown in _steps(trace, values):
        about = [f"**{shown.name}**", " ".join(shown.dims or ()), shape_text(shown.array.shape)]
        parts.append(" · ".join(part for part in [*about, f"`{step.how}`"] if part))
        parts += wrapped(step.why or "", None)
        lines = [line.plain for line in _lines(step, shown, values, trace, None)]
        parts.append("\n".join(["```", *lines, "```"]))
    return "\n\n".join(parts)


def numbers_record(trace: Trace) -> list[dict[str, Any]]:
    """Return the name, dims, shape, dtype and all values of each step, as in `shown_record`."""
    return [shown_record(shown) for _, shown in _steps(trace, values_of(trace))]


def _steps(trace: Trace, values: Mapping[str, Shown]) -> Iterator[tuple[Step, Shown]]:
    for step in trace.steps:
        if step.name in values and trace[step.name] is step:  # the last step of its name
            yield step, values[step.name]


def _title(shown: Shown) -> list[Text]:
    """Return the name, the dims and the shape of a tensor."""
    dims, shape = dims_pieces(shown.dims), shape_pieces(shown.dims, shown.array.shape)
    return [Text(shown.name, "bold"), joined(dims), joined(shape, "×")]


def _headline(step: Step, shown: Shown, width: int | None) -> Iterator[Text]:
    """Yield name, dims, shape and expression: on one line, if they fit."""
    how = step.how if step.how == "input" else f"= {step.how}"
    parts = _title(shown)
    parts += [Text(line, "dim") for line in (break_expression(how, width - GAP) if width else [how])]
    line = Text()
    for part in parts:
        if line and width is not None and line.cell_len + GAP + part.cell_len > width:
            yield line
            line = Text(" " * GAP)
        elif line and part:
            line.append(" " * GAP)
        line.append_text(part)
    yield line


def _lines(
    step: Step, shown: Shown, values: Mapping[str, Shown], trace: Trace, width: int | None
) -> Iterator[Text]:
    """Return the values of a step, or a line that names an earlier step with the same values."""
    import numpy as np

    source = values.get(step.same_as or "")
    if source is not None and np.array_equal(source.array, shown.array, equal_nan=True):
        return iter([Text(f"the same numbers as {step.same_as}", "dim")])
    if not shown.array.size:
        return iter([Text("no numbers", "dim")])
    return _matrices(shown, trace.sizes, width)


def _matrices(shown: Shown, sizes: Mapping[str, int], width: int | None) -> Iterator[Text]:
    """Yield the lines of a matrix over the last two axes for each index of the others."""
    for most in range(min(shown.array.shape[-1] if shown.array.ndim else 1, MOST), 0, -1):
        blocks, left_out = matrices(shown, sizes, most)
        cells_of_columns = zip(*(row for block in blocks for row in block), strict=True)
        widths = [max(cell.cell_len for cell in cells) for cells in cells_of_columns]
        if width is None or sum(widths) + GAP * len(widths[1:]) <= width:
            break
    for i, block in enumerate(blocks):
        if i in left_out:
            yield Text(f"{BETWEEN} {left_out[i]} more", "dim")
        for row in block:
            yield _aligned(row, widths)


Block = list[list[Text]]
"""A matrix as rows of cells; names of rows and columns are cells, too."""


def matrices(
    shown: Shown, sizes: Mapping[str, int], most: int = MOST
) -> tuple[list[Block], dict[int, int]]:
    """Return a matrix over the last two axes for each index of the others.

    Args:
        most: the most columns of a matrix.

    Returns:
        The matrices; and how many are left out before the one of an index.
    """
    import numpy as np

    array = np.atleast_2d(shown.array)  # a vector is a row
    dims = ("", "", *(shown.dims or ("",) * shown.array.ndim))[-array.ndim :]
    if shown.name == "X":  # embeddings are neither queries nor keys: Q, K and V are computed from them
        dims = tuple("embeddings" if axis in LETTERS else axis for axis in dims)
    *lead, n_rows, n_columns = array.shape
    picked = _picked(prod(lead), MATRICES)
    places = [tuple(map(int, np.unravel_index(i, lead))) for i in picked if i is not None]
    corners = [_label(place, dims) if len(places) > 1 else Text() for place in places]
    rows = _labels(dims[-2], _picked(n_rows, MOST), BELOW, sizes)
    columns = _labels(dims[-1], _picked(n_columns, most), BETWEEN, sizes)
    format_number = _number_format(
        array[place][i, j].item()
        for place in places
        for i, _ in rows
        for j in _picked(n_columns, MOST)
        if i is not None and j is not None
    )
    blocks = [
        _block(array[place], corner, rows, columns, format_number)
        for place, corner in zip(places, corners, strict=True)
    ]
    left_out = {picked.index(None): prod(lead) - len(places)} if None in picked else {}
    return blocks, left_out


def _picked(size: int, most: int) -> list[int | None]:
    """Return all indices of an axis, or the first and the last ones with None for those between."""
    if size <= most:
        return list(range(size))
    first = most // 2
    return [*range(first), None, *range(size - (most - 1 - first), size)]


def _labels(axis: str, picked: Iterable[int | None], mark: str, sizes: Mapping[str, int]) -> Labels:
    """Return indices with their names: q0, q1, … for queries; empty names for other axes."""
    letter = LETTERS.get(axis, "")
    start = sizes.get("n_past", 0) if axis == "n_new" else 0
    names = [mark if i is None else f"{letter}{start + i}" for i in picked]
    return [(i, Text(name if letter else "", "dim")) for i, name in zip(picked, names, strict=True)]


def _label(place: tuple[int, ...], dims: Sequence[str]) -> Text:
    """Return the index of a matrix in its tensor: `[0, 1]`."""
    index = joined(shape_pieces(dims[: len(place)], place), ", ")
    return Text.assemble(("[", "dim"), index, ("]", "dim"))


def _block(
    matrix: np.ndarray, corner: Text, rows: Labels, columns: Labels, format_number: Callable[[Any], Text]
) -> list[list[Text]]:
    """Return the cells of a matrix, including the names of its rows and columns."""

    def cell(row: int | None, column: int | None) -> Text:
        if row is None or column is None:
            return Text(BETWEEN if row is not None else BELOW if column is not None else CORNER, "dim")
        return format_number(matrix[row, column].item())

    head = [corner, *(name for _, name in columns)]
    body = [[name, *(cell(i, j) for j, _ in columns)] for i, name in rows]
    return [head, *body] if any(head) else body


def _aligned(row: list[Text], widths: list[int]) -> Text:
    """Join a row of cells: its name aligned left, its numbers aligned right in their columns."""
    name, *cells = row
    line = Text.assemble(name, " " * (widths[0] - name.cell_len))
    for cell, width in zip(cells, widths[1:], strict=True):
        line.append(" " * (GAP if line else 0) + " " * (width - cell.cell_len)).append_text(cell)
    line.rstrip()
    return line


def _number_format(values: Iterable[Any]) -> Callable[[Any], Text]:
    """Return a format for the numbers of one tensor that makes them easy to compare.

    Whole numbers have no decimals, others four decimals, or four significant digits if they are very
    large or small. Zero is written as `0`, which distinguishes it from small numbers.
    """
    finite = [abs(value) for value in values if isfinite(value)]
    whole = all(value == int(value) for value in finite)
    small = 0 < max(finite, default=0) < SMALL

    def format_number(value: Any) -> Text:
        if isinstance(value, bool):
            return Text("✓", GOOD) if value else Text("·", "dim")
        if not isfinite(value):
            return Text("NaN", WRONG) if isnan(value) else Text(f"{value}", ORANGE)
        if value == 0:
            return Text("0", "dim")
        if isinstance(value, int) or (whole and abs(value) < LARGE):
            return Text(f"{value:.0f}" if isinstance(value, float) else str(value))
        if small:
            return Text(f"{value:.3e}")
        return Text(f"{value:.4g}" if abs(value) >= LARGE else f"{value:.{DECIMALS}f}")

    return format_number
