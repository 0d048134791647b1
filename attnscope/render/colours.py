"""How a console shows how large a weight is: by a colour, or by how much of a cell is filled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from math import isnan
from typing import TYPE_CHECKING

from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnscope.render.text import READABLE, can_show

if TYPE_CHECKING:
    import numpy as np

RAMP = ("#877368", "#a07054", "#b26f48", "#c16e3b", "#cf6d2d", "#dd6d1a", "#eb6c00", "#f86b00")
"""From the smallest weight to the largest: from grey to orange, and a little lighter (OKLCH: lightness
0.57 to 0.69, chroma 0.03 to 0.20, hue 50°). So large weights stand out on light and dark terminals."""

RAMP_256 = tuple(f"color({number})" for number in (243, 137, 173, 209, 208, 202))
"""The same of the 256 colours that terminals have by number."""

ON_COLOUR = "#000000"  # legible on all of them
FILLED = "yellow"  # what shades and bars are drawn in where there are 16 colours, which themes choose


@dataclass(frozen=True)
class Marks:
    """The characters that maps are drawn with.

    Attributes:
        shades: of ever more ink, from none.
        bar: the last piece of a bar, from the shortest to a whole cell.
        small: a weight that rounds to 0 %.
        more: what was cut off.
        dash: between the first and the last of several.
        times: between the sizes of a map.
        vertical, horizontal, cross: between two texts.
        left_out: a cell that the scale leaves out.
        upper, lower: half of a cell; empty where there is no such character.
    """

    shades: str
    bar: str
    small: str
    more: str
    dash: str
    times: str
    vertical: str
    horizontal: str
    cross: str
    left_out: str
    upper: str = ""
    lower: str = ""


MARKS = Marks(" ░▒▓█", "▏▎▍▌▋▊▉█", "·", "…", "–", "×", "│", "─", "┼", "╱", "▀", "▄")
ASCII_MARKS = Marks(" .:-=+*#%@", "#", ".", "~", "-", "x", "|", "-", "+", "/")
NOT_A_NUMBER = "?"


@dataclass(frozen=True)
class Scale:
    """What a weight looks like on a console.

    Attributes:
        top: the weight that is shown strongest.
        ramp: the colours that cells can have; none where a console has not enough of them.
        filled: the style of shades and bars.
        encoding: the console's.
        marks: the characters that it can show.
    """

    top: float
    ramp: tuple[str, ...]
    filled: str
    encoding: str
    marks: Marks

    @classmethod
    def of(cls, console: Console, weights: np.ndarray) -> Scale:
        """The scale from 0 to the largest of these weights, for this console."""
        import numpy as np

        finite = weights[np.isfinite(weights)]
        ramps = {"truecolor": RAMP, "256": RAMP_256}
        ramp = () if console.no_color else ramps.get(console.color_system or "", ())
        return cls(
            top=float(finite.max(initial=0)),
            ramp=ramp,
            filled=ramp[-1] if ramp else FILLED,
            encoding=console.encoding,
            marks=MARKS if can_show("".join(vars(MARKS).values()), console.encoding) else ASCII_MARKS,
        )

    def level(self, weight: float, levels: int) -> int:
        """The nearest of levels 0 … `levels`, of which the last is that of the largest weight."""
        share = weight / self.top if self.top > 0 else 0.0
        return 0 if isnan(share) else min(round(share * levels), levels)

    def background(self, weight: float) -> str | None:
        """The colour of a weight's cell; None for the smallest ones, and without colours."""
        level = self.level(weight, len(self.ramp))
        return self.ramp[level - 1] if level else None

    def cell(self, weight: float, text: str, style: str = "") -> Text:
        """A cell that says something about a weight, on the weight's colour."""
        background = self.background(weight)
        return Text(text, Style(color=ON_COLOUR, bgcolor=background) if background else style)

    def blank(self, weight: float, width: int) -> Text:
        """A cell that shows a weight by its colour or its shade alone."""
        if isnan(weight):
            return Text(NOT_A_NUMBER.ljust(width))
        if self.ramp:
            return self.cell(weight, " " * width)
        shades = self.marks.shades
        return Text(shades[self.level(weight, len(shades) - 1)] * width, self.filled)

    def bar(self, weight: float, longest: int) -> str:
        """A bar in `longest` cells; that of the largest weight fills them all."""
        pieces = self.marks.bar
        whole, rest = divmod(self.level(weight, longest * len(pieces)), len(pieces))
        return (pieces[-1] * whole + pieces[rest - 1] * (rest > 0)).ljust(longest)

    @property
    def rows_per_line(self) -> int:
        """How many rows of a picture fit into a line."""
        return 2 if self.ramp and self.marks.upper else 1

    def legend(self, width: int) -> Text:
        """The scale itself on one line: from 0 through each colour or shade to the largest weight."""
        line = Text("0 ")
        steps = len(self.ramp or self.marks.shades[1:])
        each = 2 if width >= READABLE else 1
        for step in range(steps + 1):
            line.append_text(self.blank(self.top * step / steps, each))
        return line.append(f" {self.top:.2g}")


def pixel_lines(weights: np.ndarray, scale: Scale) -> list[Text]:
    """Weights as a picture, a character wide each; where there are colours, two rows share a line.

    Args:
        weights: `rows columns`.
        scale: what they look like.
    """
    rows = weights.tolist()
    if scale.rows_per_line == 1:
        return [_joined(scale.blank(weight, 1) for weight in row) for row in rows]
    pairs = zip_longest(rows[::2], rows[1::2], fillvalue=[0.0] * weights.shape[1])
    return [_joined(_two(scale, *pixels) for pixels in zip(*pair, strict=True)) for pair in pairs]


def _two(scale: Scale, above: float, below: float) -> Text:
    """Two weights in one character."""
    upper, lower = scale.background(above), scale.background(below)
    if upper is None:
        return Text(scale.marks.lower, Style(color=lower)) if lower else Text(" ")
    return Text(scale.marks.upper, Style(color=upper, bgcolor=lower))


def _joined(cells: Iterable[Text]) -> Text:
    return Text().join(cells)
