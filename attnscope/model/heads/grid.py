"""Metrics of heads as grids: a row for each layer, a column for each head; and these on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, isnan
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from attnscope.document.grid.colours import ColourScale, pixel_lines, print_picture_line
from attnscope.document.grid.matrix import side_by_side
from attnscope.document.grid.overview import HEAD, HEAD_STYLE, LAYER
from attnscope.document.grid.pooling import chunks
from attnscope.document.terminal import print_line
from attnscope.model.heads.ranking import NumberFormat, is_known, several_stacks
from attnscope.model.heads.result import HeadMetrics, HeadRow, head_name

if TYPE_CHECKING:
    import numpy as np

DIGITS = 2  # of a grid's largest value
SQUARE = 2  # characters side by side that form a square
GAP = 3  # between two small grids
NARROWEST, NARROWEST_SIGNED = 24, 28  # characters of a small grid's title
MOST_LINES = 12  # of a small grid; with colours, more layers share lines
MOST_ROWS = 60  # of a large grid, likewise
EVERY = 5  # columns between the numbers of heads, if they do not all fit


@dataclass(frozen=True)
class Grid:
    """One metric of the heads of one stack."""

    metric: str
    #: the indices of rows and columns
    layers: list[int]
    heads: list[int]
    values: np.ndarray  #: `layers heads`; NaN if there is no such head, or it has no value
    text: NumberFormat  #: formats a value
    signed: bool = False  #: whether values below 0 are as strong as those above
    without: str = "no value"  #: what an entry has that is missing

    @classmethod
    def of(cls, table: HeadMetrics, rows: list[HeadRow], metric: str) -> Grid:
        """Arrange heads of one stack in a grid."""
        import numpy as np

        layers, heads = sorted({row.layer for row in rows}), sorted({row.head for row in rows})
        values = np.full((len(layers), len(heads)), np.nan)
        for row in rows:
            if is_known(value := table.drawn(row, metric)):
                values[layers.index(row.layer), heads.index(row.head)] = value
        known = [value for row in rows if is_known(value := table.drawn(row, metric))]
        signed = table.signed
        whole = table.powers and all(isinstance(value, int) for value in known)
        text = NumberFormat(0) if whole else NumberFormat.of(table, known, digits=DIGITS)
        return cls(metric, layers, heads, values, text, signed, table.without)

    @property
    def missing(self) -> int:
        """The number of entries without a value."""
        return sum(map(isnan, self.values.flat))

    @property
    def is_empty(self) -> bool:
        """Whether no entry has a value."""
        return self.missing == self.values.size

    def clean(self, values: np.ndarray) -> np.ndarray:
        """Replace NaN by 0, and negative values if the scale begins there."""
        import numpy as np

        known = np.nan_to_num(values)
        return known if self.signed else np.maximum(known, 0.0)

    def range(self, dash: str = "–") -> str:
        """Format the smallest and the largest value as a range."""
        import numpy as np

        between = " to " if self.signed else dash
        return f"{self.text(np.nanmin(self.values))}{between}{self.text(np.nanmax(self.values))}"

    def leader(self) -> str:
        """Name the head with the largest value, or the strongest, the first of equals."""
        import numpy as np

        sizes = np.abs(self.values) if self.signed else self.values
        layer, head = np.unravel_index(np.nanargmax(sizes), self.values.shape)
        value = self.text(self.values[layer, head])
        which = "strongest" if self.signed else "largest"
        return f"{which} {value} in {head_name(self.layers[layer], self.heads[head])}"


def by_stack(table: HeadMetrics) -> dict[str, list[HeadRow]]:
    """Group heads by stack, in the order of the stacks; stacks without heads are left out."""
    rows = {stack: [row for row in table.rows if row.stack == stack] for stack in table.layers}
    return {stack: own for stack, own in rows.items() if own}


# On a terminal.


def print_grids(table: HeadMetrics, console: Console, metrics: Sequence[str]) -> None:
    """Print a grid for each metric and stack, each on its own scale from 0 to its largest value.

    Several metrics become small grids side by side. A single one becomes a large grid, labelled with
    layers and heads, and with values in its cells if they fit.
    """
    for stack, rows in by_stack(table).items():
        print_line(console, Text())
        if several_stacks(table):
            print_line(console, Text(f"{stack} attention", "bold"))
        grids = [Grid.of(table, rows, metric) for metric in metrics]
        shown = [grid for grid in grids if not grid.is_empty]
        if len(grids) > 1 and shown:
            _print_small(shown, console)
        elif shown:
            _print_large(shown[0], console)
        if empty := [grid.metric for grid in grids if grid.is_empty]:
            print_line(console, Text(f"no head has a value: {', '.join(empty)}", "dim"))


def _print_large(grid: Grid, console: Console) -> None:
    """Print one metric as large as possible."""
    scale = ColourScale.of(console, grid.values, signed=grid.signed)
    for line in _title(grid, scale):
        print_line(console, line)
    indent = max(len(HEAD), len(str(grid.layers[-1]))) + 1
    room = max(1, console.width - indent)
    width, write = _cells(grid, room, scale)
    drawn: list[Text] = []
    for band in chunks(len(grid.heads), ceil(len(grid.heads) * width / room)):
        part = slice(band.start, band.stop)
        numbers = Text.assemble((HEAD.ljust(indent), "dim"), _ruler(grid.heads[part], width))
        print_picture_line(console, scale, numbers)
        values = grid.values[:, part]
        lines = (
            pixel_lines(grid.clean(values), scale) if width == 1 else _lines(values, scale, width, write)
        )
        drawn += lines
        layers = grid.layers[:: ceil(len(grid.layers) / len(lines))]
        for layer, line in zip(layers, lines, strict=True):
            print_picture_line(console, scale, Text.assemble((str(layer).ljust(indent), LAYER), line))
    print_line(console, Text())
    if scale.ramp or not write:
        print_line(console, scale.legend(console.width))
    print_line(console, Text(_sentence([grid], scale, drawn), "dim"))


def _cells(grid: Grid, room: int, scale: ColourScale) -> tuple[int, Callable[[float], str] | None]:
    """Return the width of a cell, and the format of its value, or None if values do not fit."""

    def whole(value: float) -> str:
        text = grid.text(value)
        return text if float(text) else scale.marks.small

    def short(value: float) -> str:
        text = whole(value)
        return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text

    for write in (whole, short):
        width = 1 + max(len(write(value)) for value in grid.clean(grid.values).flat)
        if width * len(grid.heads) <= room:
            return width, write
    square = SQUARE * len(grid.heads) <= room and len(grid.layers) <= MOST_ROWS
    return SQUARE if square else 1, None


def _lines(
    values: np.ndarray, scale: ColourScale, width: int, write: Callable[[float], str] | None = None
) -> list[Text]:
    """Return a line for each layer, with a cell for each head; a dash marks a missing value."""
    levels = len(scale.ramp or scale.marks.shades[1:])

    def cell(value: float) -> Text:
        if isnan(value):
            return Text(scale.marks.dash.rjust(width - 1).ljust(width), "dim")
        weight = value if scale.signed else max(value, 0.0)
        if write is not None:
            return scale.cell(weight, write(value).rjust(width - 1).ljust(width))
        nearly_none = scale.level(weight, levels) == 0
        return Text(scale.marks.small.ljust(width), "dim") if nearly_none else scale.blank(weight, width)

    return [Text().join(map(cell, row)) for row in values.tolist()]


def _ruler(numbers: list[int], width: int) -> Text:
    """Return a line with the numbers of heads above their columns, as many as fit."""
    every = 1 if width > len(str(numbers[-1])) else EVERY
    line = Text()
    for i, number in list(enumerate(numbers))[::every]:
        line.append(" " * (i * width - line.cell_len)).append(str(number), HEAD_STYLE)
    line.truncate(width * len(numbers))
    return line


def _print_small(grids: list[Grid], console: Console) -> None:
    """Print metrics of the same heads side by side, as many as the width allows."""
    n_layer, n_head = grids[0].values.shape
    least = min(console.width, max(NARROWEST_SIGNED if grids[0].signed else NARROWEST, n_head))
    most = min(len(grids), (console.width + GAP) // (least + GAP)) or 1  # side by side
    room = (console.width + GAP) // most - GAP
    scales = [ColourScale.of(console, grid.values, signed=grid.signed) for grid in grids]
    wide = min(SQUARE, max(1, room // n_head))
    pixels = wide == 1 or (scales[0].rows_per_line == 2 and n_layer > MOST_LINES)
    pictures = [
        _picture(grid, scale, room, wide, pixels) for grid, scale in zip(grids, scales, strict=True)
    ]
    panels = [
        [line[:room] for line in _title(grid, scales[0])] + picture
        for grid, picture in zip(grids, pictures, strict=True)
    ]
    width = max(line.cell_len for panel in panels for line in panel)
    for start in range(0, len(panels), most):
        for line in side_by_side(panels[start : start + most], width + GAP):
            print_picture_line(console, scales[0], line)
        print_line(console, Text())
    legend = replace(scales[0], top=1.0).legend(console.width)
    if scales[0].signed:
        legend.append(f" {scales[0].marks.times} the strongest of its column")
    else:
        legend.right_crop(len("1"))
        legend.append("the largest of its metric")
    print_line(console, legend)
    drawn = [line for picture in pictures for line in picture]
    print_line(console, Text(_sentence(grids, scales[0], drawn), "dim"))


def _picture(grid: Grid, scale: ColourScale, room: int, wide: int, pixels: bool) -> list[Text]:
    """Draw a small grid at most `room` characters wide; if heads do not fit, some go below the others.

    A head is `wide` characters wide. With `pixels`, layers share lines.
    """
    import numpy as np

    lines = []
    n_head = len(grid.heads)
    for band in chunks(n_head, ceil(n_head * wide / room)):
        part = grid.values[:, band.start : band.stop]
        if pixels:
            lines += pixel_lines(np.repeat(grid.clean(part), wide, axis=1), scale)
        else:
            lines += _lines(part, scale, wide)
    return lines


def _title(grid: Grid, scale: ColourScale) -> list[Text]:
    """Return lines with the metric's name and range, and with the head of the largest value."""
    name = Text.assemble((grid.metric, "bold"), "  ", grid.range(scale.marks.dash))
    return [name, Text(grid.leader(), "dim")]


def _sentence(grids: list[Grid], scale: ColourScale, drawn: list[Text]) -> str:
    """Explain grids of the same heads, and the marks in them."""
    layers, heads = _spelled(grids[0].layers, scale), _spelled(grids[0].heads, scale)
    layer, head = grids[0].layers[-1], grids[0].heads[-1]
    sentences = [f"layers {layers} downwards, heads {heads} across"]
    sentences.append(f"{head_name(layer, head)} is head {head} of layer {layer}")
    if any(scale.marks.small in line.plain for line in drawn):
        sentences.append(f"{scale.marks.small} is nearly 0")
    if any(grid.missing for grid in grids) and any(scale.marks.dash in line.plain for line in drawn):
        sentences.append(f"{scale.marks.dash} has {grids[0].without}")
    return "; ".join(sentences)


def _spelled(numbers: list[int], scale: ColourScale) -> str:
    """Format sorted numbers, as a range if they are consecutive."""
    if len(numbers) == numbers[-1] - numbers[0] + 1 > 1:
        return f"{numbers[0]}{scale.marks.dash}{numbers[-1]}"
    return " ".join(map(str, numbers))
