"""Draw masks: a panel for each, with its visible pairs, or with cells of many pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attnscope.document.figure import (
    CELL,
    MAX_INCHES,
    THIN,
    axes_at,
    draw_matrix,
    drawable,
    label_axis,
)
from attnscope.masks.drawing import MOST_PLANES, cell_size, mask_lines, plane_title, tokens_of
from attnscope.masks.planes import Plane
from attnscope.masks.result import AttentionMask, AttentionMasks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("0.95", "#fdae6b", "#d94801")
"""Of what is hidden, of cells with some visible pairs, and of what is visible."""

LARGEST = 400  # cells along an axis: fewer than pixels, so that all are visible
PANEL = 4.0  # inches of one panel, at most, if there are several
ABOVE = 1.3  # inches from the top of panels to the model's name
FEW = 40  # queries or keys, up to which lines separate them
BETWEEN = 1.6  # inches between panels, for tokens and titles


def draw_masks(figure: Figure, result: AttentionMasks) -> None:
    """Draw a panel for each mask, and for sequences and heads where they differ."""
    panels = [(mask, plane) for mask in result.masks for plane in mask.planes[:MOST_PLANES]]
    longest = MAX_INCHES if len(panels) == 1 else PANEL
    sizes = [_size(mask, longest) for mask, _ in panels]
    width = sum(wide for wide, _ in sizes) + BETWEEN * (len(panels) - 1)
    height = max(high for _, high in sizes)
    figure.set_size_inches(width, height)
    left = 0.0
    for (mask, plane), (wide, high) in zip(panels, sizes, strict=True):
        _draw(axes_at(figure, left, 0, wide, high), result, mask, plane, (wide, high))
        left += wide + BETWEEN
    if result.model is not None:
        title = drawable(result.title)
        figure.text(0, 1 + ABOVE / height, title, weight="bold", parse_math=False)


def _size(mask: AttentionMask, longest: float) -> tuple[float, float]:
    """Return the width and height of a panel in inches."""
    cell = min(CELL, longest / max(mask.n_Q, mask.n_K))
    return max(0.3, cell * mask.n_K), max(0.3, cell * mask.n_Q)


def _draw(
    axes: Axes, result: AttentionMasks, mask: AttentionMask, plane: Plane, inches: tuple[float, float]
) -> None:
    """Draw one panel of `inches` width and height."""
    import numpy as np
    from matplotlib.colors import ListedColormap

    size = cell_size(mask, result.cell, LARGEST, LARGEST)
    cells = np.array(plane.grid(size, size))
    shape = mask.n_Q, mask.n_K
    draw_matrix(axes, cells, ListedColormap(COLOURS), 2, shape=shape, sizes=(size, size))
    if max(shape) <= FEW:
        for i in range(1, mask.n_K):
            axes.axvline(i - 0.5, color="white", linewidth=THIN)
        for i in range(1, mask.n_Q):
            axes.axhline(i - 0.5, color="white", linewidth=THIN)
    sides: tuple[Literal["x", "y"], ...] = ("x", "y")
    for side, of_axis, n, length in zip(
        sides, (mask.key_tokens, mask.query_tokens), (mask.n_K, mask.n_Q), inches, strict=True
    ):
        if (tokens := tokens_of(of_axis, plane)) is not None:
            label_axis(axes, tokens, [range(i, i + 1) for i in range(n)], length / n, side)
    first = drawable([*mask_lines(result, mask), f"{result.title}: {mask.pattern_text}"][0])
    more = plane_title(mask, plane)
    title = f"{first.split(': ')[0]}\n{more}" if more else first
    axes.set_title(title, parse_math=False, pad=10, loc="left")
    for spine in axes.spines.values():
        spine.set_linewidth(THIN)
