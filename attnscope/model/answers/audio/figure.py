"""Draw what each token reads of a recording: its spectrum above, and a row of seconds for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.document.figure import MAX_INCHES, THIN, drawable
from attnscope.document.grid.axes import label
from attnscope.model.answers.audio.spectrum import spectrum
from attnscope.model.answers.document import heading
from attnscope.model.answers.result import Answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE, TALL = 6.5, 0.9  # inches of the spectrum
ROW, APART = 0.2, 0.06  # inches of a token's row, and between the rows and the spectrum
COLUMNS, BANDS = 1300, 96


def draw_seconds(figure: Figure, answer: Answer) -> None:
    """Draw the frames with sound; a mark in each row is when its token was said, if that is known."""
    from matplotlib.colors import LinearSegmentedColormap

    times, sound = answer.times, answer.recording
    assert times is not None
    assert sound is not None
    shown = answer.alone()
    rows = len(shown.written)
    tall = min(ROW * rows, MAX_INCHES)
    whole = TALL + APART + tall
    figure.set_size_inches(WIDE, whole)
    above = figure.add_axes((0, 1 - TALL / whole, 1, TALL / whole))
    highest = min(sound.rate / 2, 8000) / 1000
    extent = (0, sound.seconds, 0, highest)
    above.imshow(spectrum(sound, COLUMNS, BANDS), extent=extent, aspect="auto", cmap="Greys", vmax=1.3)
    above.set_ylabel("kHz")
    axes = figure.add_axes((0, 0, 1, tall / whole), sharex=above)
    first, last = times.seconds(0) - times.step / 2, times.seconds(times.n_sound - 1) + times.step / 2
    weights = shown.weights[:, : times.n_sound]
    colours = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#1f4fa3"])
    heat = axes.imshow(
        weights,
        extent=(first, last, rows - 0.5, -0.5),
        aspect="auto",
        cmap=colours,
        vmin=0,
        vmax=float(weights.max()) or 1.0,
        interpolation="nearest",
    )
    if answer.alignment is not None:
        said = answer.alignment.seconds[:-1]  # that of the last token is not known
        for place, second in enumerate(said if answer.query is None else said[answer.query :][:1]):
            axes.vlines(second, place - 0.4, place + 0.4, colors="#d95400", linewidth=1.2)
    texts = [drawable(label(token.text)) for token in shown.written]
    axes.set_yticks(range(rows), labels=texts, parse_math=False)
    axes.set(xlim=(0, sound.seconds), xlabel="seconds")
    above.tick_params("x", labelbottom=False)
    for each in (above, axes):
        each.tick_params(length=2, width=THIN)
    bar = figure.add_axes((1 + 0.15 / WIDE, 0, 0.12 / WIDE, min(1.0, max(tall, 1.0) / whole)))
    figure.colorbar(heat, cax=bar).set_label("weight of a frame")
    title, about = heading(answer)[:2]
    lines = [title, *about.split(" · ")]
    if shown.alignment is not None:
        lines.append("orange: when a token was said")
    above.set_title("\n".join(map(drawable, lines)), parse_math=False, loc="left", fontsize=9, pad=8)
