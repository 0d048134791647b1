"""Draw evidence with characters: what was measured, beside the mask that reached the layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

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
from attnscope.auditing.svg import html
from attnscope.base.text import printable
from attnscope.document.blocks import Drawing, Verdict
from attnscope.document.grid import axes
from attnscope.document.grid.colours import ON_COLOUR, ColourScale
from attnscope.document.grid.matrix import PLAIN, Frame, indent_of, labelled, side_by_side
from attnscope.document.markdown import markdown_document
from attnscope.document.styles import CYAN
from attnscope.document.styles import WRONG as RED
from attnscope.document.terminal import print_document, print_hanging
from attnscope.document.text import READABLE, can_show
from attnscope.model.run.tokens import Token

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
        yield Text(f"only {where} of {n_Q:,}; --plot draws all")
