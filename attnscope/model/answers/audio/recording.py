"""Read a recording: samples of one channel, at the rate that a model takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from math import ceil, gcd
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import (
    FileError,
    OptionError,
    class_name,
    first_line,
    is_out_of_memory,
    no_such_file,
)
from attnscope.base.process.devices import check_memory
from attnscope.base.process.files import refuse_pipe
from attnscope.base.text import described, shortened
from attnscope.model.answers.audio.wav import open_wav

if TYPE_CHECKING:
    import numpy as np

SLOWEST, FASTEST = 1000, 384_000
"""The rates of devices that record sound; a filter for others takes too much memory."""

LOUDEST = 4.0  #: Floats beyond it, four times full scale, are integers of another range
BYTES = 24  #: Bytes that a sample of each channel takes while it is read, mixed and resampled


@dataclass(frozen=True)
class Sound:
    """Sound of one channel."""

    name: str
    samples: np.ndarray  #: between −1 and 1, `n_sample` in float32
    rate: int  #: samples a second
    notices: list[str] = field(default_factory=list)  #: what was changed

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.samples) / self.rate


@dataclass(frozen=True)
class SampleSource:
    """Where samples come from, before they are read."""

    name: str
    rate: int  #: samples a second
    n_sample: int  #: how many samples each channel has
    n_channel: int
    read: Callable[[int], np.ndarray]  #: returns the first of them, `n n_channel` in float32
    notices: list[str] = field(default_factory=list)


def read_recording(
    audio: Any, rate: int, *, most: int | None = None, truncate: bool = False, model: str = "the model"
) -> Sound:
    """Read a file, or samples and their rate, mix the channels, and resample.

    Samples are `n_sample` or `n_sample n_channel`, floats between −1 and 1 or integers of 8, 16 or 32
    bits; the model reads at most `most` of them at its rate.
    """
    import numpy as np

    source = _source(audio)
    name, n, notices = source.name, source.n_sample, list(source.notices)
    if not SLOWEST <= source.rate <= FASTEST:
        raise OptionError(
            f"{name} has {source.rate:,} samples a second: rates from {SLOWEST:,} to {FASTEST:,} are"
            " read."
        )
    if not n:
        raise OptionError(f"{name} has no samples.", hint="n_sample, or n_sample n_channel of them")
    if is_cut := most is not None and n * rate > most * source.rate:
        assert most is not None
        longest, seconds = most / rate, n / source.rate
        if not truncate:
            raise OptionError(
                f"{name} is {seconds:,.1f} s long, and {model} reads {longest:g} s at once.",
                hint=f"--truncate; or ffmpeg -i FILE -ss START -t {longest:g} part.wav",
            )
        notices.append(f"the recording of {seconds:,.1f} s was cut to {longest:g} s.")
        n = min(n, ceil((longest + 1) * source.rate))  # the last of them are next to the border
    n_new = n * rate // source.rate
    check_memory(BYTES * (n * source.n_channel + n_new), "cpu", "a shorter recording, or --truncate")
    samples = source.read(n)
    if samples.shape[1] > 1:
        notices.append(f"{samples.shape[1]} channels were mixed to one.")
    samples = samples.mean(axis=1)
    if not np.isfinite(samples).all():
        raise OptionError(f"{name} has samples that are not finite.")
    if (loudest := float(np.abs(samples).max())) > LOUDEST:
        raise OptionError(
            f"{name} has floats up to {loudest:,.6g}, but sound is between −1 and 1.",
            hint="samples / 32768, if they are integers of 16 bits",
        )
    if source.rate != rate:
        samples = _resampled(samples, source.rate, rate, name)
        notices.append(f"the recording was resampled from {source.rate:,} to {rate:,} samples a second.")
    return Sound(name, samples[:most] if is_cut else samples, rate, notices)


def _source(audio: Any) -> SampleSource:
    """Return where samples come from: a file, or an array and its rate."""
    if isinstance(audio, str | Path):
        return _of_file(Path(audio))
    if not isinstance(audio, tuple) or len(audio) != 2:
        raise OptionError(
            f"audio is a {class_name(audio)}, but takes a file, or samples and their rate.",
            hint="audio=(samples, 16000)",
        )
    values, rate = audio
    if isinstance(rate, bool) or not isinstance(rate, Integral):
        raise OptionError(f"the rate of --audio is {described(rate)}, but has to be samples a second.")
    samples = _between_one(values)
    return SampleSource("--audio", int(rate), len(samples), samples.shape[1], lambda n: samples[:n])


def _between_one(values: Any) -> np.ndarray:
    """Return the samples of an array, a tensor or a list, `n_sample n_channel` in float32."""
    import numpy as np

    if hasattr(values, "detach"):  # a tensor of torch
        if values.is_meta or values.is_sparse:
            raise OptionError("the samples of --audio are a tensor without values, or a sparse one.")
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
        values = values.resolve_conj().numpy() if values.is_complex() else values.numpy()
    try:
        samples = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise OptionError(f"the samples of --audio are not an array: {first_line(error)}.") from error
    if samples.ndim not in (1, 2) or not samples.size:
        raise OptionError(
            f"--audio has no samples: its shape is {tuple(samples.shape)}.",
            hint="n_sample, or n_sample n_channel of them",
        )
    samples = samples.reshape(len(samples), -1)
    if np.issubdtype(samples.dtype, np.floating):
        return samples.astype(np.float32)
    if samples.dtype == np.uint8:  # the only type without a sign that sound has
        return (samples.astype(np.float32) - 128) / 128
    if samples.dtype in (np.int8, np.int16, np.int32):
        return samples.astype(np.float32) / -float(np.iinfo(samples.dtype).min)
    raise OptionError(
        f"the samples of --audio are {samples.dtype.name}, but sound is floats between −1 and 1, or"
        " integers of 8, 16 or 32 bits.",
        hint='audio=(samples.astype("int16"), 16000)' if samples.dtype.kind in "iu" else None,
    )


def _of_file(path: Path) -> SampleSource:
    """Return the samples of a file."""
    name = f"--audio {shortened(path)}"
    if not path.exists():
        raise no_such_file(path)
    refuse_pipe(path)
    try:
        wav = open_wav(path)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    if wav is None:
        return _of_soundfile(path, name)
    notices = []
    if wav.n_stated is None or wav.n_stated > wav.n_sample:
        stated = "nothing" if wav.n_stated is None else f"{wav.n_stated / wav.rate:,.1f} s"
        notices.append(
            f"the header of {path.name} states {stated}, and {wav.n_sample / wav.rate:,.1f} s are in the"
            " file: these are read."
        )
    return SampleSource(name, wav.rate, wav.n_sample, wav.n_channel, wav.read, notices)


def _of_soundfile(path: Path, name: str) -> SampleSource:
    """Return the samples of what is not a WAV file, such as FLAC, with the package soundfile."""
    if find_spec("soundfile") is None:
        raise FileError(
            f"{path} is not a WAV file, and soundfile, which reads others, is not installed.",
            hint=f"pip install soundfile; or ffmpeg -i {path.name} -ac 1 -ar 16000 out.wav",
        )
    soundfile = import_module("soundfile")

    def tried(what: Callable[[], Any]) -> Any:
        try:
            return what()
        except Exception as error:  # its errors have no common class in all of its versions
            if is_out_of_memory(error):
                raise
            raise FileError(f"{path} is not a recording: {first_line(error)}.") from error

    about = tried(lambda: soundfile.info(path))

    def read(n: int) -> np.ndarray:
        found: np.ndarray = tried(lambda: soundfile.read(path, n, dtype="float32", always_2d=True)[0])
        return found

    return SampleSource(name, int(about.samplerate), about.frames, about.channels, read)


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
