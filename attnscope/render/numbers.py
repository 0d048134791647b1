"""Every number of every step: each matrix as rows and columns, the large ones by their corners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan, prod
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from attnscope.render.columns import dims_pieces, shape_pieces
from attnscope.render.text import READABLE, break_expression, joined, shape_text, wrapped
from attnscope.render.values import Shown, shown_record
from attnscope.results.trace import Step, Trace

if TYPE_CHECKING:
    import numpy as np

MOST = 12  # rows, or columns, of a matrix; where there are more, a mark stands for those between
MATRICES = 4  # of a tensor, likewise
GAP = 2  # between two columns, and before the first
DECIMALS = 4
LARGE, SMALL = 1e6, 1e-2  # beyond them, decimals say too much or too little
BETWEEN = "…"
BELOW = "⋮"
CORNER = "⋱"

LETTERS = {"n_Q": "q", "n_K": "k", "n_past": "k", "n_new": "k", "embeddings": "x"}
"""What the entries of an axis are called: q0, q1, … for queries, k0, k1, … for keys."""

Named = list[tuple[int | None, Text]]  # the indices of an axis that are shown, and their names


def print_numbers(trace: Trace, values: Mapping[str, Shown], console: Console) -> None:
    """Print each step of a trace, and below it its numbers.

    Args:
        trace: whose steps; their `why` is printed where it is there.
        values: each step's values, by its name; a step without any is left out.
        console: where; piped output is as wide as it needs to be.
    """
    width = console.width if console.is_terminal else None
    for step, shown in _steps(trace, values):
        why = [
            Text(" " * GAP + line, "dim italic")
            for line in wrapped(step.why or "", min(width, READABLE) - GAP if width else None)
        ]
        numbers = _lines(step, shown, values, trace, width and width - GAP)
        lines = [Text(), *_headline(step, shown, width), *why]
        lines += [Text(" " * GAP).append_text(line) for line in numbers]
        for line in lines:
            console.print(line, soft_wrap=True)


def numbers_text(trace: Trace, values: Mapping[str, Shown]) -> str:
    """The same as Markdown: a paragraph and a block for each step."""
    parts = []
    for step, shown in _steps(trace, values):
        about = [f"**{shown.name}**", " ".join(shown.dims or ()), shape_text(shown.array.shape)]
        parts.append(" · ".join(part for part in [*about, f"`{step.how}`"] if part))
        parts += wrapped(step.why or "", None)
        lines = [line.plain for line in _lines(step, shown, values, trace, None)]
        parts.append("\n".join(["```", *lines, "```"]))
    return "\n\n".join(parts)


def numbers_record(trace: Trace, values: Mapping[str, Shown]) -> list[dict[str, Any]]:
    """Each step's name, dims, shape, dtype and all its values, as `shown_record` has them."""
    return [shown_record(shown) for _, shown in _steps(trace, values)]


def _steps(trace: Trace, values: Mapping[str, Shown]) -> Iterator[tuple[Step, Shown]]:
    for step in trace.steps:
        if step.name in values and trace[step.name] is step:  # the last one of its name
            yield step, values[step.name]


def _headline(step: Step, shown: Shown, width: int | None) -> Iterator[Text]:
    """Name, dims, shape and expression: on one line, if there is room."""
    dims, shape = dims_pieces(shown.dims), shape_pieces(shown.dims, shown.array.shape)
    how = step.how if step.how == "input" else f"= {step.how}"
    parts = [Text(shown.name, "bold"), joined(dims), joined(shape, "×")]
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
    """The numbers of a step; where they are those of another one, that is said instead."""
    import numpy as np

    source = values.get(step.same_as or "")
    if source is not None and np.array_equal(source.array, shown.array, equal_nan=True):
        return iter([Text(f"the same numbers as {step.same_as}", "dim")])
    if not shown.array.size:
        return iter([Text("no numbers", "dim")])
    return _matrices(shown, trace.sizes, width)


def _matrices(shown: Shown, sizes: Mapping[str, int], width: int | None) -> Iterator[Text]:
    """A tensor's last two axes as matrices, one for each index of the others, in the same columns."""
    import numpy as np

    array = np.atleast_2d(shown.array)  # a vector is a row
    dims = ("", "", *(shown.dims or ("",) * shown.array.ndim))[-array.ndim :]
    if shown.name == "X":  # embeddings are of no query and of no key: the three are made of them
        dims = tuple("embeddings" if axis in LETTERS else axis for axis in dims)
    *lead, n_rows, n_columns = array.shape
    picked = _picked(prod(lead), MATRICES)
    places = [tuple(map(int, np.unravel_index(i, lead))) for i in picked if i is not None]
    corners = [_label(place, dims) if len(places) > 1 else Text() for place in places]
    rows = _named(dims[-2], _picked(n_rows, MOST), BELOW, sizes)
    spelled = _spelling(
        array[place][i, j].item()
        for place in places
        for i, _ in rows
        for j in _picked(n_columns, MOST)
        if i is not None and j is not None
    )
    for most in range(min(n_columns, MOST), 0, -1):
        columns = _named(dims[-1], _picked(n_columns, most), BETWEEN, sizes)
        blocks = [
            _block(array[place], corner, rows, columns, spelled)
            for place, corner in zip(places, corners, strict=True)
        ]
        cells_of_columns = zip(*(row for block in blocks for row in block), strict=True)
        widths = [max(cell.cell_len for cell in cells) for cells in cells_of_columns]
        if width is None or sum(widths) + GAP * len(widths[1:]) <= width:
            break
    for i, block in enumerate(blocks):
        if None in picked and i == picked.index(None):
            yield Text(f"{BETWEEN} {prod(lead) - len(places)} more", "dim")
        for row in block:
            yield _aligned(row, widths)


def _picked(size: int, most: int) -> list[int | None]:
    """All indices of an axis, or the first and the last ones with None for those between."""
    if size <= most:
        return list(range(size))
    first = most // 2
    return [*range(first), None, *range(size - (most - 1 - first), size)]


def _named(axis: str, picked: Iterable[int | None], mark: str, sizes: Mapping[str, int]) -> Named:
    """Indices with their names: q0, q1, … for queries; none where an axis' entries have no names."""
    letter = LETTERS.get(axis, "")
    start = sizes.get("n_past", 0) if axis == "n_new" else 0
    names = [mark if i is None else f"{letter}{start + i}" for i in picked]
    return [(i, Text(name if letter else "", "dim")) for i, name in zip(picked, names, strict=True)]


def _label(place: tuple[int, ...], dims: Sequence[str]) -> Text:
    """The index of a matrix in its tensor: `[0, 1]`."""
    index = joined(shape_pieces(dims[: len(place)], place), ", ")
    return Text.assemble(("[", "dim"), index, ("]", "dim"))


def _block(
    matrix: np.ndarray, corner: Text, rows: Named, columns: Named, spelled: Callable[[Any], Text]
) -> list[list[Text]]:
    """The cells of a matrix, under its columns' names and after its rows'."""

    def cell(row: int | None, column: int | None) -> Text:
        if row is None or column is None:
            return Text(BETWEEN if row is not None else BELOW if column is not None else CORNER, "dim")
        return spelled(matrix[row, column].item())

    head = [corner, *(name for _, name in columns)]
    body = [[name, *(cell(i, j) for j, _ in columns)] for i, name in rows]
    return [head, *body] if any(head) else body


def _aligned(row: list[Text], widths: list[int]) -> Text:
    """A row of cells: its name at the left, its numbers at the right of their columns."""
    name, *cells = row
    line = Text.assemble(name, " " * (widths[0] - name.cell_len))
    for cell, width in zip(cells, widths[1:], strict=True):
        line.append(" " * (GAP if line else 0) + " " * (width - cell.cell_len)).append_text(cell)
    line.rstrip()
    return line


def _spelling(values: Iterable[Any]) -> Callable[[Any], Text]:
    """How the numbers of a tensor are written, so that they can be compared at a glance.

    Whole ones have no decimals, others four; where that says too little or too much, they have
    four digits. Zero is written as such, so that what is merely small can be told from it.

    Args:
        values: the numbers that will be seen.
    """
    finite = [abs(value) for value in values if isfinite(value)]
    whole = all(value == int(value) for value in finite)
    small = 0 < max(finite, default=0) < SMALL

    def spelled(value: Any) -> Text:
        if isinstance(value, bool):
            return Text("✓", "green") if value else Text("·", "dim")
        if not isfinite(value):
            return Text("NaN", "bold red") if isnan(value) else Text(f"{value}", "yellow")
        if value == 0:
            return Text("0", "dim")
        if isinstance(value, int) or (whole and abs(value) < LARGE):
            return Text(f"{value:.0f}" if isinstance(value, float) else str(value))
        if small:
            return Text(f"{value:.3e}")
        return Text(f"{value:.4g}" if abs(value) >= LARGE else f"{value:.{DECIMALS}f}")

    return spelled
