"""Files that appear whole or not at all, and replace others only where that was asked for."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from attnscope.errors import FileError


def check_file(path: Path, *, force: bool, suffixes: Collection[str], kind: str, inside: str) -> None:
    """Find out whether a file can be written, before any work is done for it.

    Args:
        path: the file.
        force: whether it may replace one that is there.
        suffixes: those that name a format.
        kind: what is to be written.
        inside: the hint for who names a folder: a file inside of it.

    Raises:
        FileError: it cannot: unknown suffix, no such folder, no right to write, there already.
    """
    if path.suffix not in suffixes:
        raise FileError(
            f"{path} ends in {path.suffix or 'no suffix'}, which names no format for {kind}.",
            hint=f"a name that ends in {', '.join(suffixes)}",
        )
    if path.is_dir():
        raise FileError(f"{path} is a folder.", hint=inside)
    if not path.parent.is_dir():
        raise FileError(f"there is no folder {path.parent} to write {path.name} into.")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"you may not write into the folder {path.parent}.")
    if path.exists() and not path.is_file():
        raise FileError(f"{path} is no regular file.", hint=inside)
    if path.exists() and not force:
        raise FileError(f"{path} exists already.", hint="another name, or --force to replace it")


@contextmanager
def whole_file(path: Path, *failures: type[Exception]) -> Iterator[Path]:
    """A file to write into, which takes the place of `path` when all of it is written.

    Args:
        path: the file that it is to become. A link is followed, and rights are kept.
        failures: what else than an OSError says that it could not be written.

    Raises:
        FileError: it could not be written; then `path` is as it was.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *failures)
    path = path.resolve()  # the file that a link points to is replaced, not the link
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part{path.suffix}")
    try:
        unfinished.touch()
        rights = (path if path.exists() else unfinished).stat().st_mode
        yield unfinished
        unfinished.chmod(rights)  # safetensors writes files that nobody else may read
        os.replace(unfinished, path)
    except kinds as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot write {path}: {reason}.") from error
    finally:
        unfinished.unlink(missing_ok=True)
