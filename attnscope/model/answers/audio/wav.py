"""Read WAV files of integers and of floats, also of a recording that was interrupted.

Source: IBM and Microsoft 1991, "Multimedia Programming Interface and Data Specifications 1.0", p. 56;
Microsoft 2001, "Multiple channel audio data and WAVE files", for formats that are extensible.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from attnscope.base.errors import FileError

if TYPE_CHECKING:
    import numpy as np

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
