"""The standard streams of a command: none of them has to be open.

A result that cannot be written is an error; what is said on stderr is not worth failing for. Code of the
user may close or replace its streams as it likes: it has others than the command.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_stderr: TextIO | None = None
"""The stderr that Python has opened."""


class Lenient(io.FileIO):
    """A file that takes what cannot be written, and drops it."""

    def write(self, data: object) -> int:
        """Write as far as possible; how much there was to write."""
        with suppress(OSError):
            return super().write(data)  # type: ignore[arg-type]
        return memoryview(data).nbytes  # type: ignore[arg-type]


def prepare(command: str | None) -> None:
    """Make the streams of this process what its command needs.

    Args:
        command: its name. `run` leaves stdout to the program that it runs. `trace` has a stdout of its
            own: what the traced code writes there goes to stderr, and so does what is written by
            processes that it starts.
    """
    global _stderr
    _fill_gaps()
    _stderr, sys.stderr = sys.stderr, _lenient_stderr()
    if command == "run":
        return
    if command == "trace" or sys.stdout is None:
        own = os.dup(1)
        if command == "trace":
            os.dup2(2, 1)
        encoding = sys.stdout.encoding if sys.stdout is not None else None
        file = io.BufferedWriter(io.FileIO(own, "w"))
        sys.stdout = io.TextIOWrapper(file, encoding, line_buffering=os.isatty(own))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what an encoding lacks is escaped
            stream.reconfigure(errors="backslashreplace")


def _fill_gaps() -> None:
    """Open what is closed of the numbers 0 to 2: the next file that is opened would be a stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Opened for reading, so that writing to a stdout that was closed fails as it should.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)


def give_back() -> None:
    """Let a program have the stderr that it would have without us, if it would have one."""
    if _stderr is not None:
        sys.stderr = _stderr


def _lenient_stderr() -> TextIO:
    """A stderr that drops what cannot be written, and stays open when another is closed."""
    encoding = sys.stderr.encoding if sys.stderr is not None else None
    file = io.BufferedWriter(Lenient(os.dup(2), "w"))
    return io.TextIOWrapper(file, encoding, errors="backslashreplace", line_buffering=True)


@contextmanager
def of_user() -> Iterator[None]:
    """While code of the user runs, it has streams of its own, both of which write to stderr."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _forwarding(before[1]), _forwarding(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        _fill_gaps()


class _Forwarding(io.RawIOBase):
    """Writes into another stream, and does not close it.

    Args:
        stream: the other one.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: object) -> int:
        """Write text, as far as its bytes are whole characters."""
        self.stream.write(self.decoder.decode(bytes(data)))  # type: ignore[call-overload]
        return memoryview(data).nbytes  # type: ignore[arg-type]

    def writable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """That of the other stream."""
        return self.stream.fileno()

    def isatty(self) -> bool:
        """As the other stream says."""
        return self.stream.isatty()


def _forwarding(stream: TextIO) -> TextIO:
    file = io.BufferedWriter(_Forwarding(stream))
    return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
