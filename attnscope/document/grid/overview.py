"""Print an overview of heads: a small map for each, with a row for each layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from math import ceil
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from attnscope.document.grid.colours import ColourScale, pixel_lines, print_picture_line
from attnscope.document.grid.pooling import SHOWN, TokenGrid, chunks, positions, smaller_without, span
from attnscope.document.styles import AXIS_STYLES
from attnscope.document.terminal import print_line

if TYPE_CHECKING:
    import numpy as np

LEAST, MOST = 5, 24  # width of a map in characters
GAP = 1  # between two maps
HEAD = "head"
HEAD_STYLE = AXIS_STYLES["n_head"]
LAYER = "bold"


def print_overview(
    maps: TokenGrid,
    of_heads: Mapping[tuple[int, int], np.ndarray],
    console: Console,
    *,
    of_layers: bool = False,
) -> None:
    """Print every map, with a row for each layer and a column for each head.

    All maps share one scale, from 0 to the largest weight. Maps are as large as the width allows, and
    those of long texts are pooled: each spot shows the largest of several weights. Heads without a map
    are blank. If the maps are `of_layers`, there is one for each layer, and not for each head.
    """
    import numpy as np

    layers, heads = (sorted(set(numbers)) for numbers in zip(*of_heads, strict=True))
    indent = max(len(HEAD), *(len(str(layer)) for layer in layers)) + GAP
    room = max(LEAST, console.width - indent) + GAP
    most = room // (LEAST + GAP)  # maps side by side
    bands = chunks(len(heads), ceil(len(heads) / most))
    width = min(MOST, room // len(bands[0]) - GAP)
    high = height_of(width, ColourScale.of(console, np.zeros(0)))
    small = {place: small_map(maps, each, width, high) for place, each in of_heads.items()}
    scale = ColourScale.of(
        console, np.array([np.nan_to_num(each).max(initial=0) for each in small.values()])
    )
    for band in bands:
        shown = [heads[i] for i in band]
        print_line(console, Text("layer", "dim") if of_layers else _head(shown, indent, width))
        for layer in layers:
            pictures = [picture(small.get((layer, head)), width, scale) for head in shown]
            for i, line in enumerate(side_by_side(pictures, width)):
                label = Text(str(layer) if i == 0 else "", LAYER)
                label.append(" " * (indent - label.cell_len)).append_text(line)
                print_picture_line(console, scale, label)
    print_line(console, scale.legend(console.width))
    sentence = _sentence(maps, width, scale, "layer" if of_layers else "head")
    print_line(console, Text(sentence, "dim"))


def _sentence(maps: TokenGrid, width: int, scale: ColourScale, each: str) -> str:
    """Explain the small maps."""
    n_Q, n_K = len(maps.query_tokens), len(maps.key_tokens)
    queries, keys = positions(maps)
    high = len(span(queries, chunks(len(queries), height_of(width, scale))[0]))
    wide = len(span(keys, chunks(len(keys), width)[0]))
    kind = "max" if maps.pooling is None else maps.pooling.shown
    pooling = (
        f"; each spot is {SHOWN[kind]} of {high} {scale.marks.times} {wide} weights"
        if high * wide > 1
        else ""
    )
    blank = "; the columns of the sink are blank" if maps.left_out else ""
    return f"a map for each {each}: {n_Q} queries downwards, {n_K} keys across{pooling}{blank}"


def height_of(width: int, scale: ColourScale) -> int:
    """Return the rows of a square map of `width` spots, or slightly fewer to leave a gap below."""
    return (width - 1) // 2 * 2 + 1 if scale.rows_per_line == 2 else ceil(width / 2)


def _head(heads: list[int], indent: int, width: int) -> Text:
    """Return a line with the numbers of the heads above their columns of maps."""
    line = Text(HEAD.ljust(indent), "dim")
    for head in heads:
        line.append(str(head).ljust(width + GAP), HEAD_STYLE)
    line.rstrip()
    return line


def small_map(maps: TokenGrid, attention: np.ndarray, width: int, height: int) -> np.ndarray:
    """Pool a map to at most `height` × `width` spots; those of keys that are left out are 0."""
    rows, columns = attention.shape
    small, left_out = smaller_without(maps, attention, chunks(rows, height), chunks(columns, width))
    small[:, left_out] = 0
    return small


def picture(small: np.ndarray | None, width: int, scale: ColourScale) -> list[Text]:
    """Draw a map `width` characters wide, about square, with a gap below; None has no lines."""
    import numpy as np

    if small is None:
        return []
    larger = height_of(width, scale) // small.shape[0], width // small.shape[1]
    lines = pixel_lines(np.kron(small, np.ones(larger, small.dtype)), scale)
    return lines if scale.rows_per_line == 2 else [*lines, Text()]


def side_by_side(pictures: list[list[Text]], width: int) -> Iterator[Text]:
    """Yield the lines of pictures placed side by side."""
    for parts in zip_longest(*pictures, fillvalue=Text()):
        line = Text()
        for part in parts:
            line.append_text(part).append(" " * (width + GAP - part.cell_len))
        line.right_crop(GAP)
        yield line
