"""Progress reports of long work, and errors that say what it was doing when memory ran out.

Public functions take `progress=`, a callable. It is called with a short text when a stage begins, such
as `loading minilm …`, again when there is more to report, and with None when the stage ends. Where the
completed share of the work is known, it is the second argument, from 0 to 1.
"""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from attnscope.base.errors import AttnscopeError, OutOfMemoryError, is_out_of_memory
from attnscope.base.text import printable


class Progress(Protocol):
    """A callable that receives progress reports."""

    def __call__(self, doing: str | None, share: float | None = None, /) -> None:
        """Show the stage (None: it has ended) and its completed share, from 0 to 1 (None: unknown)."""


def silent(doing: str | None, share: float | None = None, /) -> None:
    """Report nothing: the default progress of public functions."""


def notify(message: str, *, important: bool = False) -> None:
    """Log a message for the user during a run, on the logger `attnscope`.

    Args:
        message: a sentence without a full stop.
        important: log a warning, for results that may differ from what the user expects.
    """
    import logging

    level = logging.WARNING if important else logging.INFO
    logging.getLogger("attnscope").log(level, "%s", printable(message))


@contextmanager
def stage(progress: Progress, doing: str) -> Iterator[None]:
    """Report a stage of the work while it runs.

    Args:
        progress: called with `doing` at the start, and with None at the end.
        doing: the name of the stage, such as `running sdpa …`.

    Raises:
        OutOfMemoryError: memory ran out; the error names the stage.
    """
    progress(doing)
    try:
        yield
    except AttnscopeError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory(error, f"out of memory while {doing.removesuffix(' …')}") from error
        raise
    finally:
        progress(None)


def out_of_memory(error: BaseException, message: str) -> OutOfMemoryError:
    """Return the error to raise for an exception for which `is_out_of_memory` holds.

    The local variables of its frames are released, so that there is memory to report it.

    Args:
        error: the exception.
        message: the beginning of the error message, without a full stop.
    """
    from attnscope.base.process.memory import free_host_memory
    from attnscope.base.units import bytes_text

    traceback.clear_frames(error.__traceback__)
    text = str(error)
    if amount := re.search(r"allocate (\d+) bytes", text):
        message += f": {bytes_text(int(amount[1]))} more could not be allocated"
    elif amount := re.search(r"allocate ([\d.]+ [KMGTPE]iB)", text):
        message += f": {amount[1]} more could not be allocated"
    free = free_host_memory()
    limit = f" {free.limit[0].upper()}{free.limit[1:]} applies." if free.limit else ""
    return OutOfMemoryError(f"{message}.{limit}", hint="a smaller input, or more memory")


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection while importing and loading, where it takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
