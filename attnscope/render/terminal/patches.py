"""What a vision model looks at: one query's weights, as the grid of patches of the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from attnscope.render import axes
from attnscope.render.colours import Scale, pixel_lines
from attnscope.render.patches import asked_text, first_query, on_patches, weights_of, without
from attnscope.render.pooling import chunks, pooled
from attnscope.render.terminal.table import print_line
from attnscope.render.text import number_text
from attnscope.results.maps import AttentionMaps, Picture

if TYPE_CHECKING:
    import numpy as np

MOST_LINES = 28  # of a terminal: the picture is enlarged as long as it has no more
BESIDE = 8  # lines of a terminal for what stands above and below


def print_patches(
    maps: AttentionMaps,
    picture: Picture,
    attention: np.ndarray,
    console: Console,
    query: int | None = None,
) -> None:
    """Print how much a query looks at each patch, in the places that the patches have in the picture.

    Args:
        maps: whose tokens they are.
        picture: how the patches lie.
        attention: `n_Q n_K`.
        console: where.
        query: its position; None is `first_query`.
    """
    asked = first_query(picture) if query is None else query
    weights = weights_of(attention, asked)
    patches = on_patches(without(maps, weights), picture)
    scale = Scale.of(console, patches)
    print_line(console, Text(axes.spelled(asked_text(maps.query_tokens, asked), scale)))
    lines = min(MOST_LINES, max(1, console.height - BESIDE)) if console.is_terminal else MOST_LINES
    for line in pixel_lines(_sized(patches, scale, console.width, lines), scale):
        if not scale.ramp:
            line.rstrip()
        console.print(line, soft_wrap=True)
    print_line(console, scale.legend(console.width))
    print_line(console, Text(_elsewhere(maps, picture, weights, scale)))


def _sized(patches: np.ndarray, scale: Scale, width: int, lines: int) -> np.ndarray:
    """Patches as large as `lines` have room for, or pooled to the width; as high as they are wide."""
    import numpy as np

    wide = 2 // scale.rows_per_line  # pixels that are together as wide as one is high
    rows, columns = patches.shape
    if columns * wide > width:
        size = -(-columns * wide // width)
        patches = pooled(patches, chunks(rows, -(-rows // size)), chunks(columns, -(-columns // size)))
        rows, columns = patches.shape
    larger = max(1, min(width // (columns * wide), lines * scale.rows_per_line // rows))
    return np.repeat(np.repeat(patches, larger, axis=0), larger * wide, axis=1)


def _elsewhere(maps: AttentionMaps, picture: Picture, weights: np.ndarray, scale: Scale) -> str:
    """How the weight is shared by patches and other tokens."""
    end = picture.first + picture.rows * picture.columns
    others = [i for i in range(len(weights)) if not picture.first <= i < end]
    grid = f"{picture.rows} {scale.marks.times} {picture.columns} patches"
    parts = [f"{grid} {number_text(float(weights[picture.first : end].sum()))}"]
    parts += [
        f"{axes.token_text(maps.key_tokens[i], scale)} {number_text(float(weights[i]))}" for i in others
    ]
    return "weight on " + ", ".join(parts)
