"""Writing files: completely or not at all, and over an existing file only with `force`.

Content is first written to a temporary file beside the target. When it is complete, that file takes
the target's name in one atomic step: `link`, which fails if the name exists, or with `force`
`rename`, which replaces the target (POSIX.1-2017, link() and rename()). Symbolic links are
followed. Devices, pipes and open descriptors (`/dev/stdout`, `>(…)`) cannot be replaced, so the content
is copied to them.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError, FileError, OptionWarning
from attnscope.base.spelling import spelled
from attnscope.base.text import alternatives, shortened

MOST_LINKS = 40
"""The number of links to follow in a row, as in Linux."""

LONGEST_PATH = 200
"""The number of characters of a path that messages show."""

ENDINGS = ("SIGTERM", "SIGHUP")
"""Signals that end a process without running Python's clean-up."""


def is_named_pipe(path: str | Path) -> bool:
    """Check whether a file to read is a named pipe, which waits until something writes into it.

    The pipe of another command, as in `<(…)`, is under /dev/fd, and does not wait.
    """
    try:
        is_pipe = stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
    return is_pipe and not os.path.realpath(path).startswith(("/proc/", "/dev/"))


def refuse_pipe(path: str | Path) -> None:
    """Raise a FileError if a file to read is a named pipe."""
    if is_named_pipe(path):
        raise FileError(f"{_named(Path(path))} is not a regular file.")


def check_file(
    path: Path,
    *,
    force: bool,
    suffixes: Collection[str] | None,
    kind: str,
    inside: str,
    streams: bool = True,
) -> None:
    """Check that a file can be written, before any work is done for it.

    Args:
        path: the file.
        force: whether it may replace an existing file.
        suffixes: the suffixes of known formats; None: any suffix is accepted.
        kind: the content, as messages name it.
        inside: the hint if the path is a folder: a file inside it.
        streams: whether it may be a device, a pipe or an open descriptor.

    Raises:
        FileError: unknown suffix, no such folder, no permission, or the file already exists.
    """
    name = _named(path)
    if suffixes is not None and path.suffix not in suffixes and not os.path.isdir(path):
        raise FileError(
            f"{name} ends in {_named(path.suffix) or 'no suffix'}, which is not a format for {kind}.",
            hint=alternatives(_named(path.with_suffix(each).name) for each in suffixes),
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
            raise FileError(f"{name} is not a regular file.", hint=inside)
        if stat.S_ISBLK(status.st_mode) and not force:
            raise FileError(
                f"{name} is a disk.", hint=f"a file; or {spelled(force=True)} to write over the disk"
            )
        if _descriptor(path) is None and not os.access(path, os.W_OK):
            raise FileError(f"no permission to write to {name}.")
        return
    if not parent_is_there:
        raise FileError(
            f"there is no folder {_named(target.parent)} to write {_named(target.name)} into.",
            hint=f"mkdir -p {_named(target.parent)}",
        )
    if not os.access(target.parent, os.W_OK):
        raise FileError(f"no permission to write into the folder {_named(target.parent)}.")
    if status is not None and not force:
        raise _there_already(path)


@contextmanager
def whole_file(path: Path, *failures: type[Exception], force: bool) -> Iterator[Path]:
    """Yield a temporary file, and move it to `path` when it has been written completely.

    It is removed if an exception, SIGTERM or SIGHUP prevents that.

    Args:
        path: the target. A link is followed, and permissions are kept. The content is copied to a
            device, a pipe or an open descriptor.
        failures: exceptions beside OSError that mean that writing failed.
        force: whether it may replace an existing file.

    Raises:
        FileError: it could not be written, or the file exists; then `path` is unchanged.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *failures)
    try:
        stream = _is_stream(path, _status(path))
        target = Path(os.path.realpath(path))
        folder = Path(tempfile.gettempdir()) if stream else target.parent
        unfinished = folder / f".attnscope-{secrets.token_hex(6)}.part"
        with _removed(unfinished):
            # safetensors' own writer creates files that only their owner may read.
            rights = 0o600 if stream else 0o666  # other users can read the folder for temporary files
            os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, rights))
            rights = stat.S_IMODE(unfinished.stat().st_mode)
            yield unfinished
            if stream:
                _copy_to_stream(unfinished, path)
            else:
                _place(unfinished, path, target, rights, force=force)
    except AttnscopeError:
        raise
    except kinds as error:
        raise _failure(path, error) from error


def write_file(path: Path, content: bytes, *, force: bool) -> None:
    """Write a file completely or not at all, as `whole_file` does.

    Args:
        path: the file.
        content: its whole content.
        force: whether it may replace an existing file.

    Raises:
        FileError: it could not be written; then it is unchanged.
    """
    with whole_file(path, force=force) as unfinished:
        unfinished.write_bytes(content)


# Resolving paths.


def _status(path: Path) -> os.stat_result | None:
    """Return the status of the file at a path; None if there is none.

    Raises:
        OSError: it cannot be determined: a name is too long, links form a loop, …
    """
    number = _descriptor(path)
    if number is not None:
        return os.fstat(number)
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_stream(path: Path, status: os.stat_result | None) -> bool:
    """Check whether a path is a device, a pipe or an open descriptor, which is never replaced."""
    if status is None or stat.S_ISDIR(status.st_mode):
        return False
    return not stat.S_ISREG(status.st_mode) or _descriptor(path) is not None


def _descriptor(path: Path) -> int | None:
    """Return the open descriptor that a path stands for, such as 1 for /dev/stdout; else None."""
    folders = ("/dev/fd", f"/proc/{os.getpid()}/fd")
    link = os.path.abspath(path)
    for _ in range(MOST_LINKS):
        folder, name = os.path.realpath(os.path.dirname(link)), os.path.basename(link)
        if folder in folders and name.isdecimal():
            return int(name)
        if not os.path.islink(link):
            return None
        link = os.path.join(folder, os.readlink(link))
    return None


# Moving a complete file to its target.


def _place(unfinished: Path, path: Path, target: Path, rights: int, *, force: bool) -> None:
    """Move a complete file to its target.

    Args:
        unfinished: the temporary file.
        path: the target as the user wrote it.
        target: the target with links resolved.
        rights: the permissions of a new file.
        force: whether it may replace an existing file.
    """
    existing = None
    with suppress(FileNotFoundError):
        existing = os.lstat(target)
    if existing is not None and not stat.S_ISREG(existing.st_mode):
        raise FileError(f"{_named(path)} is no longer a regular file; it was not replaced.")
    # safetensors creates files that only their owner may read
    unfinished.chmod(rights if existing is None else stat.S_IMODE(existing.st_mode))
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
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))  # reserve the name
    except FileExistsError as error:
        raise _there_already(path) from error
    try:
        os.replace(unfinished, target)
    except OSError:
        target.unlink()
        raise


def _copy_to_stream(finished: Path, path: Path) -> None:
    """Copy a file's content to a device, a pipe or an open descriptor."""
    number = _descriptor(path)
    out = _opened_stream(path) if number is None else os.dup(number)
    with finished.open("rb") as content, open(out, "wb") as stream:
        if number is None and stat.S_ISREG(os.fstat(out).st_mode):
            raise FileError(f"{_named(path)} has become a regular file; it was not overwritten.")
        shutil.copyfileobj(content, stream)


def _opened_stream(path: Path) -> int:
    """Open a device or a pipe to write to; a pipe without a reader is waited for, with a warning."""
    flags = os.O_WRONLY | getattr(os, "O_NOCTTY", 0)
    try:
        out = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        warnings.warn(f"waiting for a reader of the pipe {_named(path)}", OptionWarning, stacklevel=2)
        return os.open(path, flags)
    os.set_blocking(out, True)
    return out


# Unfinished files.

_unfinished: set[Path] = set()


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Remove a file on exit, even if a signal ends the process."""
    handled = []
    if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
        numbers = [getattr(signal, name) for name in ENDINGS if hasattr(signal, name)]
        handled = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    _unfinished.add(path)
    try:
        for number in handled:
            signal.signal(number, _end)
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        _unfinished.discard(path)
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: Any) -> None:
    """Remove unfinished files, and let the signal end the process."""
    remove_unfinished()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def remove_unfinished() -> None:
    """Remove all unfinished files, because the process is about to end."""
    for path in list(_unfinished):
        with suppress(OSError):
            path.unlink()


# Errors.


def _named(path: Path | str) -> str:
    """Return a path as messages show it: shortened if it is very long, and never like an option."""
    text = str(path)
    return shortened(f"./{text}" if text.startswith("-") else text, LONGEST_PATH)


class FileThereError(FileError):
    """A file already exists, and may not be replaced."""


def _there_already(path: Path) -> FileThereError:
    return FileThereError(
        f"{_named(path)} already exists.", hint=f"another name, or {spelled(force=True)} to replace it"
    )


def _failure(path: Path, error: Exception) -> FileError:
    """Return the FileError for a failure to write, with the system's reason from its chain of causes."""
    reason: str | None = None
    cause: BaseException | None = error
    while reason is None and cause is not None:
        reason, cause = getattr(cause, "strerror", None), cause.__cause__ or cause.__context__
    reason = reason or str(error).strip() or type(error).__name__
    return FileError(f"cannot write {_named(path)}: {reason}.")


def cell_of(file: str) -> str | None:
    """Return the cell of a notebook that Python knows as this file: `Cell In[3]`; None: it is a file."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    named = None if shell is None else shell.compile.format_code_name(file)
    return None if named is None else " ".join(named)


def place_text(file: str, line: int) -> str:
    """Return a line of a file, `model.py:7`, or of a cell, `Cell In[3], line 7`.

    Args:
        file: a path, which is shown as it is; or the name of a cell, of Python's or of `cell_of`.
        line: the line.
    """
    cell = file if file.startswith("Cell In[") else cell_of(file)
    return f"{file}:{line}" if cell is None else f"{cell}, line {line}"


def shown_path(file: str, here: Path | None = None) -> str:
    """Return a file's path relative to the current folder, if it is below it; or the cell's name."""
    if (cell := cell_of(file)) is not None:
        return cell
    path = Path(file)
    try:
        here = here or Path.cwd()
    except FileNotFoundError:  # the traced code may have removed the current folder
        return file
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
