"""Draw masks: a panel for each, with its visible pairs, or with cells of many pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.document.figure import CELL, MAX_INCHES, THIN, drawable, label_axis
from attnscope.masks.document import mask_lines
from attnscope.masks.drawing import MOST_PLANES, cell_size, plane_title, tokens_of
from attnscope.masks.planes import Plane
from attnscope.masks.result import AttentionMask, AttentionMasks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("0.95", "#fdae6b", "#d94801")
"""Of what is hidden, of cells with some visible pairs, and of what is visible."""

LARGEST = 400  # cells along an axis: fewer than pixels, so that all are visible
PANEL = 4.0  # inches of one panel, at most, if there are several
ABOVE = 1.3  # inches from the top of panels to the model's name
FEW = 40  # queries or keys, up to which lines separate them
BETWEEN = 1.6  # inches between panels, for tokens and titles


def draw_masks(figure: Figure, result: AttentionMasks) -> None:
    """Draw a panel for each mask, and for sequences and heads where they differ.

    Args:
        figure: the figure to draw into.
        result: the masks.
    """
    panels = [(mask, plane) for mask in result.masks for plane in mask.planes[:MOST_PLANES]]
    longest = MAX_INCHES if len(panels) == 1 else PANEL
    sizes = [_size(mask, longest) for mask, _ in panels]
    width = sum(wide for wide, _ in sizes) + BETWEEN * (len(panels) - 1)
    height = max(high for _, high in sizes)
    figure.set_size_inches(width, height)
    left = 0.0
    for (mask, plane), (wide, high) in zip(panels, sizes, strict=True):
        box = left / width, 1 - high / height, wide / width, high / height
        _draw(figure, result, mask, plane, box, wide, high)
        left += wide + BETWEEN
    if result.model is not None:
        title = drawable(result.title)
        figure.text(0, 1 + ABOVE / height, title, weight="bold", parse_math=False)


def _size(mask: AttentionMask, longest: float) -> tuple[float, float]:
    """Return the width and height of a panel in inches."""
    cell = min(CELL, longest / max(mask.n_Q, mask.n_K))
    return max(0.3, cell * mask.n_K), max(0.3, cell * mask.n_Q)


def _draw(
    figure: Figure,
    result: AttentionMasks,
    mask: AttentionMask,
    plane: Plane,
    box: tuple[float, float, float, float],
    width: float,
    height: float,
) -> None:
    """Draw one panel.

    Args:
        figure: the figure to draw into.
        result, mask, plane: what is drawn.
        box: its place, in shares of the figure.
        width, height: its size in inches.
    """
    from matplotlib.colors import ListedColormap

    axes = figure.add_axes(box)
    size = cell_size(mask, result.cell, LARGEST, LARGEST)
    n_row, n_column = -(-mask.n_Q // size) * size, -(-mask.n_K // size) * size
    axes.imshow(
        plane.grid(size, size),
        ListedColormap(COLOURS),
        vmin=0,
        vmax=2,
        extent=(-0.5, n_column - 0.5, n_row - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
    )
    if max(mask.n_Q, mask.n_K) <= FEW:
        for i in range(1, mask.n_K):
            axes.axvline(i - 0.5, color="white", linewidth=THIN)
        for i in range(1, mask.n_Q):
            axes.axhline(i - 0.5, color="white", linewidth=THIN)
    axes.set(xlim=(-0.5, mask.n_K - 0.5), ylim=(mask.n_Q - 0.5, -0.5))
    for side, tokens, n, inches in (
        ("x", tokens_of(mask.key_tokens, plane), mask.n_K, width),
        ("y", tokens_of(mask.query_tokens, plane), mask.n_Q, height),
    ):
        if tokens is not None:
            places = [range(i, i + 1) for i in range(n)]
            label_axis(axes, tokens, places, inches / n, side)  # type: ignore[arg-type]
    axes.tick_params("x", top=True, bottom=False, labeltop=True, labelbottom=False)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("keys")
    axes.set_ylabel("queries")
    first = drawable([*mask_lines(result, mask), f"{result.title}: {mask.pattern_text}"][0])
    more = plane_title(mask, plane)
    title = f"{first.split(': ')[0]}\n{more}" if more else first
    axes.set_title(title, parse_math=False, pad=10, loc="left")
    for spine in axes.spines.values():
        spine.set_linewidth(THIN)
