"""Draw audits: for each broken property, what was measured, and the mask that reached the layer."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

from attnscope.auditing.picture import (
    MISSING,
    NONE,
    WRONG,
    Cells,
    evidence_lines,
    heading,
    panels,
    pictures,
)
from attnscope.auditing.result import Audit, Influence, Property
from attnscope.document.figure import (
    CELL,
    MAX_LETTERS,
    THIN,
    axes_at,
    draw_matrix,
    draw_scale,
    drawable,
    label_axis,
)
from attnscope.document.grid.axes import label
from attnscope.document.grid.pooling import chunks
from attnscope.model.run.tokens import Token

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
    """Draw a row of panels for each picture, of which there is at least one."""
    drawn = pictures(result)
    sizes = [min(PANEL, CELL * len(influence.measured)) for _, influence in drawn]
    margins = [_margin(influence) for _, influence in drawn]
    above = heading(result)
    texts = ["\n".join([above.title, *above.about]), *("\n".join(_words(*each)) for each in drawn)]
    heights = [LINE * (text.count("\n") + 2) if text else 0 for text in texts]
    width = max(2 * (margin + size) + BETWEEN for margin, size in zip(margins, sizes, strict=True))
    height = sum(sizes) + sum(heights) + sum(margin + 3 * LINE for margin in margins)
    figure.set_size_inches(width, height)
    figure.text(0, 1, texts[0], weight="bold", va="top", parse_math=False)
    down = heights[0]
    for (_, influence), text, high, size, margin in zip(
        drawn, texts[1:], heights[1:], sizes, margins, strict=True
    ):
        figure.text(0, 1 - down / height, text, va="top", parse_math=False)
        down, left = down + high + margin + LINE, margin
        cells = [chunks(len(axis), LARGEST) for axis in (influence.measured, influence.measured[0])]
        for panel in panels(influence, *cells):
            axes = axes_at(figure, left, down, size, size)
            picture = _draw(axes, influence, panel, cells, size)
            axes.set_title(drawable(panel.title), parse_math=False, pad=8, loc="left")
            left += size + BETWEEN + margin
            if panel.top:
                scale = axes_at(figure, left - BETWEEN - margin + 0.08, down, 0.08, min(size, 2.0))
                more = "max" if picture.get_array().max() > panel.top else "neither"
                draw_scale(scale, picture, extend=more)
                scale.set_xlabel("of the\nlargest\noutput", loc="left")
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
    """Draw a panel of `inches`; return the image, for a scale of its colours."""
    import numpy as np
    from matplotlib.colors import ListedColormap

    n, size = len(influence.measured), len(cells[0][0])
    amounts = np.where(panel.amounts > 0, panel.amounts, np.nan)
    colours = (_colours() if panel.top else ListedColormap([VISIBLE])).with_extremes(bad=NOTHING)
    picture = draw_matrix(axes, amounts, colours, panel.top or 1, shape=(n, n), sizes=(size, size))
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
        filled = ListedColormap(list(FILLED.values()))
        axes.imshow(
            kinds, filled, vmin=WRONG, vmax=MISSING, extent=picture.get_extent(), aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
    axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), xlabel="input", ylabel="output")
    if influence.tokens is not None:
        tokens = [Token(text) for text in influence.tokens]
        places = [range(i, i + 1) for i in range(n)]
        label_axis(axes, tokens, places, inches / n, "x")
        label_axis(axes, tokens, places, inches / n, "y")
    axes.tick_params(length=2, width=THIN)
    return picture


def _colours() -> Any:
    """Return the colours of influence, of which the least differs from none."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["Blues"](np.linspace(0.25, 1, 256)))
