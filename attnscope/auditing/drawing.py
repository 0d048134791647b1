"""Draw evidence in characters and as SVG: what was measured, and the mask that reached the layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnscope.auditing.picture import (
    MEANINGS,
    MISSING,
    NONE,
    RIGHT,
    WRONG,
    Cells,
    n_panels,
    panels,
)
from attnscope.auditing.result import Influence
from attnscope.base.spelling import either
from attnscope.base.text import printable
from attnscope.base.units import numbers_text
from attnscope.document.blocks import Drawing, Verdict
from attnscope.document.grid import axes
from attnscope.document.grid.axes import label
from attnscope.document.grid.colours import ON_COLOUR, ColourScale
from attnscope.document.grid.matrix import PLAIN, Frame, indent_of, labelled, side_by_side
from attnscope.document.grid.pooling import chunks
from attnscope.document.markdown import markdown_document
from attnscope.document.styles import CYAN
from attnscope.document.styles import WRONG as RED
from attnscope.document.terminal import print_document, print_hanging
from attnscope.document.text import READABLE, can_show
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    from markupsafe import Markup


MARKS, ASCII = "·■✗○", ".#Xo"
"""The characters for nothing, influence, influence that should not be, and missing influence."""

STYLES = {NONE: "dim", RIGHT: CYAN, WRONG: RED, MISSING: RED}

GAP = 3  # characters between two panels
LEAST = 12  # positions of a part of a picture, at least
TOKEN_CELLS = 12  # terminal cells of a token, at most
MAX_ROWS = 64  # rows of a picture on a terminal, at most
INDENT = 2


@dataclass(frozen=True)
class EvidenceDrawing(Drawing):
    """Why a property is broken, and which positions influence which."""

    #: the evidence, what changed what first. Without any, nothing is broken, and only HTML shows the
    #: picture.
    lines: list[str]
    influence: Influence | None  #: the picture; None if there is none
    number: int  #: its place among those of an audit, by which a page's script finds its data

    @property
    def _verdict(self) -> list[Verdict]:
        return [Verdict(False, self.lines[0], self.lines[1:])] if self.lines else []

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print the evidence and the picture, as large as the console allows."""
        print_document(self._verdict, console)
        if not self.lines or self.influence is None:
            return
        scale = ColourScale.up_to(console, 1.0)
        frame = Frame.of(console, MAX_ROWS, scale)
        parts, sentences = picture(self.influence, replace(frame, width=frame.width - INDENT))
        for title, lines in parts:
            print_hanging(console, Text(" " * INDENT) + Text(printable(title), "dim"))
            for line in lines:
                if not scale.ramp:
                    line.rstrip()
                console.print(Text(" " * INDENT) + line, soft_wrap=True)
        for sentence in sentences:
            print_hanging(console, Text(" " * INDENT) + sentence)

    def html(self) -> str:
        """Return the evidence, and the picture as SVG."""
        return html(self.lines, self.influence, self.number)

    def markdown(self) -> list[str]:
        """Return the evidence as a list, and the picture in characters."""
        if not self.lines or self.influence is None:
            return [markdown_document(self._verdict)] if self.lines else []
        parts, sentences = picture(self.influence, DOCUMENT)
        drawn = [
            line
            for title, lines in parts
            for line in [printable(title), *(each.plain.rstrip() for each in lines)]
        ]
        drawn += [sentence.plain for sentence in sentences]
        return [markdown_document(self._verdict), "\n".join(["```", *drawn, "```"])]


DOCUMENT = Frame(140, 120, PLAIN)
"""The room for a picture in Markdown, without colours."""


@dataclass(frozen=True)
class PictureLayout:
    """How a picture is drawn."""

    beside: bool  #: whether panels stand side by side, and not below each other
    tokens: list[Token] | None  #: the tokens that label rows, or None
    width: int  #: the characters of a cell
    #: the positions shown of the output, and of the input
    rows: range
    columns: range

    def labels(self, frame: Frame) -> list[Text]:
        """Return the label of each row."""
        longest = min(TOKEN_CELLS, frame.width // 6)
        return axes.row_labels(_each(self.rows), self.tokens, longest, frame.scale)

    def needed(self, n_panel: int, frame: Frame) -> tuple[int, int]:
        """Return the characters and the rows that the panels take."""
        across, down = (n_panel, 1) if self.beside else (1, n_panel)
        return (
            indent_of(self.labels(frame)) + across * len(self.columns) * self.width + (across - 1) * GAP,
            down * len(self.rows),
        )


def picture(influence: Influence, frame: Frame) -> tuple[list[tuple[str, list[Text]]], list[Text]]:
    """Return the panels, those side by side as one, with a title each; and sentences that explain them.

    If they do not fit, a part of them is drawn, in which something is wrong.
    """
    layout = _layout(influence, frame)
    found = list(panels(influence, _each(layout.rows), _each(layout.columns)))
    scales = [
        replace(frame.scale, top=cells.top, ramp=frame.scale.ramp if cells.top else ())
        for cells in found
    ]
    drawn = [list(_lines(cells, layout, scale)) for cells, scale in zip(found, scales, strict=True)]
    names = [cells.title for cells in found]
    if len(drawn) == 2 and layout.beside:
        names = [f"left: {names[0]}; right: {names[1]}"]
        drawn = [side_by_side(drawn, len(layout.columns) * layout.width + GAP)]
    labels = layout.labels(frame)
    parts = [(name, labelled(labels, lines)) for name, lines in zip(names, drawn, strict=True)]
    return parts, list(_sentences(influence, layout, found, scales[0]))


def _layout(influence: Influence, frame: Frame) -> PictureLayout:
    """Choose the most legible layout that fits; if none does, one of a part."""
    n_Q, n_K = len(influence.measured), len(influence.measured[0])
    tokens = None if influence.tokens is None else [Token(text) for text in influence.tokens]
    n_panel = n_panels(influence)
    for beside, labels, width in product((True, False), dict.fromkeys((bool(tokens), False)), (2, 1)):
        layout = PictureLayout(beside, tokens if labels else None, width, range(n_Q), range(n_K))
        wide, high = layout.needed(n_panel, frame)
        if wide <= frame.width and high <= frame.rows:
            return layout
    return _part(influence, PictureLayout(True, tokens, 2, range(n_Q), range(n_K)), frame)


def _part(influence: Influence, whole: PictureLayout, frame: Frame) -> PictureLayout:
    """Return the layout of a part that fits, around the first pair that is wrong."""
    n_panel = n_panels(influence)
    across = n_panel if whole.beside else 1
    empty = replace(whole, columns=range(0))
    room = (frame.width - empty.needed(n_panel, frame)[0]) // across
    n = min(room // whole.width, frame.rows * across // n_panel)
    if n < LEAST and whole.width == 2:
        return _part(influence, replace(whole, width=1), frame)
    if n < LEAST and whole.tokens is not None:
        return _part(influence, replace(whole, tokens=None, width=2), frame)
    if n < LEAST and whole.beside and n_panel > 1:
        return _part(influence, replace(whole, beside=False, width=2), frame)
    pairs = influence.wrong or influence.missing or [(0, 0)]
    starts = [max(0, place - n // 3) for place in pairs[0]]
    if max(pairs[0]) < min(starts) + n:
        starts = [min(starts)] * 2  # the diagonal stays where it is
    rows, columns = (
        axis[max(0, min(start, len(axis) - n)) :][:n]
        for start, axis in zip(starts, (whole.rows, whole.columns), strict=True)
    )
    return replace(whole, rows=rows, columns=columns)


def _each(positions: range) -> list[range]:
    return [range(i, i + 1) for i in positions]


def _lines(cells: Cells, layout: PictureLayout, scale: ColourScale) -> Iterator[Text]:
    """Yield a line with positions, and a line for each row of a panel."""
    yield axes.ruler(_each(layout.columns), layout.width, len(layout.columns) * layout.width)
    marks = _marks(scale)
    for amounts, kinds in zip(cells.amounts.tolist(), cells.kinds.tolist(), strict=True):
        line = Text()
        for amount, kind in zip(amounts, kinds, strict=True):
            line.append_text(_cell(amount, kind, marks[kind], layout.width, scale))
        yield line


def _cell(amount: float, kind: int, mark: str, width: int, scale: ColourScale) -> Text:
    """Return a cell: on consoles with colours, that of its amount; the smallest has one, too.

    The mark of what is right has that colour, too: it is not seen, but copied with the text.
    """
    if not scale.ramp or amount == 0:
        return Text(mark.ljust(width), STYLES[kind])
    background = scale.background(amount) or scale.ramp[0]
    colour = ON_COLOUR if kind == WRONG else background
    return Text(mark.ljust(width), Style(color=colour, bgcolor=background, bold=kind == WRONG))


def _marks(scale: ColourScale) -> str:
    return MARKS if can_show(MARKS, scale.encoding) else ASCII


def _sentences(
    influence: Influence, layout: PictureLayout, found: list[Cells], scale: ColourScale
) -> Iterator[Text]:
    """Yield what rows, columns, characters and colours mean, and which part is shown."""
    marks = _marks(scale)
    sentence = Text.assemble("rows are ", ("outputs", axes.QUERY), ", columns ", ("inputs", axes.KEY))
    present = {int(kind) for cells in found for kind in set(cells.kinds.flat)}
    right = "influence or visible" if len(found) == 2 else "influence"
    for kind, meaning in ({RIGHT: right} | MEANINGS).items():
        if kind in present:
            sentence.append("; ").append(marks[kind], STYLES[kind]).append(f" {meaning}")
    yield sentence
    if scale.ramp:
        more = ", or more," if found[0].amounts.max() > scale.top else ""
        yield scale.legend(READABLE).append(f"{more} of the largest output")
    n_Q, n_K = len(influence.measured), len(influence.measured[0])
    if (len(layout.rows), len(layout.columns)) != (n_Q, n_K):
        rows, columns = (axes.range_text(each, scale) for each in (layout.rows, layout.columns))
        where = f"positions {rows}" if rows == columns else f"outputs {rows} and inputs {columns}"
        draws = either(command_line="--plot draws", python="save(FILE.svg) draws")
        yield Text(f"only {where} of {n_Q:,}; {draws} all")


# SVG.

MAX_CELLS = 128
"""The most cells along an axis."""

PIXELS, TALLEST = 18, 480
"""Of a cell, at most, and of a picture."""

LEGIBLE = 11
"""The pixels of letters."""

LEVELS = 8
"""The number of shades of influence."""

MARK_PATHS = {WRONG: "l.5 .5m0-.5l-.5 .5", MISSING: "m0 .25a.25 .25 0 1 0 .5 0a.25 .25 0 1 0-.5 0"}
"""A cross and a circle, from the upper left corner of the middle of a cell."""


def html(lines: list[str], influence: Influence | None, number: int) -> str:
    """Return lines about what is broken, and the picture; see `EvidenceDrawing`."""
    from markupsafe import Markup

    found = Markup("")
    if lines:
        first, *others = map(printable, lines)
        found += Markup(
            '<hr>\n<p><span class="red bold">✗</span> <span class="bold">{}</span></p>\n'
        ).format(first)
        found += Markup("").join(Markup("<p>{}</p>\n").format(line) for line in others)
    if influence is not None:
        cells = _cells(influence)
        drawn = list(panels(influence, cells, cells))
        figures = Markup("").join(
            Markup("<figure><figcaption>{}</figcaption>{}</figure>\n").format(
                printable(panel.title), _picture(influence, panel, cells)
            )
            for panel in drawn
        )
        found += Markup('<div class="grids" data-picture="{}">\n{}</div>\n').format(number, figures)
        found += Markup('<p class="soft">{}</p>\n').format(" · ".join(_legend(influence, drawn[0].top)))
    return found


def _legend(influence: Influence, top: float) -> list[str]:
    """Explain rows, columns, marks and shades, of which the strongest is that of `top`."""
    parts = ["rows are outputs, columns inputs"]
    pairs = {WRONG: influence.wrong, MISSING: influence.missing}
    parts += [f"{'✗○'[kind - WRONG]} {meaning}" for kind, meaning in MEANINGS.items() if pairs[kind]]
    if top:
        parts.append(f"the strongest shade: {top:.2g} of the largest output, or more")
    return parts


def data_of(influence: Influence) -> dict[str, Any]:
    """Collect what a page says of each cell: its positions, its influence, and the mask."""
    cells = _cells(influence)
    measured, *masks = panels(influence, cells, cells)
    amounts = [[float(f"{each:.2g}") for each in row] for row in measured.amounts.tolist()]
    return {
        "positions": _names(influence, cells, " ({})"),
        "amounts": amounts if measured.top else None,
        "kinds": _rows(measured.kinds),
        "mask": _rows(masks[0].amounts.astype(int)) if masks else None,
    }


def _rows(matrix: Any) -> list[str]:
    """Return each row of digits as a text."""
    return ["".join(map(str, row)) for row in matrix.tolist()]


def _cells(influence: Influence) -> list[range]:
    return chunks(len(influence.measured), MAX_CELLS)


def _names(influence: Influence, cells: Sequence[range], token: str = " {}") -> list[str]:
    """Return the positions of each cell; if it is one, with its token in the format `token`."""
    names = [f"{each[0]}" if len(each) == 1 else f"{each[0]}–{each[-1]}" for each in cells]
    if influence.tokens is None or len(cells) < len(influence.tokens):
        return names
    texts = [token.format(printable(label(each))) for each in influence.tokens]
    return [name + text for name, text in zip(names, texts, strict=True)]


def _picture(influence: Influence, panel: Cells, cells: list[range]) -> Markup:
    """Return one panel: each row is a group, whose tooltip names the output and its inputs."""
    from markupsafe import Markup, escape

    n = len(cells)
    pixels = max(3, min(PIXELS, TALLEST // n))
    font = LEGIBLE / pixels
    every = 1 if font <= 1 else 5 * -(-int(font * 1.3) // 5)
    names = _names(influence, cells)
    labels = {i: names[i] for i in range(0, n, every)}
    margin = font * (0.62 * max(map(len, labels.values())) + 0.8)
    rows = []
    for i, name in enumerate(names):
        text = f'<text x="{-font / 2:.2f}" y="{i + 0.5 + font / 3:.2f}">{escape(name)}</text>'
        rows.append(
            f"<g><title>{escape(_sentence(name, panel.kinds[i].tolist(), cells))}</title>"
            f'{text if i in labels else ""}<path class="row" d="M0 {i}h{n}v1h-{n}z"/>'
            f"{''.join(_paths(panel, i))}</g>"
        )
    numbers = "".join(
        f'<text class="key" x="{i + 0.5:g}" y="{-font / 3:.2f}">{cells[i][0]}</text>'
        for i in range(0, n, max(every, 5))
    )
    above = 1.2 * font
    view = f"{-margin:.2f} {-above:.2f} {n + margin:.2f} {n + above:.2f}"
    return Markup(
        f'<svg class="influence" viewBox="{view}" width="{(n + margin) * pixels:.0f}"'
        f' height="{(n + above) * pixels:.0f}" role="img" font-size="{font:.2f}">'
        f"<title>{len(influence.measured)} outputs downwards, as many inputs across</title>"
        f"{numbers}{''.join(rows)}</svg>"
    )


def _sentence(name: str, kinds: list[int], cells: Sequence[range]) -> str:
    """Return the positions that influence an output, and those that should not or should."""
    parts = []
    for kind, meaning in ({RIGHT: ""} | MEANINGS).items():
        inputs = [
            position
            for cell, each in zip(cells, kinds, strict=True)
            if each == kind
            for position in cell
        ]
        if inputs:
            parts.append(f"{meaning} {numbers_text(inputs)}".strip())
    return f"output {name}: {'; '.join(parts) or 'no input'}"


def _paths(panel: Cells, i: int) -> Iterator[str]:
    """Yield the cells of a row by shade, and the marks of those that are wrong."""
    amounts, kinds = panel.amounts[i].tolist(), panel.kinds[i].tolist()
    shades = [_shade(amount, panel.top) for amount in amounts]
    drawn: dict[int, str] = {}
    start = 0
    for shade, run in groupby(shades):
        length = len(list(run))
        if shade:
            drawn[shade] = drawn.get(shade, "") + f"M{start} {i}h{length}v1h-{length}z"
        start += length
    for shade, path in drawn.items():
        yield f'<path fill-opacity="{0.2 + 0.8 * shade / LEVELS:.2g}" d="{path}"/>'
    for kind, mark in MARK_PATHS.items():
        path = "".join(
            f"M{k + 0.25:g} {i + 0.25:g}{mark}" for k, each in enumerate(kinds) if each == kind
        )
        if path:
            yield f'<path class="wrong" d="{path}"/>'


def _shade(amount: float, largest: float) -> int:
    """Return the shade of a cell: 0 for none, and 1 for the smallest influence."""
    if amount == 0:
        return NONE
    return LEVELS // 2 if largest == 0 else max(1, min(LEVELS, round(amount / largest * LEVELS)))
