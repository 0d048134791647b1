"""Draw what keys and values take as a function of the length: for a model and engines, or for models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from attnscope.base.units import bytes_text, counted
from attnscope.document.blocks import Plot
from attnscope.model.card.result import Card, CurvePoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnscope.model.card.cards import Cards

SIZE = (5.0, 3.2)  # inches
DASHES = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
"""The lines of engines, which differ in black and white, too."""
MARKERS = "os^Dv<>p*"


def plot(result: Card | Cards) -> Plot:
    """Return the figure of a card, or of several; it is missing where no keys and values are kept."""
    cards = [result] if isinstance(result, Card) else result.cards
    missing = "" if any(card.curve for card in cards) else "no keys and values are kept for later tokens"
    return Plot(partial(draw_card, result=result), missing)


def draw_card(figure: Figure, result: Card | Cards) -> None:
    """Draw the bytes that keys and values need at each length, on logarithmic axes.

    Args:
        result: a card, whose engines are drawn too, with the memory beside the weights; or several,
            which have a line each.
    """
    from attnscope.document.figure import drawable

    figure.set_size_inches(*SIZE)
    axes = figure.subplots()
    if isinstance(result, Card):
        title = f"{result.name}, {counted(result.batch, 'sequence')}, {result.cache_dtype}"
        _line(axes, result.curve, [each.n_bytes for each in result.curve], "needed", "-", "o")
        for each, dashes in zip(result.reserved, cycle(DASHES), strict=False):
            points = [point for point in result.curve if each.engine in point.reserved]
            reserved = [point.reserved[each.engine] for point in points]
            _line(axes, points, reserved, each.engine, dashes, "")
        if result.fit is not None and result.fit.memory > result.fit.weights:
            free = result.fit.memory - result.fit.weights
            label = f"{bytes_text(free)} beside the weights"
            axes.axhline(free, color="0.4", linewidth=0.8, label=label)
    else:
        title = f"{counted(len(result.cards), 'model')}, {counted(result.batch, 'sequence')}"
        for name, card, marker in zip(result.names, result.cards, cycle(MARKERS), strict=False):
            _line(axes, card.curve, [each.n_bytes for each in card.curve], drawable(name), "-", marker)
    _scale(axes, [result] if isinstance(result, Card) else result.cards)
    axes.set_title(drawable(title), loc="left", parse_math=False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _line(
    axes: Axes,
    curve: Sequence[CurvePoint],
    n_bytes: Sequence[int],
    name: str,
    dashes: object,
    marker: str,
) -> None:
    lengths = [each.n_tokens for each in curve]
    (line,) = axes.plot(lengths, n_bytes, marker=marker, markersize=3, linewidth=1.2)
    line.set_linestyle(dashes)  # type: ignore[arg-type]
    line.set_label(name.lstrip("_") or "–")  # matplotlib hides names that begin with _


def _scale(axes: Axes, cards: Sequence[Card]) -> None:
    """Count tokens and bytes in powers of two, with their units."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    lengths = sorted({point.n_tokens for card in cards for point in card.curve})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2, nonpositive="mask")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=30, ha="right")
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(round(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xlabel("tokens of each sequence")
    axes.set_ylabel("keys and values")
