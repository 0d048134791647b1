"""Draw audits: for each broken property, what was measured, and the mask that reached the layer."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

from attnscope.auditing.document import evidence_lines, heading
from attnscope.auditing.picture import (
    MISSING,
    NONE,
    WRONG,
    Cells,
    panels,
    pictures,
)
from attnscope.auditing.result import Audit, Influence, Property
from attnscope.document.figure import CELL, MAX_LETTERS, THIN, drawable, label_axis
from attnscope.document.grid.axes import label
from attnscope.document.grid.pooling import chunks
from attnscope.models.tokens import Token

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTHING, VISIBLE = "0.94", "#6baed6"
"""The colours of cells without influence, and of visible keys."""

MARK = "#cb181d"
FILLED = {WRONG: MARK, MISSING: "#fb9a99"}
"""The colours of what should not be, and of what is missing."""

PANEL = 4.5  # inches of a panel, at most
LARGEST = 200  # cells along an axis: fewer than pixels, so that all are visible
BETWEEN = 0.6  # inches between two panels, besides labels
LETTER, LINE = 0.065, 0.16  # inches of a letter of a label, and of a line of text
MARKED = 4.0  # points of a cell that has room for a mark
WORDS = 110  # letters of a line


def draw_audit(figure: Figure, result: Audit) -> None:
    """Draw a row of panels for each picture.

    Args:
        figure: the figure to draw into.
        result: an audit with at least one picture.
    """
    drawn = pictures(result)
    sizes = [min(PANEL, CELL * len(influence.measured)) for _, influence in drawn]
    margins = [_margin(influence) for _, influence in drawn]
    above = heading(result)
    texts = ["\n".join([above.title, *above.about]), *("\n".join(_words(*each)) for each in drawn)]
    heights = [LINE * (text.count("\n") + 2) if text else 0 for text in texts]
    width = max(2 * (margin + size) + BETWEEN for margin, size in zip(margins, sizes, strict=True))
    height = sum(sizes) + sum(heights) + sum(margin + 3 * LINE for margin in margins)
    figure.set_size_inches(width, height)

    def box(left: float, down: float, wide: float, high: float) -> tuple[float, float, float, float]:
        """Return a place in shares of the figure, from inches from its upper left corner."""
        return left / width, 1 - (down + high) / height, wide / width, high / height

    figure.text(0, 1, texts[0], weight="bold", va="top", parse_math=False)
    down = heights[0]
    for (_, influence), text, high, size, margin in zip(
        drawn, texts[1:], heights[1:], sizes, margins, strict=True
    ):
        figure.text(0, 1 - down / height, text, va="top", parse_math=False)
        down, left = down + high + margin + LINE, margin
        cells = [chunks(len(axis), LARGEST) for axis in (influence.measured, influence.measured[0])]
        for panel in panels(influence, *cells):
            axes = figure.add_axes(box(left, down, size, size))
            picture = _draw(axes, influence, panel, cells, size)
            axes.set_title(drawable(panel.title), parse_math=False, pad=8, loc="left")
            left += size + BETWEEN + margin
            if panel.top:
                scale = figure.add_axes(box(left - BETWEEN - margin + 0.08, down, 0.08, min(size, 2.0)))
                _add_scale(figure, scale, picture)
        down += size + 2 * LINE


def _words(each: Property | None, influence: Influence) -> list[str]:
    """Return the lines above a picture: why a property is broken, and what the marks mean."""
    texts = [] if each is None else list(evidence_lines(each))
    texts += ["×: should not be"] * bool(influence.wrong) + ["○: is missing"] * bool(influence.missing)
    return [line for text in texts for line in fill(drawable(text), WORDS).splitlines()]


def _margin(influence: Influence) -> float:
    """Return the inches that the labels of positions take."""
    longest = max(len(label(token)) for token in influence.tokens or ["000"])
    return 0.2 + LETTER * (min(longest, MAX_LETTERS) + 2)


def _draw(
    axes: Axes,
    influence: Influence,
    panel: Cells,
    cells: list[list[range]],
    inches: float,
) -> Any:
    """Draw a panel.

    Args:
        axes: the axes to draw into.
        influence: what is drawn, for its tokens.
        panel: its cells.
        cells: the positions in each row of cells, and in each column.
        inches: its size.

    Returns:
        The image, for a scale of its colours.
    """
    import numpy as np
    from matplotlib.colors import ListedColormap

    n = len(influence.measured)
    size = len(cells[0][0])
    end = len(cells[0]) * size - 0.5
    place: dict[str, Any] = {
        "extent": (-0.5, end, end, -0.5),
        "aspect": "auto",
        "interpolation": "nearest",
    }
    amounts = np.where(panel.amounts > 0, panel.amounts, np.nan)
    colours = _colours() if panel.top else ListedColormap([VISIBLE])
    picture = axes.imshow(
        amounts, colours.with_extremes(bad=NOTHING), vmin=0, vmax=panel.top or 1, **place
    )
    points = 72 * inches * size / n
    if points >= MARKED:
        hollow: dict[str, Any] = {"edgecolors": MARK, "facecolors": "none"}
        for kind, marker, style in ((WRONG, "x", {"color": MARK}), (MISSING, "o", hollow)):
            rows, columns = np.nonzero(panel.kinds == kind)
            where = [(size - 1) / 2 + size * each for each in (columns, rows)]
            area, width = (0.45 * points) ** 2, points / 9
            axes.scatter(where[0], where[1], s=area, marker=marker, linewidths=width, **style)
    else:
        kinds = np.where(panel.kinds > NONE + 1, panel.kinds, np.nan)
        axes.imshow(kinds, ListedColormap(list(FILLED.values())), vmin=WRONG, vmax=MISSING, **place)
    axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), xlabel="input", ylabel="output")
    if influence.tokens is not None:
        tokens = [Token(text) for text in influence.tokens]
        places = [range(i, i + 1) for i in range(n)]
        label_axis(axes, tokens, places, inches / n, "x")
        label_axis(axes, tokens, places, inches / n, "y")
    axes.tick_params(length=2, width=THIN, top=True, bottom=False, labeltop=True, labelbottom=False)
    axes.xaxis.set_label_position("top")
    return picture


def _colours() -> Any:
    """Return the colours of influence, of which the least differs from none."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["Blues"](np.linspace(0.25, 1, 256)))


def _add_scale(figure: Figure, axes: Axes, picture: Any) -> None:
    """Add the scale of colours at the right of a panel."""
    more = "max" if picture.get_array().max() > picture.norm.vmax else "neither"
    bar = figure.colorbar(picture, cax=axes, extend=more)
    bar.outline.set_linewidth(THIN)
    axes.set_xlabel("of the\nlargest\noutput", loc="left")
    axes.tick_params(length=2, width=THIN)
