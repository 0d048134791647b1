"""Draw attention maps: on a terminal, in a notebook, and as tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnscope.base.text import printable
from attnscope.base.units import number_text
from attnscope.document.blocks import Drawing
from attnscope.document.columns import Column, check_columns
from attnscope.document.grid import axes
from attnscope.document.grid.axes import label
from attnscope.document.grid.colours import ColourScale, pixel_lines, print_picture_line
from attnscope.document.grid.heatmap import print_heatmap
from attnscope.document.grid.overview import print_overview
from attnscope.document.grid.pooling import (
    Pooling,
    borders,
    chunks,
    first_tokens,
    groups,
    of_cells,
    pooled,
    positions,
    row_of,
    smaller,
    span,
)
from attnscope.document.markdown import markdown_table
from attnscope.document.page.document import frame
from attnscope.document.page.page import MAX_CANVAS, model_name, page_html
from attnscope.document.terminal import print_columns, print_heading, print_line, print_notices
from attnscope.model.maps.record import heading, of_query, top_columns
from attnscope.model.maps.result import WEIGHTS, AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Picture, Token

if TYPE_CHECKING:
    import numpy as np

LONGEST_BAR = 50
FEW = 3  # up to this number, neighbouring keys of weight 0 have a line each
NUMBER = len(" 0.1234")

MOST_LINES = 28  # of the terminal that an enlarged picture may take
BESIDE = 8  # lines of the terminal for the text above and below

LARGEST = 5_000_000
"""The most characters of a page in a notebook, whose file stores it."""

OF_PAGE, OF_HEAD, OF_WEIGHT = 500_000, 1_000, 2.7
"""The most characters of a page: for script, style and tokens; for each head; for each weight."""


@dataclass(frozen=True)
class MapsDrawing(Drawing):
    """Attention maps, or each query's strongest keys, with their heading, notices and checks.

    A notebook shows the interactive page in a frame, which contains all of these.
    """

    maps: AttentionMaps

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print one head's map, an overview of several, or a table of the strongest keys."""
        maps = self.maps
        if maps.query is not None and maps.pooling is not None:
            maps = of_query(maps, maps.query)
        columns = top_columns(maps)
        whole = replace(maps, pooling=None) if columns else maps  # the columns are of single queries
        print_heading(heading(whole), console)
        if columns:
            print_columns(columns, console, wide)
        else:
            console.print()
            print_maps(maps, console)
        print_notices(console, maps.notices)
        if maps.checks:
            print_columns(check_columns(maps.checks), console, wide)

    def html(self) -> str:
        """Return a frame with the interactive page."""
        page, note = page_and_note(self.maps)
        return frame(page, f"{model_name(self.maps.model)}: attention maps", note)

    def markdown(self) -> list[str]:
        """Return a heading, and a table for each head, or of each query's strongest keys."""
        maps = self.maps if self.maps.query is None else of_query(self.maps, self.maps.query)
        title, *parts = map(printable, heading(maps))
        parts.insert(0, f"**{title}**")
        if columns := top_columns(maps):
            parts.append(markdown_table(columns))
        else:
            for each in maps.maps:
                parts += [] if maps.one else [maps.place_of(each).replace(" · ", ", ")]
                parts.append(markdown_table(_matrix_columns(maps, each)))
        parts += map(printable, maps.notices)
        return [*parts, markdown_table(check_columns(maps.checks))] if maps.checks else parts


def _matrix_columns(maps: AttentionMaps, map: AttentionMap) -> list[Column]:
    """Return the table of a map for Markdown: a row for each query, a column for each key."""
    maps = of_cells(maps)
    queries = Column("", "query", [[(label(token.text), "")] for token in maps.query_tokens], [])
    columns = [queries]
    for k, token in enumerate(maps.key_tokens):
        shown = ".2f" if maps.kind.as_weights else ".3g"
        cells = [[(f"{weight:{shown}}", "")] for weight in map.attention[:, k].tolist()]
        columns.append(Column(label(token.text), f"key {k}", cells, [], right=True))
    return columns


# On a terminal.


def print_maps(maps: AttentionMaps, console: Console) -> None:
    """Print a head's map, an image's patches, one query's weights as bars, or an overview of heads."""
    if maps.one is None:
        of_heads = {(each.layer, each.head): each.attention for each in maps.maps}
        print_overview(maps, of_heads, console, of_layers=not maps.of_heads)
    elif maps.picture is not None:
        _print_patches(maps, maps.picture, maps.one.attention, console, maps.query)
    elif maps.query is not None:
        _print_row(maps, maps.one.attention, maps.query, console)
    else:
        what = "weights" if maps.kind is WEIGHTS else maps.kind.name
        print_heatmap(maps, maps.one.attention, console, unit=_unit(maps, maps.one), what=what)


def _unit(maps: AttentionMaps, map: AttentionMap) -> float | None:
    """Return the number that a heatmap shows as 100 %: the largest; None: 1, for shares of 1."""
    return replace(maps, maps=[map]).unit


def _print_row(maps: AttentionMaps, attention: np.ndarray, query: int, console: Console) -> None:
    """Print a query's weights, one line for each key; runs of keys of weight 0 share a line."""
    import numpy as np

    row = query - maps.first_query
    weights = attention[row]
    scale = ColourScale.of(console, np.delete(weights, maps.left_out))
    token = maps.query_tokens[row]
    text = axes.isolated(axes.token_text(token, scale))
    print_line(
        console, Text.assemble("query ", (str(query), axes.QUERY), " ", (text, axes.token_style(token)))
    )
    for line in _bars(maps, weights.tolist(), scale, console.width):
        line.rstrip()
        console.print(line, soft_wrap=True)


def _bars(maps: AttentionMaps, weights: list[float], scale: ColourScale, width: int) -> Iterator[Text]:
    tokens = maps.key_tokens
    texts = [axes.token_text(token, scale) for token in tokens]
    number = len(str(len(tokens) - 1))
    room = width - number - NUMBER - 3
    label = min(max(map(cell_len, texts)), room // 2)
    longest = min(LONGEST_BAR, room - label)
    starts = borders(tokens)
    for keys in _runs(weights, starts):
        if keys.start in starts:
            yield Text(scale.marks.horizontal * (width - room + label + longest), "dim")
        if len(keys) > 1:
            yield Text(f"{axes.range_text(keys, scale)}: 0", "dim")
            continue
        key, weight = keys.start, weights[keys.start]
        line = Text().append(str(key).rjust(number), axes.KEY).append(" ")
        line.append_text(axes.left(texts[key], label, scale, axes.token_style(tokens[key])))
        left_out = key in maps.left_out
        line.append(f" {scale.bar(0.0 if left_out else weight, longest)} ", scale.filled)
        text = f"{weight:.4f}" if maps.kind.as_weights else number_text(weight)
        yield line.append(text if weight else "0", "dim" if left_out or not weight else "")


def _runs(weights: list[float], starts: list[int]) -> Iterator[range]:
    """Yield each key by itself, and long runs of keys of weight 0 within one text together."""
    text_of = [sum(start <= key for start in starts) for key in range(len(weights))]
    for (_, is_zero), run in groupby(
        range(len(weights)), key=lambda key: (text_of[key], weights[key] == 0)
    ):
        keys = list(run)
        if is_zero and len(keys) > FEW:
            yield range(keys[0], keys[-1] + 1)
        else:
            yield from (range(key, key + 1) for key in keys)


def _print_patches(
    maps: AttentionMaps,
    picture: Picture,
    attention: np.ndarray,
    console: Console,
    query: int | None = None,
) -> None:
    """Print the weight that a query gives to each patch, arranged as in the image.

    If `query` is None, it is that of `first_query`.
    """
    query = first_query(picture) if query is None else query
    weights = weights_of(attention, query)
    patches = on_patches(without(maps, weights), picture)
    scale = ColourScale.of(console, patches)
    print_line(console, Text(axes.spelled(query_text(maps.query_tokens, query), scale)))
    lines = min(MOST_LINES, max(1, console.height - BESIDE)) if console.is_terminal else MOST_LINES
    for line in pixel_lines(_resized(patches, scale, console.width, lines), scale):
        print_picture_line(console, scale, line)
    print_line(console, scale.legend(console.width))
    print_line(console, Text(_elsewhere(maps, picture, weights, scale)))


def _resized(patches: np.ndarray, scale: ColourScale, width: int, lines: int) -> np.ndarray:
    """Enlarge square patches up to `lines` lines, or pool them to the width."""
    import numpy as np

    wide = 2 // scale.rows_per_line  # pixels side by side that form a square
    rows, columns = patches.shape
    if columns * wide > width:
        size = -(-columns * wide // width)
        patches = pooled(patches, chunks(rows, -(-rows // size)), chunks(columns, -(-columns // size)))
        rows, columns = patches.shape
    larger = max(1, min(width // (columns * wide), lines * scale.rows_per_line // rows))
    return np.repeat(np.repeat(patches, larger, axis=0), larger * wide, axis=1)


def _elsewhere(maps: AttentionMaps, picture: Picture, weights: np.ndarray, scale: ColourScale) -> str:
    """Describe how the weight is divided between patches and other tokens."""
    end = picture.first + picture.rows * picture.columns
    other_keys = [i for i in range(len(weights)) if not picture.first <= i < end]
    grid = f"{picture.rows} {scale.marks.times} {picture.columns} patches"
    parts = [f"{grid} {number_text(float(weights[picture.first : end].sum()))}"]
    parts += [
        f"{axes.token_text(maps.key_tokens[i], scale)} {number_text(float(weights[i]))}"
        for i in other_keys
    ]
    return f"{maps.kind.label} on " + ", ".join(parts)


# Of an image.


def first_query(picture: Picture) -> int | None:
    """Return the query that represents the whole image: the first token before the patches, or None."""
    return 0 if picture.first else None


def weights_of(attention: np.ndarray, query: int | None) -> np.ndarray:
    """Return the weights of a query, `n_K`; if it is None, the mean over all queries."""
    return attention.mean(axis=0) if query is None else attention[query]


def without(maps: AttentionMaps, weights: np.ndarray) -> np.ndarray:
    """Return the weights of one query, `n_K`, with 0 for the keys that are left out."""
    weights = weights.copy()
    weights[maps.left_out] = 0
    return weights


def on_patches(weights: np.ndarray, picture: Picture) -> np.ndarray:
    """Arrange the weights of the patches as in the image: `rows columns`."""
    end = picture.first + picture.rows * picture.columns
    return weights[picture.first : end].reshape(picture.rows, picture.columns)


def query_text(tokens: Sequence[Token], query: int | None) -> str:
    """Name the query whose weights are shown, or the mean over all queries."""
    if query is None:
        return f"all {len(tokens)} queries on average"
    return f"query {query} {label(tokens[query].text)}"


# In a notebook.


def page_and_note(maps: AttentionMaps) -> tuple[str, str]:
    """Return the page of the maps; and a note if they are pooled because it would be too large."""
    stacks = [*(maps.collected or [maps]), *maps.of_weights]
    heads = [each for stack in stacks for each in stack.maps]
    n_weights = sum(each.attention.size for each in heads)
    longest = max(max(each.attention.shape) for each in heads)
    if longest <= MAX_CANVAS and n_weights <= 2 * LARGEST:
        page = maps_page(maps)
        if len(page) <= LARGEST:
            return page, ""
    room = LARGEST - OF_PAGE - OF_HEAD * len(heads)
    most = max(1, int((max(room, 0) / OF_WEIGHT / len(heads)) ** 0.5))
    shown = smaller_maps(maps, most)
    if maps.collected is not None:
        shown.collected = [smaller_maps(stack, most) for stack in maps.collected]
    shown.of_weights = [smaller_maps(stack, most) for stack in maps.of_weights]
    note = (
        f"The page of these maps has more than {LARGEST // 10**6} MB. Here they are pooled to at most"
        f' {most} × {most} cells; maps.save("attention.html") writes the whole page.'
    )
    return maps_page(shown), note


def smaller_maps(maps: AttentionMaps, most: int) -> AttentionMaps:
    """Pool maps to at most `most` rows and columns of cells; small ones stay as they are."""
    cells = positions(maps)
    rows, columns = (groups(tokens, most) for tokens in first_tokens(maps))
    if (len(rows), len(columns)) == tuple(map(len, cells)):
        return replace(maps)
    small = [
        replace(each, attention=smaller(maps, each.attention, rows, columns), row=None, top=None)
        for each in maps.maps
    ]
    queries, keys = (
        [span(axis, group) for group in of_axis]
        for axis, of_axis in zip(cells, (rows, columns), strict=True)
    )
    shown = "max" if maps.pooling is None else maps.pooling.shown
    return replace(maps, maps=small, pooling=Pooling(shown, queries, keys))


def maps_page(maps: AttentionMaps) -> str:
    """Return a page of attention maps: of all that were collected for it, or else of these alone."""
    stacks = []
    for each in maps.collected or [maps]:
        is_shown = each.stack == maps.stack
        stacks.append(replace(each, checks=maps.checks, notices=maps.notices) if is_shown else each)
    stacks.sort(key=lambda each: each.stack != maps.stack)
    measured = maps.metrics
    if maps.of_weights:
        stacks, measured = beside_weights(stacks, maps.of_weights, measured)
    return page_html(
        stacks,
        layer=maps.maps[0].layer,
        head=maps.maps[0].head,
        query=None if maps.query is None else row_of(maps, maps.query),
        title=f"{maps.model} · attention",
        heads=measured,
        metric=None if measured is None else "map",
        without_sink=bool(maps.left_out),
    )


def beside_weights(
    stacks: list[AttentionMaps], weights: list[AttentionMaps], measured: Any
) -> tuple[list[AttentionMaps], Any]:
    """Return stacks between which a page switches: other numbers and the weights that they come from.

    Their names say what their numbers are. Metrics are those of the heads' weights in all of them: of
    `measured`, a table of heads.
    """

    def name(stack: str, numbers: str) -> str:
        return numbers if stack == "self" else f"{stack} {numbers}"

    shown = [
        replace(each, stack=name(each.stack, each.numbers))
        for stack in stacks
        for each in (stack, *(own for own in weights if own.stack == stack.stack))
    ]
    if measured is None:
        return shown, None
    kinds = (stacks[0].numbers, WEIGHTS.name)
    rows = [replace(row, stack=name(row.stack, kind)) for kind in kinds for row in measured.rows]
    layers = {name(stack, kind): sizes for kind in kinds for stack, sizes in measured.layers.items()}
    return shown, replace(measured, rows=rows, layers=layers)
