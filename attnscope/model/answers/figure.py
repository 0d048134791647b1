"""Draw an answer for papers and slides: pictures under the weights of words, or bars of segments."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from attnscope.document.figure import MAX_INCHES, THIN, axes_at, draw_scale, drawable, label_axis
from attnscope.document.grid.axes import label
from attnscope.document.result import named
from attnscope.model.answers.document import heading, left_out_text, pooling, row_text, share_text
from attnscope.model.answers.drawing import grey_picture, segment_order, segment_styles, veiled
from attnscope.model.answers.heat import (
    bars,
    density,
    grid_size,
    picture_shares,
    positions,
    row_shares,
    shown_weights,
)
from attnscope.model.answers.result import Answer

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_WORDS, MOST_PANELS = 24, 48
"""The most words of a grid, and the most pictures in all; of more words, a grid shows the mean and those
that read pictures most."""

LARGE, SMALL = 5.0, 1.9  # inches of the pictures of one word: alone, and in a grid
PIXELS = {LARGE: 1024, SMALL: 384}
BETWEEN = 0.06  # inches between two pictures of one word
APART = 0.3  # inches between two words
LEAST = 0.9  # inches of the height of one of several pictures
TITLE = 0.22  # inches above each word's pictures
LABEL = 0.3  # inches below each of several pictures
BAR = 0.22  # inches of the bar of a token
TALL = 3.2  # inches of bars
SEGMENT_COLOURS = (
    *("#3b6fb6", "#e07b28", "#3f9a55", "#b05aa8", "#2aa3ad", "#d1495b"),
    *("#8b6a3e", "#7a7fd1", "#a6b727", "#e2a1b8", "#5f7f8c"),
)


def draw(figure: Figure, answer: Answer) -> None:
    """Draw pictures under the weights of one word or of each, seconds of a recording, or bars."""
    if answer.recording is not None and answer.times is not None and not answer.by_segment:
        from attnscope.model.answers.audio.shown import draw_seconds

        draw_seconds(figure, answer)
    elif answer.by_segment or not answer.pictures:
        _draw_bars(figure, answer)
    else:
        _draw_pictures(figure, answer)


# Pictures.


def _draw_pictures(figure: Figure, answer: Answer) -> None:
    """Draw a panel of all pictures for the one word, or for each word in a grid of one scale."""
    panels = _panels(answer)
    is_single = len(panels) == 1
    size = LARGE if is_single else SMALL
    places, width, height = _arrangement(answer, size)
    columns = 1 if is_single else max(1, min(len(panels), int((MAX_INCHES + APART) / (width + APART))))
    rows = ceil(len(panels) / columns)
    step_x, step_y = width + APART, height + TITLE + 0.1
    whole = columns * step_x - APART, rows * step_y - 0.1
    figure.set_size_inches(*whole)
    heats = [
        [
            density(picture, weights, *grid_size(picture, PIXELS[size]), left_out=set(answer.sinks))
            for picture in answer.pictures
        ]
        for _, weights in panels
    ]
    top = max(float(heat.max()) for of_panel in heats for heat in of_panel) or 1.0
    greys = [grey_picture(picture, *grid_size(picture, PIXELS[size])) for picture in answer.pictures]
    for i, (title, weights) in enumerate(panels):
        x, y = i % columns * step_x, i // columns * step_y
        for picture, heat, grey, (left, above, across, down) in zip(
            answer.pictures, heats[i], greys, places, strict=True
        ):
            axes = axes_at(figure, x + left, y + TITLE + above, across, down)
            axes.imshow(veiled(grey, heat / top), extent=(0, *picture.image.size, 0), aspect="auto")
            axes.set(xlim=(0, picture.image.width), ylim=(picture.image.height, 0), xticks=[], yticks=[])
            axes.spines[:].set(linewidth=0.4, edgecolor="0.6")
            _mark_sinks(axes, answer, picture)
            if len(answer.pictures) > 1 and is_single:
                share = float(weights[positions(picture.patches)].sum())
                axes.set_xlabel(drawable(f"{picture.name} {share_text(share)}"), parse_math=False)
        figure.text(
            x / whole[0],
            1 - (y + TITLE - 0.05) / whole[1],
            title,
            parse_math=False,
            fontsize=9 if is_single else 8,
            va="bottom",
        )
    figure.text(
        0,
        1 + 0.1 / whole[1],
        _title(answer, is_single),
        parse_math=False,
        fontsize=9,
        va="bottom",
        linespacing=1.35,
    )
    _add_scale(figure, top, whole)


def _panels(answer: Answer) -> list[tuple[str, np.ndarray]]:
    """Return a title and shares for each panel: one word, every word, or the mean and some."""
    import numpy as np

    n = len(answer.written)
    if answer.query is not None or n == 1:
        return [(drawable(row_text(answer)), shown_weights(answer))]
    of_rows = row_shares(answer)
    to_pictures = picture_shares(answer).sum(1)
    rows = list(range(n))
    panels = []
    most = min(MOST_WORDS, max(2, MOST_PANELS // len(answer.pictures)))
    if n > most:
        patches = [i for picture in answer.pictures for i in positions(picture.patches)]
        kept = [i for i in patches if i not in answer.sinks]
        strongest = np.argsort(-of_rows[:, kept].sum(1), kind="stable")[: most - 1]
        rows = sorted(strongest.tolist())
        panels.append(
            (f"mean of all {n} tokens  {share_text(float(to_pictures.mean()))}", of_rows.mean(0))
        )
    for row in rows:
        text = drawable(label(answer.written[row].text))
        short = text if len(text) <= 16 else text[:15] + "…"
        panels.append(
            (f"{answer.first + row} {short}  {share_text(float(to_pictures[row]))}", of_rows[row])
        )
    return panels


def _arrangement(
    answer: Answer, size: float
) -> tuple[list[tuple[float, float, float, float]], float, float]:
    """Place the pictures of a panel, in rows of equal height.

    Return left, top, width and height of each, and the width and height of all, in inches.
    """
    n = len(answer.pictures)
    per_row = ceil(n**0.5) if n > 3 else n
    small = size / per_row
    places, top, widest = [], 0.0, 0.0
    for start in range(0, n, per_row):
        row = answer.pictures[start : start + per_row]
        ratios = [picture.image.width / picture.image.height for picture in row]
        height = max(LEAST, min(small / max(ratios), small)) if n > 1 else size / max(1.0, ratios[0])
        left = 0.0
        for ratio in ratios:
            places.append((left, top, height * ratio, height))
            left += height * ratio + BETWEEN
        widest = max(widest, left - BETWEEN)
        top += height + (LABEL if n > 1 and size == LARGE else BETWEEN)
    return places, widest, top


def _mark_sinks(axes: Axes, answer: Answer, picture: Any) -> None:
    """Hatch the patches that are left out of the colours."""
    from matplotlib.patches import Rectangle

    for patch in picture.patches:
        if patch.position in answer.sinks:
            left, top, right, bottom = patch.box
            box = Rectangle((left, top), right - left, bottom - top)
            box.set(facecolor="0.88", edgecolor="0.45", linewidth=0.3, hatch="//////")
            axes.add_patch(box)


def _title(answer: Answer, is_single: bool) -> str:
    """Return the lines above pictures."""
    left_out = left_out_text(answer)
    hatched = len(answer.sinks) > 1 and "patch" in left_out
    lines = [f"{named(answer.model, answer.stack)} · {pooling(answer)}"]
    if left_out:
        lines.append(left_out + (" (hatched)" if hatched else ""))
    if not is_single:
        which = "the picture" if len(answer.pictures) == 1 else "pictures"
        lines.append(f"%: the share of each token's weight that goes to {which}")
    return "\n".join(map(drawable, lines))


def _add_scale(figure: Figure, top: float, whole: tuple[float, float]) -> None:
    """Add a colour bar at the right: per cent of the weight for each per cent of the picture."""
    import numpy as np
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    tall = max(1.0, min(whole[1] - TITLE, 3.0))
    axes = axes_at(figure, whole[0] + 0.15, TITLE, 0.12, tall)
    colours = ListedColormap(veiled(np.full(256, 0.55), np.linspace(0, 1, 256)))
    label = "% of the weight\nper % of the picture"
    draw_scale(axes, ScalarMappable(Normalize(0, top), colours), label=label)


# Bars.


def _draw_bars(figure: Figure, answer: Answer) -> None:
    """Draw a bar for each token or segment, divided as its weight is; of one word, its bar."""
    import numpy as np

    names, of_rows = segment_order(answer)
    rows = range(len(of_rows)) if answer.query is None else [answer.query]
    shown, of_segments = of_rows[list(rows)], answer.segment_rows is not None
    bar = min(BAR, MAX_INCHES / len(rows))
    width = max(1.0, bar * len(rows))
    figure.set_size_inches(width, TALL)
    axes = figure.add_axes((0, 0, 1, 1))
    below = np.zeros(len(rows))
    for name, colour, shares in zip(names, segment_styles(names, SEGMENT_COLOURS), shown.T, strict=True):
        axes.bar(
            np.arange(len(rows)),
            shares,
            bottom=below,
            width=0.9 if bar > 0.1 else 1.0,
            color=colour,
            linewidth=0,
            label=drawable(name if of_segments else f"{name}  {share_text(float(shares.mean()))}"),
        )
        below += shares
    axes.set(xlim=(-0.5, len(rows) - 0.5), ylim=(0, max(1.0, float(below.max()))))
    axes.set_ylabel("share of the weight")
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axes.tick_params("y", length=2, width=THIN)
    axes.spines[["top", "right"]].set_visible(False)
    if not of_segments:
        tokens = [answer.written[row] for row in rows]
        places = [range(answer.first + row, answer.first + row + 1) for row in rows]
        label_axis(axes, tokens, places, width / len(rows), "x")
        axes.tick_params("x", top=False, bottom=True, labeltop=False, labelbottom=True)
    else:
        texts = [drawable(answer.segments[i].name) for i in bars(answer)[0]]
        axes.set_xticks(range(len(texts)), labels=texts, rotation=90, parse_math=False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
        handlelength=1.0,
        handleheight=1.0,
    )
    title, about = heading(answer)[:2]
    lines = map(drawable, [title, *about.split(" · ")])
    axes.set_title("\n".join(lines), parse_math=False, loc="left", fontsize=9, pad=8)
