"""Read a recording: samples of one channel, at the rate that a model takes."""

from __future__ import annotations

import wave
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import FileError, OptionError, class_name, first_line, no_such_file

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Sound:
    """Sound of one channel.

    Attributes:
        name: its name in messages.
        samples: between −1 and 1, `n_sample` in float32.
        rate: samples a second.
        notices: what was changed.
    """

    name: str
    samples: np.ndarray
    rate: int
    notices: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.samples) / self.rate


def read_recording(audio: Any, rate: int) -> Sound:
    """Read a recording, mix its channels, and resample it.

    Args:
        audio: a file, or samples and their rate: `(samples, 16000)`; samples are `n_sample` or
            `n_sample n_channel`, floats between −1 and 1 or integers of their type's whole range.
        rate: the rate that is needed, in samples a second.

    Raises:
        FileError: the file cannot be read, or a package that reads it is not installed.
        OptionError: it has no samples, or cannot be resampled.
    """
    import numpy as np

    if isinstance(audio, str | Path):
        samples, own_rate = _read_file(Path(audio))
        name = f"--audio {audio}"
    elif isinstance(audio, tuple) and len(audio) == 2:
        samples, own_rate = np.asarray(audio[0]), audio[1]
        name = "--audio"
    else:
        raise OptionError(
            f"audio is a {class_name(audio)}, but takes a file, or samples and their rate.",
            hint="audio=(samples, 16000)",
        )
    if type(own_rate) is not int or own_rate < 1:
        raise OptionError(f"the rate of {name} is {own_rate!r}, but has to be samples a second.")
    if np.issubdtype(samples.dtype, np.integer):
        samples = samples / -float(np.iinfo(samples.dtype).min)
    samples, notices = samples.astype(np.float32), []
    if samples.ndim == 2:
        if samples.shape[1] > 1:
            notices.append(f"{samples.shape[1]} channels were mixed to one.")
        samples = samples.mean(axis=1)
    if samples.ndim != 1 or not len(samples):
        raise OptionError(f"{name} has no samples.", hint="n_sample, or n_sample n_channel of them")
    if not np.isfinite(samples).all():
        raise OptionError(f"{name} has samples that are not finite.")
    if own_rate != rate:
        samples = _resampled(samples, own_rate, rate, name)
        notices.append(f"the recording was resampled from {own_rate:,} to {rate:,} samples a second.")
    return Sound(name, samples, rate, notices)


def _read_file(path: Path) -> tuple[np.ndarray, int]:
    """Return the samples of a file, `n_sample n_channel`, and their rate."""
    import numpy as np

    if not path.exists():
        raise no_such_file(path)
    try:
        with wave.open(str(path), "rb") as file:
            width, n_channel, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            content = file.readframes(file.getnframes())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    except (wave.Error, EOFError):
        return _read_by_soundfile(path)
    if width == 1:  # the only width without a sign
        return (np.frombuffer(content, "u1").astype(np.int16) - 128).astype(np.int8).reshape(
            -1, n_channel
        ), rate
    if width == 3:
        of_three = np.frombuffer(content, "u1").reshape(-1, 3)
        padded = np.concatenate([np.zeros_like(of_three[:, :1]), of_three], axis=1)
        return padded.copy().view("<i4").reshape(-1, n_channel), rate
    return np.frombuffer(content, f"<i{width}").reshape(-1, n_channel), rate


def _read_by_soundfile(path: Path) -> tuple[np.ndarray, int]:
    """Read what is not a WAV file of integers, such as FLAC, with the package soundfile."""
    if find_spec("soundfile") is None:
        raise FileError(
            f"{path} is not a WAV file of integers, and soundfile, which reads others, is not"
            " installed.",
            hint=f"pip install soundfile; or ffmpeg -i {path.name} -ac 1 -ar 16000 out.wav",
        )
    try:
        samples, rate = import_module("soundfile").read(path, dtype="float32", always_2d=True)
    except Exception as error:  # its errors have no common class in all of its versions
        raise FileError(f"{path} is not a recording: {first_line(error)}.") from error
    return samples, int(rate)


def _resampled(samples: np.ndarray, rate: int, new_rate: int, name: str) -> np.ndarray:
    """Resample with scipy's polyphase filter."""
    if find_spec("scipy") is None:
        raise OptionError(
            f"{name} has {rate:,} samples a second, the model takes {new_rate:,}, and scipy, which"
            " resamples, is not installed.",
            hint=f"pip install scipy; or ffmpeg -i FILE -ac 1 -ar {new_rate} out.wav",
        )
    factor, resample_poly = gcd(rate, new_rate), import_module("scipy.signal").resample_poly
    return resample_poly(samples, new_rate // factor, rate // factor).astype(samples.dtype)
