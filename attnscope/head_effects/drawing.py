"""Draw effects at each position: a row for each token, a column for each layer."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from attnscope.document.blocks import Drawing
from attnscope.document.grid.colours import ColourScale, print_picture_line
from attnscope.document.grid.pooling import chunks
from attnscope.document.html import rendered
from attnscope.document.terminal import print_line
from attnscope.head_effects.result import HeadEffects
from attnscope.text import printable, shortened
from attnscope.units import number_text

if TYPE_CHECKING:
    import numpy as np

CELL = 2  # characters
LONGEST_TOKEN = 12
EVERY = 5  # layers between the numbers of layers


@dataclass(frozen=True)
class PositionsDrawing(Drawing):
    """The strongest effect among the heads of each layer, at each position."""

    table: HeadEffects

    @property
    def columns(self) -> list[str]:
        """The columns that are drawn: the one that ranks the heads, or all."""
        return list(self.table.positions) if self.table.sort is None else [self.table.sort]

    def grid(self, column: str) -> tuple[list[int], np.ndarray]:
        """Return the layers, and the strongest effects, `n_position n_layer`."""
        import numpy as np

        table = self.table
        layers = sorted({row.layer for row in table.rows})
        grid = np.full((len(table.places), len(layers)), np.nan)
        for row, effects in zip(table.rows, table.positions[column], strict=True):
            own = grid[:, layers.index(row.layer)]
            stronger = np.isnan(own) | (np.abs(effects) > np.abs(own))
            own[stronger] = effects[stronger]
        return layers, grid

    def label(self, place: int) -> str:
        """Return a position with its token."""
        tokens = self.table.sequence
        text = tokens[place].text.strip() if place < len(tokens) else ""
        return f"{place} {shortened(printable(text), LONGEST_TOKEN)}".rstrip()

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print a picture for each column."""
        for column in self.columns:
            self._print(column, console)

    def _print(self, column: str, console: Console) -> None:
        layers, grid = self.grid(column)
        scale = ColourScale.of(console, grid, signed=True)
        labels = [self.label(place) for place in self.table.places]
        indent = max(map(len, [*labels, "position"])) + 1
        title = Text.assemble((column, "bold"), "  the strongest head of each layer, at each position")
        print_line(console, Text())
        print_line(console, title)
        most = max(1, (console.width - indent) // CELL)
        for band in chunks(len(layers), -(-len(layers) // most)):
            header = Text("position".ljust(indent), "dim")
            for i, layer in enumerate(layers[band.start : band.stop]):
                header.append((str(layer) if i % EVERY == 0 else "").ljust(CELL)[:CELL], "bold")
            print_picture_line(console, scale, header)
            for name, effects in zip(labels, grid[:, band.start : band.stop].tolist(), strict=True):
                line = Text(name.ljust(indent))
                for effect in effects:
                    line.append_text(scale.blank(0.0 if isnan(effect) else effect, CELL))
                print_picture_line(console, scale, line)
        print_line(console, scale.legend(console.width))

    def html(self) -> str:
        """Return a grid for each column."""
        grids = []
        for column in self.columns:
            layers, grid = self.grid(column)
            top = max((abs(each) for each in grid.flat if not isnan(each)), default=0.0) or 1.0
            rows = [
                (
                    self.label(place),
                    [
                        (round(100 * abs(each) / top), each < 0, number_text(each))
                        for each in effects
                        if not isnan(each)
                    ],
                )
                for place, effects in zip(self.table.places, grid.tolist(), strict=True)
            ]
            grids.append((column, layers, rows))
        return rendered(TEMPLATE, grids=grids)


TEMPLATE = """\
<div class="grids">
{% for column, layers, rows in grids %}
<figure><figcaption><span class="bold">{{ column }}</span> <span class="soft">the strongest head of each layer, at each position</span></figcaption>
<div class="grid" style="--columns:{{ layers | length }}"><b></b>{% for layer in layers %}<b>{{ layer }}</b>{% endfor %}
{% for label, cells in rows %}<b>{{ label }}</b>{% for level, below, title in cells %}<i {% if below %}class="below" {% endif %}style="--v:{{ level }}" title="{{ title }}"></i>{% endfor %}
{% endfor %}</div></figure>
{% endfor %}
</div>
"""  # noqa: E501
