"""Print one query's weights in a vision model as the grid of image patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from attnscope.render import axes
from attnscope.render.colours import Scale, pixel_lines
from attnscope.render.image_patches import first_query, on_patches, query_text, weights_of, without
from attnscope.render.pooling import chunks, pooled
from attnscope.render.terminal.table import print_line
from attnscope.render.text import number_text
from attnscope.results.maps import AttentionMaps, Picture

if TYPE_CHECKING:
    import numpy as np

MOST_LINES = 28  # of the terminal that an enlarged picture may take
BESIDE = 8  # lines of the terminal for the text above and below


def print_patches(
    maps: AttentionMaps,
    picture: Picture,
    attention: np.ndarray,
    console: Console,
    query: int | None = None,
) -> None:
    """Print the weight that a query gives to each patch, arranged as in the image.

    Args:
        maps: the maps, for their tokens.
        picture: the grid of patches.
        attention: `n_Q n_K`.
        console: the console.
        query: the query's position; None: that of `first_query`.
    """
    query = first_query(picture) if query is None else query
    weights = weights_of(attention, query)
    patches = on_patches(without(maps, weights), picture)
    scale = Scale.of(console, patches)
    print_line(console, Text(axes.spelled(query_text(maps.query_tokens, query), scale)))
    lines = min(MOST_LINES, max(1, console.height - BESIDE)) if console.is_terminal else MOST_LINES
    for line in pixel_lines(_resized(patches, scale, console.width, lines), scale):
        if not scale.ramp:
            line.rstrip()
        console.print(line, soft_wrap=True)
    print_line(console, scale.legend(console.width))
    print_line(console, Text(_elsewhere(maps, picture, weights, scale)))


def _resized(patches: np.ndarray, scale: Scale, width: int, lines: int) -> np.ndarray:
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


def _elsewhere(maps: AttentionMaps, picture: Picture, weights: np.ndarray, scale: Scale) -> str:
    """Describe how the weight is divided between patches and other tokens."""
    end = picture.first + picture.rows * picture.columns
    other_keys = [i for i in range(len(weights)) if not picture.first <= i < end]
    grid = f"{picture.rows} {scale.marks.times} {picture.columns} patches"
    parts = [f"{grid} {number_text(float(weights[picture.first : end].sum()))}"]
    parts += [
        f"{axes.token_text(maps.key_tokens[i], scale)} {number_text(float(weights[i]))}"
        for i in other_keys
    ]
    return "weight on " + ", ".join(parts)
