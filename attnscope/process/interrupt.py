"""Ctrl-C ends a command at once: status 130, one line on stderr, no temporary file left.

Python would raise KeyboardInterrupt in whatever line runs. While torch is imported that may be a
destructor or a callback, where the exception is lost, or Python code that C++ has called, which aborts
the process; in the middle of a sum it would leave half a sum. So the handler here raises nothing and
ends the process itself. Where an exception is right, in code of the user, `raised` lets Python raise it.

Source: https://docs.python.org/3/library/signal.html#note-on-signal-handlers-and-exceptions
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import _exit  # `trace` replaces the one that code of the user calls
from typing import NoReturn

from attnscope.process.launch import is_first

STATUS = 130
"""128 + SIGINT, as a shell shows it."""

LINE = "attnscope: interrupted."

_process: int | None = None
"""The process whose Ctrl-C this is; None where nobody has called `install`."""


def install() -> None:
    """Let Ctrl-C end this process, unless it ignores SIGINT, as a shell's job in the background does."""
    global _process
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    _process = os.getpid()
    atexit.register(_ignore)  # registered first, it runs last
    signal.signal(signal.SIGINT, end)


def end(*_: object) -> NoReturn:
    """End the process; as a handler of SIGINT, it takes the signal and the frame."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C need not wait for what follows
    if _process in (None, os.getpid()):  # and not a child that code of the user has forked
        # It may be in the middle of being imported: then it has written nothing.
        remove = getattr(sys.modules.get("attnscope.files"), "remove_unfinished", None)
        if remove is not None:
            remove()
        with suppress(Exception):  # stderr may be closed, or in the middle of writing
            sys.stderr.flush()
        if is_first():
            _say()
    _exit(STATUS)


def _say() -> None:
    # A spinner may have hidden the cursor, and stands where the line is to begin.
    clean = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{clean}{LINE}\n".encode())


@contextmanager
def raised() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt in the code that runs, as Python does; a second one ends.

    Without `install`, as when a program imports attnscope, nothing changes.
    """
    if signal.getsignal(signal.SIGINT) is not end:
        yield
        return
    signal.signal(signal.SIGINT, _raise_once)
    try:
        yield
    finally:  # also where the code has put a handler of its own there
        signal.signal(signal.SIGINT, end)


def leave_to_python() -> None:
    """Let Ctrl-C do from now on what Python does, or what the program that runs makes of it."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def take_back() -> None:
    """Let Ctrl-C end the process again, unless the program has put a handler of its own there."""
    if _process is not None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def _raise_once(*_: object) -> NoReturn:
    signal.signal(signal.SIGINT, end)
    raise KeyboardInterrupt


def _ignore() -> None:
    """All is written: while Python takes itself down, nothing is left to interrupt."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
