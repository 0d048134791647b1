"""The one way in which files are written: whole or not at all, and over another only with leave.

What is written goes into a file of its own beside the target first. When all of it is there, that
file takes the target's name in one step of the file system: `link`, which fails where something has
that name, or with leave `rename`, which replaces it (POSIX.1-2017, link() and rename()). Links are
followed. Devices, pipes and open descriptors (`/dev/stdout`, `>(…)`) have no content to keep: they are
written to.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnscope.errors import AttnscopeError, FileError
from attnscope.text import shortened

MOST_LINKS = 40
"""Links that are followed one after the other; Linux follows as many."""

LONGEST_PATH = 200
"""Characters of a path that a message repeats."""

ENDINGS = ("SIGTERM", "SIGHUP")
"""Signals that end a process, and that nobody catches unless they are asked to."""


def check_file(
    path: Path,
    *,
    force: bool,
    suffixes: Collection[str] | None,
    kind: str,
    inside: str,
    streams: bool = True,
) -> None:
    """Find out whether a file can be written, before any work is done for it.

    Args:
        path: the file.
        force: whether it may replace one that is there.
        suffixes: those that name a format; None where the name may end in anything.
        kind: what is to be written.
        inside: the hint for who names a folder: a file inside of it.
        streams: whether it may be a device, a pipe or an open descriptor.

    Raises:
        FileError: it cannot: unknown suffix, no such folder, no right to write, there already.
    """
    name = _named(path)
    if suffixes is not None and path.suffix not in suffixes:
        raise FileError(
            f"{name} ends in {_named(path.suffix) or 'no suffix'}, which names no format for {kind}.",
            hint=f"a name that ends in {', '.join(suffixes)}",
        )
    try:
        status = _status(path)
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        parent_is_there = target.parent.is_dir()
    except (OSError, ValueError) as error:
        raise _failure(path, error) from error
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise FileError(f"{name} is a folder.", hint=inside)
    if status is not None and _is_stream(path, status):
        if not streams or stat.S_ISSOCK(status.st_mode):
            raise FileError(f"{name} is no regular file.", hint=inside)
        if stat.S_ISBLK(status.st_mode) and not force:
            raise FileError(f"{name} is a disk.", hint="a file; or --force to write over the disk")
        if _descriptor(path) is None and not os.access(path, os.W_OK):
            raise FileError(f"you may not write to {name}.")
        return
    if not parent_is_there:
        raise FileError(
            f"there is no folder {_named(target.parent)} to write {_named(target.name)} into."
        )
    if not os.access(target.parent, os.W_OK):
        raise FileError(f"you may not write into the folder {_named(target.parent)}.")
    if status is not None and not force:
        raise _there_already(path)


@contextmanager
def whole_file(path: Path, *failures: type[Exception], force: bool) -> Iterator[Path]:
    """A file to write into, which takes the place of `path` when all of it is written.

    It is removed if it is not finished, by an exception as by SIGTERM or SIGHUP.

    Args:
        path: the file that it is to become. A link is followed, and rights are kept. A device, a pipe
            or an open descriptor gets what was written.
        failures: what else than an OSError says that it could not be written.
        force: whether it may replace a file that is there.

    Raises:
        FileError: it could not be written, or there is a file of that name; then `path` is as it was.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *failures)
    try:
        stream = _is_stream(path, _status(path))
        target = Path(os.path.realpath(path))
        folder = Path(tempfile.gettempdir()) if stream else target.parent
        unfinished = folder / f".attnscope-{secrets.token_hex(6)}.part"
        with _removed(unfinished):
            # safetensors' own writer makes files that only their owner may read.
            rights = 0o600 if stream else 0o666  # others may look into the folder for temporary files
            os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, rights))
            rights = stat.S_IMODE(unfinished.stat().st_mode)
            yield unfinished
            if stream:
                _pour(unfinished, path)
            else:
                _place(unfinished, path, target, rights, force=force)
    except AttnscopeError:
        raise
    except kinds as error:
        raise _failure(path, error) from error


def write_file(path: Path, content: bytes, *, force: bool) -> None:
    """Write a file, as `whole_file` does.

    Args:
        path: the file.
        content: all of it.
        force: whether it may replace a file that is there.

    Raises:
        FileError: it could not be written; then it is as it was.
    """
    with whole_file(path, force=force) as unfinished:
        unfinished.write_bytes(content)


# What a path leads to.


def _status(path: Path) -> os.stat_result | None:
    """What is known of the file that a path leads to; None if it leads to none.

    Raises:
        OSError: that cannot be found out: a name is too long, links go in a circle, …
    """
    number = _descriptor(path)
    if number is not None:
        return os.fstat(number)
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_stream(path: Path, status: os.stat_result | None) -> bool:
    """Whether a path leads to what is written to, and never replaced."""
    if status is None or stat.S_ISDIR(status.st_mode):
        return False
    return not stat.S_ISREG(status.st_mode) or _descriptor(path) is not None


def _descriptor(path: Path) -> int | None:
    """The open descriptor that a path stands for: 1, of /dev/stdout; None if it is a file."""
    folders = ("/dev/fd", f"/proc/{os.getpid()}/fd")
    here = os.path.abspath(path)
    for _ in range(MOST_LINKS):
        folder, name = os.path.realpath(os.path.dirname(here)), os.path.basename(here)
        if folder in folders and name.isdecimal():
            return int(name)
        if not os.path.islink(here):
            return None
        here = os.path.join(folder, os.readlink(here))
    return None


# How a file comes to its place.


def _place(unfinished: Path, path: Path, target: Path, rights: int, *, force: bool) -> None:
    """Give a file that is complete its name.

    Args:
        unfinished: the file.
        path: the name as the user wrote it.
        target: where that leads to.
        rights: those of a new file.
        force: whether it may replace a file that is there.
    """
    there = _status_of_itself(target)
    if there is not None and not stat.S_ISREG(there.st_mode):
        raise FileError(f"{_named(path)} is no regular file any more; it is left alone.")
    # safetensors writes files that nobody else may read
    unfinished.chmod(rights if there is None else stat.S_IMODE(there.st_mode))
    if force:
        os.replace(unfinished, target)
        return
    try:
        os.link(unfinished, target)
        return
    except FileExistsError as error:
        raise _there_already(path) from error
    except OSError:  # some file systems have no links
        pass
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))  # now the name is ours
    except FileExistsError as error:
        raise _there_already(path) from error
    try:
        os.replace(unfinished, target)
    except OSError:
        target.unlink()
        raise


def _status_of_itself(target: Path) -> os.stat_result | None:
    try:
        return os.lstat(target)
    except FileNotFoundError:
        return None


def _pour(finished: Path, path: Path) -> None:
    """Write a file's content to a device, a pipe or an open descriptor."""
    number = _descriptor(path)
    out = os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)) if number is None else os.dup(number)
    with finished.open("rb") as content, open(out, "wb") as stream:
        if number is None and stat.S_ISREG(os.fstat(out).st_mode):
            raise FileError(f"{_named(path)} has become a regular file; it is left alone.")
        shutil.copyfileobj(content, stream)


# Files that are not finished.

_unfinished: set[Path] = set()


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Remove a file at the end, also where a signal ends the process."""
    ours = []
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        numbers = [getattr(signal, name) for name in ENDINGS if hasattr(signal, name)]
        ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    _unfinished.add(path)
    try:
        for number in ours:
            signal.signal(number, _end)
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        _unfinished.discard(path)
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: Any) -> None:
    """Remove what is not finished, and let the signal end the process as it would have."""
    remove_unfinished()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def remove_unfinished() -> None:
    """Remove what is not finished: the process ends."""
    for path in list(_unfinished):
        with suppress(OSError):
            path.unlink()


# What went wrong.


def _named(path: Path | str) -> str:
    """A path as messages repeat it: whole, unless it is longer than any that people write."""
    return shortened(path, LONGEST_PATH)


class FileThereError(FileError):
    """A file is there already, and may not be replaced."""


def _there_already(path: Path) -> FileThereError:
    return FileThereError(
        f"{_named(path)} exists already.", hint="another name, or --force to replace it"
    )


def _failure(path: Path, error: Exception) -> FileError:
    """What a failure to write is told as: the system's reason, also where it led to another error."""
    reason: str | None = None
    cause: BaseException | None = error
    while reason is None and cause is not None:
        reason, cause = getattr(cause, "strerror", None), cause.__cause__ or cause.__context__
    reason = reason or str(error).strip() or type(error).__name__
    return FileError(f"cannot write {_named(path)}: {reason}.")


def shown_path(file: str, here: Path | None = None) -> str:
    """A file as a reader knows it: from here, if it is below."""
    path = Path(file)
    try:
        here = here or Path.cwd()
    except FileNotFoundError:  # code that was traced may have removed it
        return file
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
