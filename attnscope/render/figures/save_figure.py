"""Write figures for papers and slides: `.png`, `.svg` or `.pdf`."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import FileError, OptionError
from attnscope.files import check_file, write_file
from attnscope.render.figures.audit_figure import draw_audit
from attnscope.render.figures.card_figure import draw_card
from attnscope.render.figures.figures import draw_grid, draw_map, draw_pictures
from attnscope.render.figures.mask_figure import draw_masks
from attnscope.render.figures.metric_figures import draw_metrics
from attnscope.render.figures.scaling_figure import draw_scaling
from attnscope.render.influence import pictures
from attnscope.render.maps import of_query
from attnscope.results.audit import Audit
from attnscope.results.card import Card
from attnscope.results.cards import Cards
from attnscope.results.heads import HeadMetrics
from attnscope.results.maps import AttentionMaps
from attnscope.results.masks import AttentionMasks
from attnscope.results.scaling import Scaling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    check_file(path, force=force, suffixes=METADATA, kind="figures", inside=str(path / "attention.png"))
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "matplotlib, which draws figures, is not installed.",
            hint="pip install 'attnscope[plot]'",
        ) from error


def save_plot(
    path: Path, maps: AttentionMaps, *, query: int | None = None, dpi: int = 200, force: bool = False
) -> int:
    """Write a figure of attention maps: one map with its tokens, or a grid of layers × heads.

    For a vision model, it is the image overlaid with the weights of one query.

    Args:
        path: the file; its suffix decides the format.
        maps: at least one map.
        query: the position of the only query to show. None: all; for a vision model, `first_query`.
        dpi: the resolution of a PNG, and of images in other files.
        force: whether to overwrite an existing file.

    Returns:
        The size of the file in bytes.

    Raises:
        FileError: the file cannot be written; nothing is left of it then.
        OptionError: matplotlib is not installed.
    """
    return _save(path, partial(_draw_maps, maps=maps, query=query), dpi=dpi, force=force)


def save_heads_plot(
    path: Path, table: HeadMetrics, *, metrics: Sequence[str], dpi: int = 200, force: bool = False
) -> int:
    """Write a figure of metrics: a panel of layers × heads for each; a single one is larger.

    Args:
        path: the file; its suffix decides the format.
        table: the measured metrics.
        metrics: the names of the metrics to draw, at least one.
        dpi: the resolution of a PNG, and of images in other files.
        force: whether to overwrite an existing file.

    Returns:
        The size of the file in bytes.

    Raises:
        FileError: the file cannot be written; nothing is left of it then.
        OptionError: matplotlib is not installed.
    """
    return _save(path, partial(draw_metrics, table=table, metrics=metrics), dpi=dpi, force=force)


def save_scaling_plot(path: Path, result: Scaling, *, dpi: int = 200, force: bool = False) -> int:
    """Write a figure of the effect of the scale; the rest is as in `save_heads_plot`."""
    return _save(path, partial(draw_scaling, result=result), dpi=dpi, force=force)


def save_card_plot(path: Path, result: Card | Cards, *, dpi: int = 200, force: bool = False) -> int:
    """Write a figure of what keys and values take; the rest is as in `save_heads_plot`.

    Raises:
        FileError: likewise; or none of the models keeps keys and values.
    """
    cards = result.cards if isinstance(result, Cards) else [result]
    if not any(card.curve for card in cards):
        raise FileError(f"{path} is not written: no keys and values are kept for later tokens.")
    return _save(path, partial(draw_card, result=result), dpi=dpi, force=force)


def save_masks_plot(path: Path, result: AttentionMasks, *, dpi: int = 200, force: bool = False) -> int:
    """Write a figure of masks; the rest is as in `save_heads_plot`."""
    return _save(path, partial(draw_masks, result=result), dpi=dpi, force=force)


def save_audit_plot(path: Path, result: Audit, *, dpi: int = 200, force: bool = False) -> int:
    """Write a figure of the influence that an audit measured; the rest is as in `save_heads_plot`.

    Raises:
        FileError: likewise; or it measured none.
    """
    if not pictures(result):
        raise FileError(
            f"{path} is not written: the influence of positions on each other was not measured."
        )
    return _save(path, partial(draw_audit, result=result), dpi=dpi, force=force)


def _save(path: Path, draw: Callable[[Figure], None], *, dpi: int, force: bool) -> int:
    """Draw a figure, cropped to its content, and write it; return the size of the file in bytes."""
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
