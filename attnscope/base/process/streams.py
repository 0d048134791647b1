"""The standard streams of a command, any of which may be closed.

A result that cannot be written to stdout is an error; a message that cannot be written to stderr is not.
The user's code may close or replace its streams: they are not those of the command.
"""

from __future__ import annotations

import atexit
import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_stderr: TextIO | None = None
"""The stderr that Python opened at start-up."""


class Lenient(io.FileIO):
    """A file that drops data that cannot be written, instead of raising an error."""

    def write(self, data: object) -> int:
        """Write as much as possible, and return the number of bytes written or dropped."""
        with suppress(OSError):
            return super().write(data)  # type: ignore[arg-type]
        return memoryview(data).nbytes  # type: ignore[arg-type]


def prepare(command: str | None) -> None:
    """Set up the standard streams of this process for a command.

    Args:
        command: its name. `run` leaves stdout to the program that it runs. `trace` has a stdout of its
            own: what the traced code, or a process that it starts, writes to stdout goes to stderr.
    """
    global _stderr
    _fill_gaps()
    _stderr, sys.stderr = sys.stderr, _lenient_stderr()
    atexit.register(_close, sys.stderr)
    if command == "run":
        return
    if command == "trace" or sys.stdout is None:
        descriptor = os.dup(1)
        if command == "trace":
            os.dup2(2, 1)
        encoding = sys.stdout.encoding if sys.stdout is not None else None
        file = io.BufferedWriter(io.FileIO(descriptor, "w"))
        sys.stdout = io.TextIOWrapper(file, encoding, line_buffering=os.isatty(descriptor))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")


def _fill_gaps() -> None:
    """Open the closed ones of descriptors 0 to 2; otherwise the next file would become a stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Open stdout for reading only, so that writing to a closed stdout still fails.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)


def _close(stream: TextIO) -> None:
    """Close the command's stderr when Python exits, which would complain of it otherwise (-X dev)."""
    if sys.stderr is stream:
        sys.stderr = _stderr
    with suppress(OSError, ValueError):
        stream.close()


def restore_stderr() -> None:
    """Restore the stderr that Python opened at start-up, for a program that the command runs."""
    if _stderr is not None:
        sys.stderr = _stderr


def _lenient_stderr() -> TextIO:
    """Return a stderr that drops what it cannot write, and stays open if descriptor 2 is closed."""
    encoding = sys.stderr.encoding if sys.stderr is not None else None
    file = io.BufferedWriter(Lenient(os.dup(2), "w"))
    return io.TextIOWrapper(file, encoding, errors="backslashreplace", line_buffering=True)


@contextmanager
def user_streams() -> Iterator[None]:
    """Give the user's code a stdout and stderr of its own, which both write to stderr."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _forwarding(before[1]), _forwarding(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        _fill_gaps()


class _Forwarding(io.RawIOBase):
    """A stream that writes into another stream and never closes it.

    Args:
        stream: the other stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: object) -> int:
        """Write the text of all complete characters; keep an incomplete one for the next call."""
        self.stream.write(self.decoder.decode(bytes(data)))  # type: ignore[call-overload]
        return memoryview(data).nbytes  # type: ignore[arg-type]

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the other stream."""
        return self.stream.fileno()

    def isatty(self) -> bool:
        """Check whether the other stream is a terminal."""
        return self.stream.isatty()


def _forwarding(stream: TextIO) -> TextIO:
    file = io.BufferedWriter(_Forwarding(stream))
    return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
