"""Figures for papers and slides: `.png`, `.svg` or `.pdf`; and what they share."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.document.grid.axes import AxisToken, label
from attnscope.errors import OptionError
from attnscope.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "Oranges"
SIGNED_COLOURS = "PuOr_r"  # orange above 0, purple below
CELL = 0.22  # inches
MAX_INCHES = 10.0  # inches of an axis; with more tokens, cells are smaller
MAX_LETTERS = 30  # letters
BETWEEN_LABELS = 0.15  # inches, at least
GREY, THIN = "0.45", 0.6

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
    """Check that a figure can be written, before any work is done for it.

    Raises:
        FileError: the file cannot be written, or already exists.
        OptionError: matplotlib is not installed.
    """
    from attnscope.process.files import check_file

    check_file(path, force=force, suffixes=METADATA, kind="figures", inside=str(path / "attention.png"))
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "matplotlib, which draws figures, is not installed.",
            hint="pip install 'attnscope[plot]'",
        ) from error


def write_figure(
    path: Path, draw: Callable[[Figure], None], *, dpi: int = 200, force: bool = False
) -> int:
    """Draw a figure, cropped to its content, and write it; return the size of the file in bytes.

    Args:
        path: the file; its suffix decides the format.
        draw: draws into an empty figure.
        dpi: the resolution of a PNG, and of images in other files.
        force: whether to overwrite an existing file.

    Raises:
        FileError: the file cannot be written; nothing is left of it then.
        OptionError: matplotlib is not installed.
    """
    from attnscope.process.files import write_file

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


def label_axis(
    axes: Axes,
    tokens: Sequence[AxisToken],
    places: Sequence[range],
    cell: float,
    side: Literal["x", "y"],
) -> None:
    """Label an axis with tokens; if they are too many, with every n-th token and its position.

    Args:
        axes: the axes of the map.
        tokens: the first token of each cell along this axis.
        places: the positions of all tokens of each cell.
        cell: the size of a cell in inches.
        side: `x`, with vertical labels above the map; or `y`.
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
