"""What is shown of an answer to a recording: words, heads, lines of seconds, and its spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnscope.base.units import MISSING, few
from attnscope.document.blocks import Drawing
from attnscope.document.columns import Column
from attnscope.document.figure import MAX_INCHES, THIN, drawable
from attnscope.document.grid.axes import isolated, label
from attnscope.document.grid.colours import ColourScale, print_picture_line
from attnscope.document.terminal import print_line
from attnscope.model.answers.document import heading, text_column
from attnscope.model.answers.prompt import Patch, PatchedPicture
from attnscope.model.answers.result import Answer
from attnscope.model.heads.result import head_name

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from attnscope.model.answers.audio.alignment import SpeechAlignment
    from attnscope.model.answers.audio.listen import FrameTimes
    from attnscope.model.answers.audio.recording import Sound

MOST = 10  #: the most heads that are listed, beside those that times are taken from


def word_columns(alignment: SpeechAlignment) -> list[Column]:
    """Return a row for each word, with the seconds from which and to which it was said."""
    words = alignment.words
    ends = [[(MISSING, "dim") if word.end is None else (f"{word.end:.2f}", "")] for word in words]
    texts = [word.text.strip() or repr(word.text) for word in words]
    return [
        text_column("word", "word", texts, "bold", raw=[word.text for word in words], lead=True),
        _number_column("from second", "first", words),
        Column("to", "end", ends, [word.end for word in words], right=True),
    ]


def _number_column(title: str, key: str, parts: Sequence[Any]) -> Column:
    """Return a column of a number that each part has by a name."""
    numbers = [getattr(each, key) for each in parts]
    return text_column(title, key, [f"{each:.2f}" for each in numbers], raw=numbers, right=True)


def head_columns(alignment: SpeechAlignment) -> list[Column]:
    """Return a row for each head that follows best, and for those that the model names."""
    used = set(alignment.used)
    shown = [
        each
        for i, each in enumerate(alignment.heads)
        if (i < MOST and each.score > 0) or each.named or (each.layer, each.head) in used
    ]
    places = [head_name(each.layer, each.head) for each in shown]
    named = ["yes" if each.named else "" for each in shown]
    gives = ["yes" if (each.layer, each.head) in used else "" for each in shown]
    numbers = [
        _number_column("follows", "score", shown),
        _number_column("in order", "monotone", shown),
        _number_column("near its peak", "peaked", shown),
    ]
    return [
        text_column("head of cross-attention", "head", places, "bold", raw=places),
        *numbers,
        text_column("named by the model", "named", named),
        text_column("gives the times", "used", gives),
    ]


def origin(alignment: SpeechAlignment) -> str:
    """Say which heads the times are taken from, and why these."""
    heads = few([head_name(layer, head) for layer, head in alignment.used])
    why = {
        "named": "which the model's generation config names",
        "measured": "which follow the recording best",
        "selected": "which were selected",
    }
    return f"times are those of {heads}, {why[alignment.origin]}"


LONGEST = 14  #: The most characters of a token

STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10)  #: the seconds between two numbers of an axis
APART = 8  #: the least characters between two numbers


@dataclass(frozen=True)
class SecondsDrawing(Drawing):
    """A line for each token of an answer to a recording: the weights of frames with sound."""

    answer: Answer
    times: FrameTimes

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print the lines, the seconds below them, and a legend."""
        names = [label(token.text)[:LONGEST] for token in self.answer.written]
        first = max(map(cell_len, names)) + 1
        n_column = max(1, min(self.times.n_sound, console.width - first))
        binned = binned_weights(self.answer.weights, self.times.n_sound, n_column)
        scale = ColourScale.of(console, binned)
        print_line(console, Text())
        for name, row in zip(names, binned.tolist(), strict=True):
            text = Text(isolated(name) + " " * (first - cell_len(name)))
            for weight in row:
                text.append_text(scale.blank(weight, 1))
            print_picture_line(console, scale, text)
        seconds = self.times.step * self.times.n_sound
        print_line(console, Text(" " * first + axis(seconds, n_column), "dim"))
        print_line(console, scale.legend(console.width).append(" of the weight of a frame", "dim"))


def binned_weights(weights: np.ndarray, n_sound: int, n_column: int) -> np.ndarray:
    """Return the mean weight of the frames in each column, `n_row n_column`."""
    import numpy as np

    edges = np.linspace(0, n_sound, n_column + 1).round().astype(int)
    sums = np.add.reduceat(weights[:, :n_sound].astype(float), edges[:-1], axis=1)
    return sums / np.diff(edges)


def axis(seconds: float, n_column: int) -> str:
    """Return numbers of seconds, each below the column in which it begins.

    >>> axis(2.0, 40)
    '0         0.5       1         1.5      s'
    """
    step = next((each for each in STEPS if each * n_column / seconds >= APART), STEPS[-1])
    line = [" "] * n_column
    for i in range(int(seconds / step) + 1):
        place, text = round(i * step * n_column / seconds), f"{i * step:g}"
        if place + len(text) < n_column - 1:
            line[place : place + len(text)] = text
    line[-1] = "s"
    return "".join(line)


WIDE, TALL = 6.5, 0.9  # inches of the spectrum
ROW, GAP = 0.2, 0.06  # inches of a token's row, and between the rows and the spectrum
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
    whole = TALL + GAP + tall
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
    look: dict[str, Any] = {"vmin": 0, "vmax": float(weights.max()) or 1.0, "interpolation": "nearest"}
    rows_extent = (first, last, rows - 0.5, -0.5)
    heat = axes.imshow(weights, extent=rows_extent, aspect="auto", cmap=colours, **look)
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


WINDOW = 0.025  #: the seconds of sound that one column of the spectrum is computed from, as in Whisper
HIGHEST = 8000.0  #: the highest frequency that is shown, in Hz
DECIBELS = 70.0  #: how far below the loudest cell the palest is


def spectrum(sound: Sound, n_column: int, n_row: int) -> np.ndarray:
    """Return how loud each frequency is over time, `n_row n_column`, from 0 to 1.

    Each column is the power of a Hann window around its middle; rows divide the frequencies up to 8 kHz,
    the lowest in the last row. 1 is the loudest cell, 0 is 70 dB below it.
    """
    import numpy as np

    n = max(2, round(WINDOW * sound.rate))
    padded = np.pad(sound.samples.astype(np.float64), n)
    middles = ((np.arange(n_column) + 0.5) / n_column * len(sound.samples)).astype(int) + n
    windows = padded[middles[:, None] + np.arange(n) - n // 2] * np.hanning(n)
    power = np.abs(np.fft.rfft(windows)) ** 2
    power = power[:, np.fft.rfftfreq(n, 1 / sound.rate) <= HIGHEST]
    edges = np.linspace(0, power.shape[1], n_row + 1)
    first = np.minimum(edges[:-1].astype(int), power.shape[1] - 1)
    last = np.maximum(np.ceil(edges[1:]).astype(int), first + 1)
    bands = np.stack([power[:, a:b].mean(1) for a, b in zip(first, last, strict=True)])
    decibels = 10 * np.log10(np.maximum(bands, 1e-30))
    return (1 + (decibels - decibels.max()) / DECIBELS).clip(0, 1)[::-1]


def recording_picture(sound: Sound, times: FrameTimes, width: int, height: int) -> PatchedPicture:
    """Return the spectrum as a picture, with a patch for each frame: the seconds around it."""
    import numpy as np
    from PIL import Image

    grey = 255 * (1 - spectrum(sound, width, height))
    image = Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
    patches = []
    for frame in range(times.n_sound):
        edges = (times.seconds(frame) + side * times.step / 2 for side in (-1, 1))
        left, right = (min(max(edge / sound.seconds, 0.0), 1.0) * width for edge in edges)
        if left < right:
            patches.append(Patch(frame, (left, 0.0, right, float(height))))
    return PatchedPicture("recording", image, tuple(patches))


def ticks(seconds: float, most: int) -> list[float]:
    """Return the seconds at which an axis has numbers, at most so many.

    >>> ticks(1.4, 4)
    [0.0, 0.5, 1.0]
    """
    step = next((each for each in STEPS if seconds / each < most), STEPS[-1])
    return [round(i * step, 1) for i in range(int(seconds / step) + 1)]
