"""Read a recording: samples of one channel, at the rate that a model takes.

WAV files are read here, also those of a recording that was interrupted. Source: IBM and Microsoft 1991,
"Multimedia Programming Interface and Data Specifications 1.0", p. 56; Microsoft 2001, "Multiple channel
audio data and WAVE files", for formats that are extensible.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from math import ceil, gcd
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

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
from attnscope.base.spelling import spelled
from attnscope.base.text import described, shortened

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
                hint=f"{spelled(truncate=True)}; or ffmpeg -i FILE -ss START -t {longest:g} part.wav",
            )
        notices.append(f"the recording of {seconds:,.1f} s was cut to {longest:g} s.")
        n = min(n, ceil((longest + 1) * source.rate))  # the last of them are next to the border
    n_new = n * rate // source.rate
    check_memory(
        BYTES * (n * source.n_channel + n_new), "cpu", f"a shorter recording, or {spelled('truncate')}"
    )
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
        raise OptionError(
            f"the rate of {spelled('audio')} is {described(rate)}, but has to be samples a second."
        )
    samples = _between_one(values)
    return SampleSource(
        spelled("audio"), int(rate), len(samples), samples.shape[1], lambda n: samples[:n]
    )


def _between_one(values: Any) -> np.ndarray:
    """Return the samples of an array, a tensor or a list, `n_sample n_channel` in float32."""
    import numpy as np

    if hasattr(values, "detach"):  # a tensor of torch
        if values.is_meta or values.is_sparse:
            raise OptionError(
                f"the samples of {spelled('audio')} are a tensor without values, or a sparse one."
            )
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
        values = values.resolve_conj().numpy() if values.is_complex() else values.numpy()
    try:
        samples = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"the samples of {spelled('audio')} are not an array: {first_line(error)}."
        ) from error
    if samples.ndim not in (1, 2) or not samples.size:
        raise OptionError(
            f"{spelled('audio')} has no samples: its shape is {tuple(samples.shape)}.",
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
        f"the samples of {spelled('audio')} are {samples.dtype.name}, but sound is floats between −1"
        " and 1, or integers of 8, 16 or 32 bits.",
        hint='audio=(samples.astype("int16"), 16000)' if samples.dtype.kind in "iu" else None,
    )


def _of_file(path: Path) -> SampleSource:
    """Return the samples of a file."""
    name = spelled("audio", shortened(path))
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


INTEGERS, FLOATS, EXTENSIBLE = 1, 3, 0xFFFE
WIDTHS = {INTEGERS: (1, 2, 3, 4), FLOATS: (4, 8)}  #: the bytes of a sample that are read
UNKNOWN = 0xFFFFFFFF  #: the length that a program states which writes into a pipe
MOST_CHUNKS = 1000  #: the most chunks before the samples: files have a few, of titles and the like


@dataclass(frozen=True)
class WavFile:
    """What the header of a WAV file says."""

    path: Path
    kind: int  #: that of its samples: `INTEGERS` or `FLOATS`
    n_channel: int
    rate: int
    width: int  #: the bytes of a sample
    first: int  #: the byte at which the samples begin
    n_sample: int  #: how many times have samples in the file
    n_stated: int | None  #: how many its header states; None: it does not say

    def read(self, n: int) -> np.ndarray:
        """Return the first n samples of each channel, between −1 and 1: `n n_channel` in float32."""
        import numpy as np

        with self.path.open("rb") as file:
            file.seek(self.first)
            content = file.read(n * self.n_channel * self.width)
        if self.kind == FLOATS:
            return np.frombuffer(content, f"<f{self.width}").astype("f4").reshape(-1, self.n_channel)
        if self.width == 1:  # the only width without a sign
            integers = np.frombuffer(content, "u1").astype("f4") - 128
        elif self.width == 3:
            of_three = np.frombuffer(content, "u1").reshape(-1, 3)
            padded = np.concatenate([np.zeros_like(of_three[:, :1]), of_three], axis=1)
            integers = padded.view("<i4").astype("f4") / 256
        else:
            integers = np.frombuffer(content, f"<i{self.width}").astype("f4")
        return integers.reshape(-1, self.n_channel) / np.float32(2 ** (8 * self.width - 1))


def open_wav(path: Path) -> WavFile | None:
    """Read the header of a WAV file; return None for a file of another kind."""
    with path.open("rb") as file:
        start = file.read(12)
        if start[:4] != b"RIFF" or start[8:] != b"WAVE":
            return None
        form = b""
        for _ in range(MOST_CHUNKS):
            name, n_byte = _chunk(file, path)
            if name == b"data":
                return _of_format(path, form, file.tell(), n_byte)
            if name == b"fmt ":
                form = file.read(min(n_byte, 40))
                file.seek(n_byte - len(form) + n_byte % 2, 1)
            else:
                file.seek(n_byte + n_byte % 2, 1)
    raise FileError(f"{path} has no samples in its first {MOST_CHUNKS:,} parts.")


def _chunk(file: BinaryIO, path: Path) -> tuple[bytes, int]:
    """Read the name and the length of a part of a file."""
    head = file.read(8)
    if len(head) < 8:
        raise FileError(f"{path} ends before its samples: it was cut off, or has none.")
    name, n_byte = struct.unpack("<4sI", head)
    return name, n_byte


def _of_format(path: Path, form: bytes, first: int, n_byte: int) -> WavFile:
    """Return what a header says, the content of `fmt `, checked with the size of the file."""
    if len(form) < 16:
        raise FileError(f"{path} does not say which samples it has: it is damaged.")
    kind, n_channel, rate, _, block, bits = struct.unpack("<HHIIHH", form[:16])
    if kind == EXTENSIBLE and len(form) >= 26:
        [kind] = struct.unpack("<H", form[24:26])
    if kind not in WIDTHS:
        return _not_read(path, f"samples of the format {kind}, which are compressed")
    if (
        not n_channel
        or not rate
        or not block
        or block % n_channel
        or not 0 < bits <= 8 * block // n_channel
    ):
        raise FileError(
            f"{path} is damaged: it has {n_channel} channels of {bits} bits in blocks of {block} bytes,"
            f" {rate} a second."
        )
    if (width := block // n_channel) not in WIDTHS[kind]:
        what = "floats" if kind == FLOATS else "integers"
        return _not_read(path, f"{what} of {8 * width} bits")
    there = max(0, path.stat().st_size - first)
    states = n_byte not in (UNKNOWN, 0) or not there
    n_sample = (min(n_byte, there) if states else there) // block
    return WavFile(
        path, kind, n_channel, rate, width, first, n_sample, n_byte // block if states else None
    )


def _not_read(path: Path, what: str) -> WavFile:
    known = "integers of 8, 16, 24 and 32 bits, and floats of 32 and 64, are read"
    raise FileError(
        f"{path} has {what}: {known}.", hint=f"ffmpeg -i {path.name} -ac 1 -ar 16000 out.wav"
    )
