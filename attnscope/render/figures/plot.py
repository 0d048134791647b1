"""Attention maps, and metrics of heads, as a figure for a paper or a slide: `.png`, `.svg` or `.pdf`."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import OptionError
from attnscope.files import check_file, write_file
from attnscope.render.figures.figures import draw_grid, draw_map, draw_pictures
from attnscope.render.figures.metric_figures import draw_metrics
from attnscope.render.maps import of_query
from attnscope.results.heads import HeadTable
from attnscope.results.maps import AttentionMaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METADATA: dict[str, dict[str, Any]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
"""The formats, and what keeps the time of writing out of each: what is the same has the same bytes."""

SETTINGS = {
    "font.size": 8,
    "svg.fonttype": "none",  # letters stay letters: they can be searched and edited
    "pdf.fonttype": 42,
    "svg.hashsalt": "attnscope",
    "axes.linewidth": 0.6,
    "figure.facecolor": "white",
}

MORE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans", "Noto Sans Arabic", "Noto Sans Hebrew"),
    *("Noto Sans Devanagari", "Noto Sans Thai", "Noto Emoji", "Arial Unicode MS", "Segoe UI Symbol"),
)
"""For the letters that matplotlib's own font does not have, where they are installed."""


def check_plot(path: Path, *, force: bool = False) -> None:
    """Find out whether a figure can be written, before any work is done for it.

    Raises:
        FileError: the file cannot be written, or is there already.
        OptionError: matplotlib is not installed.
    """
    check_file(path, force=force, suffixes=METADATA, kind="figures", inside=str(path / "attention.png"))
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "figures are drawn by matplotlib, which is not installed.",
            hint="pip install 'attnscope[plot]'",
        ) from error


def save_plot(
    path: Path, maps: AttentionMaps, *, query: int | None = None, dpi: int = 200, force: bool = False
) -> int:
    """Write a figure of attention maps: of one, with its tokens; of several, a grid of layers × heads.

    Of a vision model it is the picture, and the weights of one query over it.

    Args:
        path: the file; its suffix names the format.
        maps: at least one.
        query: the position of the only query to show. None is all; of a vision model, `first_query`.
        dpi: of a PNG, and of pictures in other files.
        force: whether it may replace a file that is there.

    Returns:
        How many bytes the file has.

    Raises:
        FileError: the file cannot be written; then nothing is.
        OptionError: matplotlib is not installed.
    """
    return _save(path, partial(_draw_maps, maps=maps, query=query), dpi=dpi, force=force)


def save_heads_plot(
    path: Path, table: HeadTable, *, metrics: Sequence[str], dpi: int = 200, force: bool = False
) -> int:
    """Write a figure of metrics: a panel of layers × heads for each; of one, a larger panel.

    Args:
        path: the file; its suffix names the format.
        table: what was measured.
        metrics: the names of those that are shown, at least one.
        dpi: of a PNG, and of pictures in other files.
        force: whether it may replace a file that is there.

    Returns:
        How many bytes the file has.

    Raises:
        FileError: the file cannot be written; then nothing is.
        OptionError: matplotlib is not installed.
    """
    return _save(path, partial(draw_metrics, table=table, metrics=metrics), dpi=dpi, force=force)


def _save(path: Path, draw: Callable[[Figure], None], *, dpi: int, force: bool) -> int:
    """Write what is drawn into a figure, which is as large as that; how many bytes the file has."""
    check_plot(path, force=force)
    with _settings():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure()
        FigureCanvasAgg(figure)
        draw(figure)
        content = io.BytesIO()  # matplotlib's writers do not survive a disk that is full
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
    """Matplotlib as it comes, whatever the user's matplotlibrc says; and afterwards as it was."""
    from matplotlib import font_manager, style

    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(font for font in MORE_FONTS if font in installed)]
    with warnings.catch_warnings(), style.context(["default", {**SETTINGS, "font.family": fonts}]):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def _draw_maps(figure: Figure, maps: AttentionMaps, query: int | None) -> None:
    if maps.picture is not None:
        draw_pictures(figure, maps, maps.picture, query)
        return
    if query is not None:
        maps = of_query(maps, query)
    if len(maps.maps) == 1:
        draw_map(figure, maps, maps.maps[0])
    else:
        draw_grid(figure, maps)
