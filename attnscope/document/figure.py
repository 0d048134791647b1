"""Figures for papers and slides: `.png`, `.svg` or `.pdf`; and what they share."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.base.errors import OptionError
from attnscope.base.text import printable
from attnscope.document.grid.axes import AxisToken, label

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLOURS = "Oranges"
COLD = "Blues"  # of numbers below 0
PALE = 0.1  # of both scales together, the share that fades to white
CELL = 0.22  # inches
MAX_INCHES = 10.0  # inches of an axis; with more tokens, cells are smaller
MAX_LETTERS = 30  # letters
BETWEEN_LABELS = 0.15  # inches, at least
GREY, THIN = "0.45", 0.6
NO_VALUE = "0.85"  # a grey
SHORTEST = 0.7  # inches, at least, of a scale of colours beside a panel

METADATA: dict[str, dict[str, Any]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
"""The formats, and metadata that omits the time of writing, so that equal figures have equal bytes."""

SETTINGS = {
    "font.size": 8,
    "svg.fonttype": "none",  # text stays text, which can be searched and edited
    "pdf.fonttype": 42,
    "svg.hashsalt": "attnscope",
    "axes.linewidth": 0.6,
    "figure.facecolor": "white",
}

MORE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans", "Noto Sans Arabic", "Noto Sans Hebrew"),
    *("Noto Sans Devanagari", "Noto Sans Thai", "Noto Emoji", "Arial Unicode MS", "Segoe UI Symbol"),
)
"""Fonts, if installed, for characters that matplotlib's default font lacks."""


def check_plot(path: Path, *, force: bool = False) -> None:
    """Raise an error, before any work, if a figure cannot be written or matplotlib is not installed."""
    from attnscope.base.process.files import check_file

    check_file(path, force=force, suffixes=METADATA, kind="figures", inside=str(path / "attention.png"))
    check_matplotlib()


def check_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise OptionError(
            "matplotlib, which draws figures, is not installed.", hint="pip install 'attnscope[plot]'"
        )


def write_figure(
    path: Path, draw: Callable[[Figure], None], *, dpi: int = 200, force: bool = False
) -> int:
    """Draw a figure, cropped to its content, and write it; return the size of the file in bytes.

    `draw` draws into an empty figure. `dpi` is the resolution of a PNG, and of images in other files. If
    the file cannot be written, nothing is left of it.
    """
    from attnscope.base.process.files import write_file

    check_plot(path, force=force)
    with _settings():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure()
        FigureCanvasAgg(figure)
        draw(figure)
        content = io.BytesIO()  # matplotlib's own writers do not handle a full disk
        figure.savefig(
            content,
            format=path.suffix[1:],
            dpi=dpi,
            bbox_inches="tight",
            pad_inches=0.1,
            metadata=METADATA[path.suffix],
        )
    write_file(path, content.getvalue(), force=force)
    return len(content.getvalue())


@contextmanager
def _settings() -> Iterator[None]:
    """Use matplotlib's defaults instead of the user's matplotlibrc, and restore the settings after."""
    from matplotlib import font_manager, style

    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(font for font in MORE_FONTS if font in installed)]
    with warnings.catch_warnings(), style.context(["default", {**SETTINGS, "font.family": fonts}]):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def signed_colours() -> Any:
    """Return the colour map of numbers that may be below 0: blue there, white at 0, and orange above."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    steps = np.linspace(0, 1, 128)
    tint = np.minimum(1, steps / PALE)[:, None]
    cold, warm = (1 - tint + tint * colormaps[name](steps) for name in (COLD, COLOURS))
    return ListedColormap(np.concatenate([cold[::-1], warm]))


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at a position and of a size in inches, from the left and from the top."""
    all_width, all_height = figure.get_size_inches()
    box = left / all_width, 1 - (top + height) / all_height, width / all_width, height / all_height
    return figure.add_axes(box)


def draw_scale(axes: Axes, colours: Any, **more: Any) -> None:
    """Draw the scale of an image's colours into axes of its own."""
    bar = axes.figure.colorbar(colours, cax=axes, **more)
    bar.outline.set_linewidth(THIN)
    axes.tick_params(length=2, width=THIN)


def draw_numbers(
    figure: Figure,
    numbers: np.ndarray,
    left: float,
    top: float,
    size: tuple[float, float],
    *,
    signed: bool,
    scaled: bool = True,
) -> Axes:
    """Draw a panel of numbers, grey for NaN, and the scale of their colours at its right.

    Places and sizes are in inches, from the left and from the top of the figure, which has its final
    size. If they are signed, the scale begins at the opposite of the largest size, and not at 0.
    """
    import numpy as np

    width, height = size
    axes = axes_at(figure, left, top, width, height)
    axes.set_facecolor(NO_VALUE)
    known = numbers[~np.isnan(numbers)]
    largest = float((np.abs(known) if signed else known).max(initial=0.0)) or 1.0
    colours, lowest = (signed_colours(), -largest) if signed else (COLOURS, 0)
    image = axes.imshow(numbers, colours, vmin=lowest, vmax=largest, aspect="auto")
    axes.tick_params(length=2, width=THIN)
    if scaled:
        scale = axes_at(figure, left + width + 0.1, top, 0.1, max(SHORTEST, min(height, 3.0)))
        draw_scale(scale, image, format="%.3g")
    return axes


def draw_matrix(
    axes: Axes,
    cells: np.ndarray,
    colours: Any,
    largest: float,
    *,
    shape: tuple[int, int],
    sizes: tuple[int, int] = (1, 1),
) -> AxesImage:
    """Draw a matrix of queries downwards and keys across, with keys above it.

    `cells` are numbers from 0 to `largest`, each of `sizes` rows and columns of the matrix; the last
    cells are cut off where a matrix of `shape` ends.
    """
    bottom, right = (n * size - 0.5 for n, size in zip(cells.shape, sizes, strict=True))
    image = axes.imshow(
        cells,
        colours,
        vmin=0,
        vmax=largest,
        extent=(-0.5, right, bottom, -0.5),
        aspect="auto",
        interpolation="nearest",
    )
    axes.set(xlim=(-0.5, shape[1] - 0.5), ylim=(shape[0] - 0.5, -0.5), xlabel="keys", ylabel="queries")
    axes.tick_params("x", top=True, bottom=False, labeltop=True, labelbottom=False)
    axes.xaxis.set_label_position("top")
    return image


def label_axis(
    axes: Axes,
    tokens: Sequence[AxisToken],
    places: Sequence[range],
    cell: float,
    side: Literal["x", "y"],
) -> None:
    """Label an axis with tokens; if they are too many, with every n-th token and its position.

    `tokens` are the first of each cell, `places` the positions of all of each; a cell has `cell` inches.
    Labels of `x` are vertical, above the map.
    """
    every = max(1, ceil(BETWEEN_LABELS / cell))
    shown = range(0, len(tokens), every)
    alone = every == 1 and max(map(len, places)) == 1
    texts = [_short(tokens[i]) if alone else f"{places[i].start}  {_short(tokens[i])}" for i in shown]
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_ticks(list(shown), labels=texts, parse_math=False)
    if side == "x":
        axes.tick_params("x", top=True, bottom=False, labeltop=True, labelbottom=False, labelrotation=90)
        axes.xaxis.set_label_position("top")
    axes.tick_params(side, length=2, width=THIN)
    for i, tick in zip(shown, axis.get_ticklabels(), strict=True):
        if tokens[i].generated:
            tick.set(color="tab:green", style="italic")
        elif tokens[i].special:
            tick.set_color("0.5")


NO_XML = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}
"""Characters that Unicode calls printable, but XML does not allow (XML 1.0, section 2.2, Char)."""


def drawable(text: str) -> str:
    r"""Return a text on one line, without characters that fonts or SVG files cannot represent.

    >>> drawable("bert\x00\ud800\ufffe")
    'bert\\x00\\ud800\\ufffe'
    """
    return printable(text).translate(NO_XML)


def _short(token: AxisToken) -> str:
    text = drawable(label(token.text))
    return text if len(text) <= MAX_LETTERS else text[: MAX_LETTERS - 1] + "…"
