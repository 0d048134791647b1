"""Draw what each token reads of a recording, as a line of seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnscope.document.blocks import Drawing
from attnscope.document.grid.axes import isolated, label
from attnscope.document.grid.colours import ColourScale, print_picture_line
from attnscope.document.terminal import print_line

if TYPE_CHECKING:
    import numpy as np

    from attnscope.model.answers.audio.frames import FrameTimes
    from attnscope.model.answers.result import Answer

LONGEST = 14
"""The most characters of a token."""

STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
"""The seconds between two numbers below the lines."""

APART = 8
"""The least characters between two numbers."""


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
