"""Ctrl-C ends a command at once: status 130, one line on stderr, no temporary file left.

Python would raise KeyboardInterrupt at whatever line is running. While torch is being imported, that
may be in a destructor or callback, where the exception is lost, or in Python code called from C++, which
aborts the process; elsewhere it may leave a computation half done. So this handler raises nothing and
ends the process itself. In the user's code, where an exception is right, `raised` lets Python raise it.

Source: https://docs.python.org/3/library/signal.html#note-on-signal-handlers-and-exceptions
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import _exit  # `trace` replaces the one that code of the user calls
from typing import NoReturn

from attnscope.base.process.launch import is_first

STATUS = 130
"""128 + SIGINT, as shells report it."""

LINE = "attnscope: interrupted."

_process: int | None = None
"""The id of the process that called `install`; None before that."""


def install() -> None:
    """Let Ctrl-C end this process, unless it ignores SIGINT, as a shell's background jobs do."""
    global _process
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    _process = os.getpid()
    atexit.register(_ignore)  # registered first, so it runs last
    signal.signal(signal.SIGINT, end)


def end(*_: object) -> NoReturn:
    """End the process. As a SIGINT handler, it is called with the signal number and the frame."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process immediately
    if _process in (None, os.getpid()):  # not in a child process that the user's code has forked
        # Each module may be only partly imported; then no file has been written, and no option read.
        remove = getattr(sys.modules.get("attnscope.base.process.files"), "remove_unfinished", None)
        if remove is not None:
            remove()
        with suppress(Exception):  # stderr may be closed, or the signal interrupted a write to it
            sys.stderr.flush()
        if is_first():
            # A spinner may be on the current line, and may have hidden the cursor.
            clean = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""
            with suppress(OSError):
                os.write(2, f"{clean}{LINE}\n".encode())
        record = getattr(
            sys.modules.get("attnscope.base.process.error_record"), "write_error_record", None
        )
        if record is not None:
            record("interrupted.", STATUS)
    _exit(STATUS)


@contextmanager
def raised() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, as Python does; a second one ends the process.

    Without `install`, as when a program imports attnscope, this does nothing.
    """
    if signal.getsignal(signal.SIGINT) is not end:
        yield
        return
    signal.signal(signal.SIGINT, _raise_once)
    try:
        yield
    finally:  # even if the code has installed a handler of its own
        signal.signal(signal.SIGINT, end)


@contextmanager
def noted(note: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C call a function, which may raise KeyboardInterrupt; a second one acts as before.

    This also holds without `install`. In threads other than the main one, it does nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before not in (end, signal.default_int_handler):
        yield
        return

    def once(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        note()

    signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:  # even if the code has installed a handler of its own
        signal.signal(signal.SIGINT, before)


def restore_python_handler() -> None:
    """Restore Python's own handling of Ctrl-C, which the running program may change."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def reinstall() -> None:
    """Let Ctrl-C end the process again, unless the program has installed a handler of its own."""
    if _process is not None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def _raise_once(*_: object) -> NoReturn:
    signal.signal(signal.SIGINT, end)
    raise KeyboardInterrupt


def _ignore() -> None:
    """Ignore Ctrl-C while Python shuts down: everything has been written."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
