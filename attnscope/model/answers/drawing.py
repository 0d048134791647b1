"""Draw an answer: pictures under their weights, and bars of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise, zip_longest
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnscope.base.spelling import either
from attnscope.document.blocks import Drawing
from attnscope.document.grid import axes
from attnscope.document.grid.colours import ON_COLOUR, ColourScale, print_picture_line
from attnscope.document.markdown import markdown_table
from attnscope.document.styles import BLUE, CYAN, GREEN, MAGENTA, ORANGE, RED
from attnscope.document.terminal import print_columns, print_line
from attnscope.document.text import joined
from attnscope.model.answers.document import bar_columns, place_columns, row_text, share_text
from attnscope.model.answers.heat import bars, density, positions, shown_weights
from attnscope.model.answers.prompt import PatchedPicture
from attnscope.model.answers.result import Answer

if TYPE_CHECKING:
    import numpy as np

MOST_LINES = 28  # of the terminal that pictures take
BESIDE = 8  # lines of the terminal for the text above and below
MOST_PICTURES = 6
GAP = 2  # columns between two pictures

VEIL_COLOUR, VEIL = (248, 107, 0), 0.85
"""The colour over a picture, and its opacity where the density is largest."""

PALE = 0.2  #: Of a picture under it: the darkest grey, and the distance of the lightest from white

LONGEST_TOKEN = 14
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
STYLES = (BLUE, ORANGE, GREEN, MAGENTA, CYAN, RED)
GREYS = {"other": "#8a8f96", "more": "#b4b8be", "sink": "#cfd2d6"}
"""The colours of what is in none of the named segments, of segments that share a bar, and of sinks."""

MOST_SEGMENTS = 12  #: The most segments that bars tell apart; of more, the smallest are shown as one


@dataclass(frozen=True)
class PictureDrawing(Drawing):
    """The pictures under the weights of the token that is shown alone, or of all tokens on average."""

    answer: Answer

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print pictures as half blocks; without colours, the weights alone as shades."""
        answer = self.answer
        weights = shown_weights(answer)
        of_pictures = [float(weights[positions(each.patches)].sum()) for each in answer.pictures]
        ranked = sorted(range(len(of_pictures)), key=lambda i: -of_pictures[i])
        chosen = sorted(ranked[:MOST_PICTURES])
        pictures = [answer.pictures[i] for i in chosen]
        scale = ColourScale.up_to(console, 1.0)
        print_line(console, Text())
        print_line(console, Text(axes.spelled(row_text(answer), scale), "bold"))
        lines = min(MOST_LINES, max(8, console.height - BESIDE)) if console.is_terminal else MOST_LINES
        frame = 0 if scale.rows_per_line == 2 else 2
        sizes, per_line = _layout(pictures, console.width, lines, frame)
        panels = [
            _Panel.of(picture, weights, size, set(answer.sinks), scale)
            for picture, size in zip(pictures, sizes, strict=True)
        ]
        top = max(float(panel.heat.max()) for panel in panels) or 1.0
        for start in range(0, len(panels), per_line):
            row = range(start, min(start + per_line, len(panels)))
            drawn = [panels[i].lines(scale, top) for i in row]
            widths = [sizes[i][1] + frame for i in row]
            if len(answer.pictures) > 1:
                for i, each, width in zip(row, drawn, widths, strict=True):
                    title = f"{pictures[i].name} {share_text(of_pictures[chosen[i]])}"
                    each.insert(0, axes.left(title, width, scale, "dim"))
            for parts in zip_longest(*drawn):
                cells = [
                    Text(" " * width) if part is None else part
                    for part, width in zip(parts, widths, strict=True)
                ]
                print_picture_line(console, scale, Text(" " * GAP).join(cells))
        print_line(console, _legend(scale, top, any(panel.is_sink.any() for panel in panels)))
        if len(ranked) > len(chosen):
            shows = either(command_line="--page shows", python="save(FILE.html) shows")
            rest = f"{len(ranked) - len(chosen)} more pictures, which take less: {shows} them"
            print_line(console, Text(rest, "dim"))


@dataclass(frozen=True)
class _Panel:
    """A picture on a terminal."""

    grey: np.ndarray  #: of each pixel, 0 to 1, `height width`
    heat: np.ndarray  #: the density of the weights, likewise
    is_sink: np.ndarray  #: whether a character stands for a patch that is left out

    @classmethod
    def of(
        cls,
        picture: PatchedPicture,
        weights: np.ndarray,
        size: tuple[int, int],
        sinks: set[int],
        scale: ColourScale,
    ) -> _Panel:
        """Return a picture in `lines columns` characters."""
        lines, columns = size
        height = lines * scale.rows_per_line
        heat = density(picture, weights, height, columns, left_out=sinks)
        return cls(
            grey_picture(picture, height, columns), heat, sink_cells(picture, sinks, lines, columns)
        )

    def lines(self, scale: ColourScale, top: float) -> list[Text]:
        """Draw the picture; with colours, two pixels share a character."""
        shares = self.heat / top
        if scale.rows_per_line == 1:
            marks = scale.marks
            border = Text(marks.horizontal * (shares.shape[1] + 2), "dim")
            side = Text(marks.vertical, "dim")
            inside = [
                Text().join(
                    Text(marks.left_out) if is_sink else scale.blank(share, 1)
                    for share, is_sink in zip(*pair, strict=True)
                )
                for pair in zip(shares.tolist(), self.is_sink.tolist(), strict=True)
            ]
            return [border, *(side + line + side for line in inside), border]
        colours = _hex(veiled(self.grey, shares))
        lines = []
        for line, is_sink in enumerate(self.is_sink.tolist()):
            upper, lower = colours[2 * line], colours[2 * line + 1]
            text = Text()
            for column, marked in enumerate(is_sink):
                style = Style(color=upper[column], bgcolor=lower[column])
                if marked:
                    style = Style(color=ON_COLOUR, bgcolor=lower[column])
                text.append(scale.marks.left_out if marked else scale.marks.upper, style)
            lines.append(text)
        return lines


def grey_picture(picture: PatchedPicture, height: int, width: int) -> np.ndarray:
    """Return a picture in pale grey, `height width`, 0 to 1."""
    import numpy as np

    image = picture.image.convert("L").resize((width, height), 1 if height > picture.image.height else 4)
    return PALE + (1 - 2 * PALE) * np.asarray(image) / 255


def veiled(grey: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Overlay grey with the colour of weights, as opaque as their share of the largest, `… 3`."""
    import numpy as np

    opacity = VEIL * shares.clip(0, 1)[..., None]
    return grey[..., None] * (1 - opacity) + np.array(VEIL_COLOUR) / 255 * opacity


def sink_cells(picture: PatchedPicture, sinks: set[int], height: int, width: int) -> np.ndarray:
    """Return which cells of a grid lie in patches that are left out, at least one for each."""
    import numpy as np

    cells = np.zeros((height, width), dtype=bool)
    for patch in picture.patches:
        if patch.position in sinks:
            left, right = (_cell(edge * width / picture.image.width) for edge in patch.box[::2])
            top, bottom = (_cell(edge * height / picture.image.height) for edge in patch.box[1::2])
            top, left = min(top, height - 1), min(left, width - 1)
            cells[top : max(bottom, top + 1), left : max(right, left + 1)] = True
    return cells


def _cell(edge: float) -> int:
    return int(edge + 0.5 - 1e-9)


def _hex(pixels: np.ndarray) -> list[list[str]]:
    """Return colours as Rich names them."""
    import numpy as np

    whole = np.rint(pixels * 255).astype(int).tolist()
    return [[f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in row] for row in whole]


def _layout(
    pictures: Sequence[PatchedPicture], width: int, lines: int, frame: int
) -> tuple[list[tuple[int, int]], int]:
    """Choose how many pictures share a line, so that all are as large as possible.

    The room, `width` and `lines`, is for all of them, with titles if there are several; each has a
    `frame` of so many lines and columns. Return the lines and columns of each picture, and how many
    share a line.
    """

    def sizes(per_line: int) -> list[tuple[int, int]]:
        across = max(1, (width - GAP * (per_line - 1)) // per_line - frame)
        title = len(pictures) > 1
        down = max(1, lines // -(-len(pictures) // per_line) - frame - title)
        found = []
        for picture in pictures:
            scale = min(across / picture.image.width, 2 * down / picture.image.height)
            found.append(
                (
                    min(down, max(1, round(picture.image.height * scale / 2))),
                    max(1, int(picture.image.width * scale)),
                )
            )
        return found

    options = [(sizes(per_line), per_line) for per_line in range(1, len(pictures) + 1)]
    return max(options, key=lambda option: min(height * width for height, width in option[0]))


def _legend(scale: ColourScale, top: float, marks_sinks: bool) -> Text:
    """Return the legend: from 0 to the largest density, in per cent for each per cent of the picture."""
    import numpy as np

    line = Text("0 ")
    if scale.rows_per_line == 2:
        steps = veiled(np.full(12, 0.55), np.linspace(0, 1, 12))
        for colour in _hex(steps[None])[0]:
            line.append(" ", Style(bgcolor=colour))
    else:
        for shade in scale.marks.shades[1:]:
            line.append(shade * 2, scale.filled)
    line.append(f" {top:.3g} % of the weight for each 1 % of the picture")
    return line.append(f"   {scale.marks.left_out} left out") if marks_sinks else line


# Bars.


def segment_order(answer: Answer) -> tuple[list[str], np.ndarray]:
    """Return the names of the segments that bars tell apart, and their shares, `n_bar n_name`.

    Of many segments, the rest is shown as one.
    """
    import numpy as np

    _, of_segments = bars(answer)
    known = [i for i, segment in enumerate(answer.segments) if segment.n_token]
    kept, rest = known, []
    if len(known) > MOST_SEGMENTS:
        ranked = sorted(known, key=lambda i: -float(of_segments[:, i].mean()))
        kept, rest = sorted(ranked[: MOST_SEGMENTS - 1]), ranked[MOST_SEGMENTS - 1 :]
    names = [answer.segments[i].name for i in kept]
    columns = [of_segments[:, i] for i in kept]
    if rest:
        names.append(f"{len(rest)} more")
        columns.append(of_segments[:, rest].sum(1))
    return names, np.stack(columns, 1)


@dataclass(frozen=True)
class SegmentBars(Drawing):
    """A bar for each token of the answer, or each segment, divided as its weight is between segments."""

    answer: Answer

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print a line for each bar, and a legend; with `wide`, the numbers as a table."""
        if wide:
            print_columns(bar_columns(self.answer), console, wide)
            return
        names, of_rows = segment_order(self.answer)
        scale = ColourScale.up_to(console, 1.0)
        styles = segment_styles(names) if scale.ramp else [""] * len(names)
        labels = self._labels(scale, console.width)
        indent = max(label.cell_len for label in labels) + 1
        width = max(10, min(console.width - indent, 80))
        print_line(console, Text())
        for label, row in zip(labels, of_rows.tolist(), strict=True):
            line = label + Text(" " * (indent - label.cell_len))
            line.append_text(_bar(row, width, styles, dash=scale.marks.horizontal))
            print_picture_line(console, scale, line)
        means = of_rows.mean(0).tolist() if self.answer.segment_rows is None else None
        for line in _segment_legend(names, means, styles, console.width):
            print_line(console, line)

    def _labels(self, scale: ColourScale, width: int) -> list[Text]:
        """Return the name of each segment; or of each token, its place, text and log p, as they fit."""
        if self.answer.segment_rows is not None:
            names = [self.answer.segments[i].name for i in bars(self.answer)[0]]
            longest = min(LONGEST_TOKEN, max(map(cell_len, names)))
            return [axes.left(name, longest, scale) for name in names]
        position, token, *others = place_columns(self.answer)
        labels = []
        longest = min(LONGEST_TOKEN, max(cell_len(text) for text in token.texts()))
        for row, each in enumerate(self.answer.written):
            label = Text() if width < 60 else joined(position.cells[row]) + Text(" ")
            text = axes.token_text(each, scale)
            label.append_text(axes.left(text, longest, scale, axes.token_style(each)))
            if others and width >= 80:
                label.append(f" {others[0].texts()[row]:>6}", "dim")
            labels.append(label)
        return labels

    def markdown(self) -> list[str]:
        """Return the shares of each bar as a table."""
        return [markdown_table(bar_columns(self.answer))]


def segment_styles(names: Sequence[str], colours: Sequence[str] = STYLES) -> list[str]:
    """Return a colour for each segment; what is in none of the named ones is grey."""
    coloured = cycle(colours)
    return [GREYS[kind] if (kind := _kind_of(name)) else next(coloured) for name in names]


def _kind_of(name: str) -> str:
    """Return `other`, `sink` or `more` for what is not a named segment; else an empty text."""
    return name if name in ("other", "sink") else "more" if name.endswith(" more") else ""


def _repeats(styles: Sequence[str]) -> bool:
    """Check whether two segments have one colour, so that letters tell them apart."""
    return len(set(styles)) < len(styles)


def _bar(of_row: Sequence[float], width: int, styles: Sequence[str], dash: str) -> Text:
    """Draw the shares of a row, with per cents where there is room, and letters where colours repeat."""
    ends = [0]
    total = 0.0
    for share in of_row:
        total += share
        ends.append(round(min(1.0, total) * width))
    line = Text()
    for i, (start, end) in enumerate(pairwise(ends)):
        room, number = end - start, f"{100 * of_row[i]:.0f}"
        letter = LETTERS[i]
        needs_letter = not styles[i] or _repeats(styles)
        text = letter + number if needs_letter else number
        if styles[i]:
            shown = f" {text}" if len(text) < room else letter if needs_letter and room else ""
            line.append(shown.ljust(room)[:room], f"{ON_COLOUR} on {styles[i]}")
        else:
            shown = text if len(text) <= room else letter
            line.append(shown.ljust(room, dash)[:room])
    return line


def _segment_legend(
    names: Sequence[str], means: Sequence[float] | None, styles: Sequence[str], width: int
) -> list[Text]:
    """Return the legend in lines: a colour or a letter, the name, and the mean share of each segment."""
    lines = [Text()]
    for i, (name, style) in enumerate(zip(names, styles, strict=True)):
        letter = LETTERS[i] if not style or _repeats(styles) else " "
        item = Text(f"{letter} " if not style else "")
        if style:
            item.append(f"{letter} ", f"{ON_COLOUR} on {style}").append(" ")
        item.append(name)
        if means is not None:
            item.append(f" {share_text(means[i])}", "dim")
        if lines[-1].cell_len and lines[-1].cell_len + 3 + item.cell_len > width:
            lines.append(Text())
        lines[-1].append("   " if lines[-1].cell_len else "").append_text(item)
    return lines
