"""Write figures for papers and slides: `.png`, `.svg` or `.pdf`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from attnscope.auditing.figure import draw_audit
from attnscope.auditing.picture import pictures
from attnscope.auditing.result import Audit
from attnscope.document.figure import write_figure
from attnscope.errors import FileError
from attnscope.masks.figure import draw_masks
from attnscope.masks.result import AttentionMasks
from attnscope.model_card.cards import Cards
from attnscope.model_card.result import Card
from attnscope.models.heads.result import HeadMetrics
from attnscope.models.maps.figure import draw_maps
from attnscope.models.maps.result import AttentionMaps
from attnscope.render.figures.card_figure import draw_card
from attnscope.render.figures.metric_figures import draw_metrics
from attnscope.textbook.scaling.figure import draw_scaling
from attnscope.textbook.scaling.result import Scaling


def save_plot(
    path: Path, maps: AttentionMaps, *, query: int | None = None, dpi: int = 200, force: bool = False
) -> int:
    """Write a figure of attention maps, as `draw_maps`; the rest is as in `save_heads_plot`."""
    return write_figure(path, partial(draw_maps, maps=maps, query=query), dpi=dpi, force=force)


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
    return write_figure(path, partial(draw_metrics, table=table, metrics=metrics), dpi=dpi, force=force)


def save_scaling_plot(path: Path, result: Scaling, *, dpi: int = 200, force: bool = False) -> int:
    """Write a figure of the effect of the scale; the rest is as in `save_heads_plot`."""
    return write_figure(path, partial(draw_scaling, result=result), dpi=dpi, force=force)


def save_card_plot(path: Path, result: Card | Cards, *, dpi: int = 200, force: bool = False) -> int:
    """Write a figure of what keys and values take; the rest is as in `save_heads_plot`.

    Raises:
        FileError: likewise; or none of the models keeps keys and values.
    """
    cards = result.cards if isinstance(result, Cards) else [result]
    if not any(card.curve for card in cards):
        raise FileError(f"{path} is not written: no keys and values are kept for later tokens.")
    return write_figure(path, partial(draw_card, result=result), dpi=dpi, force=force)


def save_masks_plot(path: Path, result: AttentionMasks, *, dpi: int = 200, force: bool = False) -> int:
    """Write a figure of masks; the rest is as in `save_heads_plot`."""
    return write_figure(path, partial(draw_masks, result=result), dpi=dpi, force=force)


def save_audit_plot(path: Path, result: Audit, *, dpi: int = 200, force: bool = False) -> int:
    """Write a figure of the influence that an audit measured; the rest is as in `save_heads_plot`.

    Raises:
        FileError: likewise; or it measured none.
    """
    if not pictures(result):
        raise FileError(
            f"{path} is not written: the influence of positions on each other was not measured."
        )
    return write_figure(path, partial(draw_audit, result=result), dpi=dpi, force=force)
