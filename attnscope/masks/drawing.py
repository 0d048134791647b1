"""Pictures of a mask, in characters and as SVG: its pairs, or cells of many pairs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from attnscope.base.spelling import either
from attnscope.base.text import printable
from attnscope.base.units import counted, numbers_text
from attnscope.document.blocks import Drawing
from attnscope.document.grid import axes
from attnscope.document.grid.axes import label
from attnscope.document.grid.colours import ColourScale
from attnscope.document.grid.heatmap import MOST_ROWS
from attnscope.document.grid.matrix import PLAIN, Frame, indent_of, labelled
from attnscope.document.styles import CYAN, ORANGE
from attnscope.document.terminal import print_line, print_notices, print_parts
from attnscope.document.text import can_show
from attnscope.masks.planes import EMPTY, FULL, PARTIAL, Plane
from attnscope.masks.result import NO_RULE, AttentionMask, AttentionMasks
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_PLANES = 6
"""The most pictures of one mask, if sequences or heads see different keys."""

STYLES = {EMPTY: "dim", PARTIAL: ORANGE, FULL: CYAN}
PAIRS, CELLS, ASCII = "·▒■", "·▒█", ".+#"
"""The characters for nothing, some and all of a pair or a cell; and in encodings that lack them."""

TOKEN_CELLS = 24  # the most terminal cells of a query's token

MOST_IN_SVG = 128
"""The most cells along an axis of an SVG."""

PIXELS, TALLEST = 16, 640
"""Of a cell of an SVG, at most, and of all of it."""

WITH_TOKENS = 48
"""The most rows of an SVG that are labelled with tokens."""


@dataclass(frozen=True)
class MaskDrawing(Drawing):
    """The pictures of a mask: one, or several if sequences or heads see different keys."""

    mask: AttentionMask
    cell: int | None  #: the queries and keys in a cell; None: as few as fit
    apart: bool  #: whether a terminal leaves a line free above it

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print pictures that fit the width of a terminal, and at most 60 rows; piped, 200 of both."""
        if self.apart:
            print_line(console, Text())
        frame = Frame.of(console, MOST_ROWS, ColourScale.without_weights(console))
        sentences: list[Text] = []
        for plane in self.mask.planes[:MOST_PLANES]:
            if title := plane_title(self.mask, plane):
                print_line(console, Text(title))
            lines, sentences = picture(self.mask, plane, self.cell, frame)
            for line in lines:
                console.print(line, soft_wrap=True)
        for sentence in sentences:
            print_parts(console, sentence, "; ")
        print_notices(console, filter(None, [self._more]))

    def html(self) -> str:
        """Return pictures as SVG, with their titles."""
        from markupsafe import Markup, escape

        figures = Markup()
        for plane in self.mask.planes[:MOST_PLANES]:
            title = plane_title(self.mask, plane)
            caption = Markup("<figcaption>{}</figcaption>").format(title) if title else ""
            figures += Markup("<figure>{}{}</figure>\n").format(
                caption, svg(self.mask, plane, self.cell)
            )
        more = Markup('\n<p class="soft">{}</p>').format(self._more) if self._more else ""
        return Markup('<div class="grids">\n{}</div>{}').format(figures, escape(more))

    def markdown(self) -> list[str]:
        """Return pictures in characters, with their titles."""
        parts = []
        frame = Frame(120, 120, PLAIN)
        for plane in self.mask.planes[:MOST_PLANES]:
            parts.append(plane_title(self.mask, plane))
            lines, sentences = picture(self.mask, plane, self.cell, frame)
            parts.append("\n".join(["```", *(line.plain for line in (*lines, *sentences)), "```"]))
        return [part for part in [*parts, self._more] if part]

    @property
    def _more(self) -> str:
        """The sentence that says how many pictures are left out; empty if none are."""
        more = len(self.mask.planes) - MOST_PLANES
        what = f"{counted(more, 'more mask')} of sequences and heads"
        how = either(command_line="--format json", python="to_dict()")
        return f"… and {what}: {how}" if more > 0 else ""


def mask_lines(result: AttentionMasks, mask: AttentionMask) -> list[str]:
    """List the lines above the pictures of a mask: its layers and what they see; why they do.

    A mask by a rule needs none.
    """
    if result.model is None:
        return [f"{mask.name}: {mask.pattern_text}"] if mask.name else []
    kinds = f" ({'; '.join(mask.kinds)})" if mask.kinds else ""
    layers = mask.layers_text(several_stacks=has_several_stacks(result))
    return [f"{layers}{kinds}: {mask.pattern_text}", f"{mask.kernel} received {mask.received}"]


def has_several_stacks(result: AttentionMasks) -> bool:
    return len({each.stack for each in result.masks}) > 1


def plane_title(mask: AttentionMask, plane: Plane) -> str:
    """Name the sequences and heads of a plane, and what they see; empty if it is the only one."""
    if len(mask.planes) == 1:
        return ""
    pattern = mask.patterns[[each is plane for each in mask.planes].index(True)]
    return f"{_places_text(mask, plane)}: {pattern or NO_RULE}"


def _places_text(mask: AttentionMask, plane: Plane) -> str:
    """Name the sequences and heads of a plane."""
    sequences = sorted({sequence for sequence, _ in plane.places})
    heads = sorted({head for _, head in plane.places})
    if len(plane.places) != len(sequences) * len(heads):  # not all pairs of these
        return ", ".join(f"sequence {sequence} head {head}" for sequence, head in plane.places)
    parts = []
    if mask.n_batch > 1:
        parts.append(f"sequence{'' if len(sequences) == 1 else 's'} {numbers_text(sequences)}")
    if mask.n_head > 1:
        parts.append(f"head{'' if len(heads) == 1 else 's'} {numbers_text(heads)}")
    return ", ".join(parts)


def tokens_of(tokens: list[list[Token]] | None, plane: Plane) -> list[Token] | None:
    """Return the tokens of the first sequence of a plane; None if there are none."""
    return None if tokens is None else tokens[plane.places[0][0] % len(tokens)]


def cell_size(mask: AttentionMask, cell: int | None, most_rows: int, most_columns: int) -> int:
    """Choose the queries and keys in a cell of a picture: 1, or a power of 2, or the size requested.

    A cell that is larger than the mask is as large as the mask.
    """
    if cell is not None:
        return min(cell, max(mask.n_Q, mask.n_K))
    size = 1
    while ceil(mask.n_Q / size) > most_rows or ceil(mask.n_K / size) > most_columns:
        size *= 2
    return size


# Characters.


def picture(
    mask: AttentionMask, plane: Plane, cell: int | None, frame: Frame
) -> tuple[list[Text], list[Text]]:
    """Draw one plane: return a ruler and a line for each row of cells; and sentences that explain these.

    Cells are as small as fit, unless they are of `cell` queries and keys.
    """
    scale = frame.scale
    queries, keys = tokens_of(mask.query_tokens, plane), tokens_of(mask.key_tokens, plane)

    def labels_of(size: int) -> list[Text]:
        longest = min(TOKEN_CELLS, frame.width // 4)
        return axes.row_labels(_groups(plane.n_Q, size), queries, longest, scale)

    size = cell_size(mask, cell, frame.rows, max(1, frame.width - 1 - len(str(plane.n_Q))))
    labels = labels_of(size)
    if cell is None:
        size = cell_size(mask, None, frame.rows, max(1, frame.width - indent_of(labels)))
        labels = labels_of(size)
    width = 2 if 2 * ceil(plane.n_K / size) <= frame.width - indent_of(labels) else 1
    pairs = PAIRS if size == 1 else CELLS
    marks = pairs if can_show(pairs, scale.encoding) else ASCII
    rows = [axes.ruler(_groups(plane.n_K, size), width)]
    for row in plane.grid(size, size):
        line = Text()
        for kind, equal in groupby(row):  # cells of several pairs touch each other
            text = marks[kind].ljust(width) if size == 1 else marks[kind] * width
            line.append(text * len(list(equal)), STYLES[kind])
        rows.append(line)
    lines = labelled(labels, rows)
    for line in lines:
        line.rstrip()
    differ = keys is not None and queries is not None and size == 1 and keys != queries
    legend = _legend(size, marks, scale.marks.times)
    return lines, [legend, *([axes.listed(keys or [], scale)] if differ else [])]


def _groups(n: int, size: int) -> list[range]:
    """Return the positions in each cell along an axis."""
    return [range(first, min(first + size, n)) for first in range(0, n, size)]


def _legend(size: int, marks: str, times: str) -> Text:
    """Say what rows, columns and characters mean."""
    line = Text("rows are ").append("queries", axes.QUERY).append(", columns ").append("keys", axes.KEY)
    meanings = {FULL: "visible", EMPTY: "hidden"}
    if size > 1:
        line.append(f"; a cell is {size:,} {times} {size:,} pairs: ")
        meanings = {FULL: "all visible", PARTIAL: "some", EMPTY: "none"}
    else:
        line.append("; ")
    for kind, meaning in meanings.items():
        line.append(marks[kind], STYLES[kind]).append(f" {meaning}" + ", " * (kind != EMPTY))
    return line


# SVG.


def svg(mask: AttentionMask, plane: Plane, cell: int | None) -> Markup:
    """Draw one plane as SVG: each row is a group, whose tooltip names the query and its keys."""
    from markupsafe import Markup, escape

    size = cell_size(mask, cell, MOST_IN_SVG, MOST_IN_SVG)
    n_row, n_column = -(-mask.n_Q // size), -(-mask.n_K // size)
    queries = tokens_of(mask.query_tokens, plane)
    pixels = max(2, min(PIXELS, TALLEST // n_row))
    named = queries is not None and size == 1 and n_row <= WITH_TOKENS
    margin = max((len(label(token.text)) for token in queries or ()), default=0) * 0.62 if named else 0
    rows = []
    for i, runs in enumerate(plane.blocks(size, size)):
        paths = {
            kind: "".join(
                f"M{start} {i}h{stop - start}v1h-{stop - start}z"
                for start, stop, of in runs
                if of == kind
            )
            for kind in {kind for _, _, kind in runs} - {EMPTY}
        }
        drawn = "".join(
            f'<path class="{"some" if kind == PARTIAL else "all"}" d="{path}"/>'
            for kind, path in sorted(paths.items())
        )
        first = i * size
        position = str(first) if size == 1 else f"{first}–{min(first + size, mask.n_Q) - 1}"
        text = printable(label(queries[first].text)) if queries is not None and size == 1 else ""
        title = escape(f"query {position} {text}".strip())
        name = f'<text x="-0.5" y="{i + 0.78}">{escape(text)}</text>' if named else ""
        row = f'<path class="row" d="M0 {i}h{n_column}v1h-{n_column}z"/>'
        rows.append(f"<g><title>{title}</title>{name}{row}{drawn}</g>")
    width = (n_column + margin) * pixels
    view = f"{-margin:g} 0 {n_column + margin:g} {n_row}"
    return Markup(
        f'<svg class="mask" viewBox="{view}" width="{width:.0f}" height="{n_row * pixels}" role="img"'
        f' shape-rendering="crispEdges"><title>{mask.n_Q} queries downwards, {mask.n_K} keys across'
        f"</title>{''.join(rows)}</svg>"
    )
