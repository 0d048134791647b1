"""Colours and characters that show the size of a weight on a console."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import isnan
from typing import TYPE_CHECKING

from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnscope.document.text import READABLE, can_show

if TYPE_CHECKING:
    import numpy as np

RAMP = ("#877368", "#a07054", "#b26f48", "#c16e3b", "#cf6d2d", "#dd6d1a", "#eb6c00", "#f86b00")
"""From the smallest weight to the largest: from grey to orange, and a little lighter (OKLCH: lightness
0.57 to 0.69, chroma 0.03 to 0.20, hue 50°). So large weights stand out on light and dark terminals."""

COLD = ("#6a7989", "#677f99", "#6385a9", "#5e8ab9", "#5890c9", "#5195d9", "#499be9", "#3fa0fa")
"""The same for negative numbers, from grey to blue (OKLCH: chroma 0.03 to 0.16, hue 250°)."""

COLD_256 = tuple(f"color({number})" for number in (243, 67, 68, 74, 75, 39))
"""The same in the numbered 256 colours."""

RAMP_256 = tuple(f"color({number})" for number in (243, 137, 173, 209, 208, 202))
"""The same ramp in the numbered 256 colours of terminals."""

ON_COLOUR = "#000000"  # legible on all of them
FILLED = "yellow"  # the colour of shades and bars in 16 colours, whose values depend on the theme


@dataclass(frozen=True)
class Marks:
    """The characters that maps are drawn with."""

    shades: str  #: in order of increasing ink, beginning with a blank
    below: str  #: the same for negative numbers
    bar: str  #: the last character of a bar, from the shortest to a full cell
    small: str  #: for a weight that rounds to 0 %
    full: str  #: for a weight that rounds to 100 %, where two digits are all that fits
    more: str  #: marks truncated text
    dash: str  #: between the ends of a range
    times: str  #: between the sizes of a map
    #: the lines between two texts
    vertical: str
    horizontal: str
    cross: str
    left_out: str  #: for a cell that the colour scale leaves out
    #: half blocks; empty if the encoding has none
    upper: str = ""
    lower: str = ""


MARKS = Marks(" ░▒▓█", " ┄─═≡", "▏▎▍▌▋▊▉█", "·", "■", "…", "–", "×", "│", "─", "┼", "╱", "▀", "▄")
ASCII_MARKS = Marks(" .:-=+*#%@", " abcdefghi", "#", ".", "#", "~", "-", "x", "|", "-", "+", "/")
NOT_A_NUMBER = "?"


@dataclass(frozen=True)
class ColourScale:
    """The mapping from weights to colours and characters of a console."""

    top: float  #: the weight at the upper end of the scale; if it is signed, its lower end is −`top`
    ramp: tuple[str, ...]  #: the colours of cells; empty if the console has too few colours
    filled: str  #: the style of shades and bars
    encoding: str  #: the console's encoding
    marks: Marks  #: the characters that it can show
    #: those of negative numbers; empty likewise, and if the scale is not signed
    cold: tuple[str, ...] = ()
    signed: bool = False  #: whether numbers below 0 have colours of their own

    @classmethod
    def of(cls, console: Console, weights: np.ndarray, *, signed: bool = False) -> ColourScale:
        """Return the scale from 0, or the opposite, to the largest of some weights, for a console."""
        import numpy as np

        known = weights[np.isfinite(weights)]
        return cls.up_to(
            console, float((np.abs(known) if signed else known).max(initial=0)), signed=signed
        )

    @classmethod
    def up_to(cls, console: Console, top: float, *, signed: bool = False) -> ColourScale:
        """Return the scale from 0, or −`top`, to `top`, for a console."""
        ramps = {"truecolor": (RAMP, COLD), "256": (RAMP_256, COLD_256)}
        ramp, cold = ((), ()) if console.no_color else ramps.get(console.color_system or "", ((), ()))
        return cls(
            top=top,
            ramp=ramp,
            cold=cold if signed else (),
            signed=signed,
            filled=ramp[-1] if ramp else FILLED,
            encoding=console.encoding,
            marks=MARKS if can_show("".join(vars(MARKS).values()), console.encoding) else ASCII_MARKS,
        )

    @classmethod
    def without_weights(cls, console: Console) -> ColourScale:
        """Return the characters of a console, for a picture that shows no weights."""
        return replace(cls.up_to(console, 0.0), ramp=(), filled="")

    def level(self, weight: float, levels: int) -> int:
        """Return the level of a weight: 0 … `levels`, where the last is that of `top`."""
        size = abs(weight) if self.signed else weight
        share = size / self.top if self.top > 0 else 0.0
        return 0 if isnan(share) else min(round(share * levels), levels)

    def background(self, weight: float) -> str | None:
        """Return the colour of a weight's cell; None for the smallest weights, and without colours."""
        level = self.level(weight, len(self.ramp))
        ramp = self.cold if self.signed and weight < 0 else self.ramp
        return ramp[level - 1] if level else None

    def cell(self, weight: float, text: str, style: str = "") -> Text:
        """Return a cell with text on the colour of a weight."""
        background = self.background(weight)
        colour = Style(color=ON_COLOUR, bgcolor=background) if background else Style()
        return Text(text, Style.parse(style) + colour)

    def blank(self, weight: float, width: int) -> Text:
        """Return a cell that shows a weight by colour or shade alone."""
        if isnan(weight):
            return Text(NOT_A_NUMBER.ljust(width))
        if self.ramp:
            return self.cell(weight, " " * width)
        shades = self.marks.below if self.signed and weight < 0 else self.marks.shades
        return Text(shades[self.level(weight, len(shades) - 1)] * width, self.filled)

    def bar(self, weight: float, longest: int) -> str:
        """Return a bar in `longest` cells, all of which are filled for `top`."""
        pieces = self.marks.bar
        whole, rest = divmod(self.level(weight, longest * len(pieces)), len(pieces))
        return (pieces[-1] * whole + pieces[rest - 1] * (rest > 0)).ljust(longest)

    @property
    def rows_per_line(self) -> int:
        """The number of rows of a picture that fit into one line."""
        return 2 if self.ramp and self.marks.upper else 1

    def legend(self, width: int, *, percent: bool = False, unit: float = 1.0) -> Text:
        """Return the legend on one line: 0, each colour or shade, the largest weight.

        `width` is that of the console. The largest is a multiple of `unit`, or is given in per cent of
        it.
        """
        line = Text(f"{-self.top:.2g} " if self.signed else "0 ")
        steps = len(self.ramp or self.marks.shades[1:])
        each = 2 if width >= READABLE else 1
        for step in range(-steps if self.signed else 0, steps + 1):
            line.append_text(self.blank(self.top * step / steps, each))
        if not percent:
            return line.append(f" {self.top * unit:.2g}")
        top = 100 * self.top
        return line.append(f" {top:.0f} %" if top >= 10 else f" {top:.2g} %")


def print_picture_line(console: Console, scale: ColourScale, line: Text) -> None:
    """Print a line of a picture, without trailing blanks if there are no colours."""
    if not scale.ramp:
        line.rstrip()
    console.print(line, soft_wrap=True)


def pixel_lines(weights: np.ndarray, scale: ColourScale) -> list[Text]:
    """Draw weights as pixels, one character wide; with colours, two rows share a line."""
    rows = weights.tolist()
    if scale.rows_per_line == 1:
        return [_joined(scale.blank(weight, 1) for weight in row) for row in rows]
    pairs = zip_longest(rows[::2], rows[1::2], fillvalue=[0.0] * weights.shape[1])
    return [_joined(_two(scale, *pixels) for pixels in zip(*pair, strict=True)) for pair in pairs]


def _two(scale: ColourScale, above: float, below: float) -> Text:
    """Draw two weights, one above the other, in one character."""
    upper, lower = scale.background(above), scale.background(below)
    if upper is None:
        return Text(scale.marks.lower, Style(color=lower)) if lower else Text(" ")
    return Text(scale.marks.upper, Style(color=upper, bgcolor=lower))


def _joined(cells: Iterable[Text]) -> Text:
    return Text().join(cells)
