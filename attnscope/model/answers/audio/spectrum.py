"""Show a recording as its spectrum over time, in which frames of an encoder have their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.model.answers.prompt import Patch, PatchedPicture

if TYPE_CHECKING:
    import numpy as np

    from attnscope.model.answers.audio.frames import FrameTimes
    from attnscope.model.answers.audio.recording import Sound

WINDOW = 0.025  #: the seconds of sound that one column of the spectrum is computed from, as in Whisper
HIGHEST = 8000.0  #: the highest frequency that is shown, in Hz
DECIBELS = 70.0  #: how far below the loudest cell the palest is
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10)  #: the seconds between two numbers of an axis


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
        left, right = (
            min(max(edge / sound.seconds, 0.0), 1.0) * width
            for edge in (times.seconds(frame) - times.step / 2, times.seconds(frame) + times.step / 2)
        )
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
