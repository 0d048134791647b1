"""Tells how far long work is, and what it was doing when memory ran out.

A public function takes `progress=`, a callable. It gets a short text when a piece of work begins, such
as `loading minilm …`, again when there is more to say, and None when that piece ends. Where it is known
how much of the work is done, that is a second argument: its share, from 0 to 1.
"""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from attnscope.errors import AttnscopeError, OutOfMemoryError, is_out_of_memory


class Progress(Protocol):
    """What is told how far work is."""

    def __call__(self, doing: str | None, share: float | None = None, /) -> None:
        """Show what is done, and how much of it, from 0 to 1; None: that is over, or not known."""


def silent(doing: str | None, share: float | None = None, /) -> None:
    """Tell nobody: the progress of functions that were given none."""


def notify(message: str, *, important: bool = False) -> None:
    """Tell what a user may want to know while a run goes on, on the logger `attnscope`.

    Args:
        message: a sentence without a full stop.
        important: whether it is a warning: something comes out otherwise than it might be expected.
    """
    import logging

    logging.getLogger("attnscope").log(logging.WARNING if important else logging.INFO, "%s", message)


@contextmanager
def stage(progress: Progress, doing: str) -> Iterator[None]:
    """Tell what is being done, as long as it is.

    Args:
        progress: is told.
        doing: what is done, such as `running sdpa …`.

    Raises:
        OutOfMemoryError: it runs out of memory; the error says what was being done.
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
    """What to tell a user of an exception for which `is_out_of_memory` holds.

    What its frames hold is let go of, so that there is memory for telling it.

    Args:
        error: the exception.
        message: what was being done, without a full stop.
    """
    from attnscope.process.memory import room_on_host
    from attnscope.units import bytes_text

    traceback.clear_frames(error.__traceback__)
    text = str(error)
    if amount := re.search(r"allocate (\d+) bytes", text):
        message += f": {bytes_text(int(amount[1]))} more were not to be had"
    elif amount := re.search(r"allocate ([\d.]+ [KMGTPE]iB)", text):
        message += f": {amount[1]} more were not to be had"
    room = room_on_host()
    limit = f" {room.limit[0].upper()}{room.limit[1:]} applies." if room.limit else ""
    return OutOfMemoryError(f"{message}.{limit}", hint="a smaller input, or more memory")


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Import and load without the search for garbage: it finds none, and takes a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
