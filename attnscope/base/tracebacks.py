"""Exceptions of the user's code, described on one line with the line that raised them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import attnscope
from attnscope.base.errors import class_name, is_a, safe_str, stored_in
from attnscope.base.process.files import cell_of

OWN = Path(attnscope.__file__).parent
"""The folder of this package."""


def describe(
    error: BaseException,
    folder: Path | None = None,
    *,
    is_user_file: Callable[[str], bool] = lambda file: False,
) -> str:
    """Describe an exception on one line: its class, its message, and the line that raised it.

    Args:
        error: the exception.
        folder: the folder of the user's files: the innermost line in one of them is reported, or the
            innermost of all if there is none.
        is_user_file: whether a file is one of the user's, if their folder is unknown.
    """
    text = safe_str(error).strip().split("\n")[0]
    kind = class_name(error)
    if is_a(error, SyntaxError) and error.filename:
        text, file, number, code = error.msg, error.filename, error.lineno, error.text
    else:
        every = traceback.extract_tb(stored_in(error, "__traceback__"))
        frames = [each for each in every if not _is_machinery(each.filename)] or every
        user_frames = [
            each
            for each in frames
            if (folder and _is_below(each.filename, folder)) or is_user_file(each.filename)
        ]
        frame = (user_frames or frames)[-1]
        file, number, code = frame.filename, frame.lineno, frame.line
    summary = f"{kind}: {text}" if text else kind
    if file.startswith("<frozen"):  # Python's own import system
        return summary
    return f"{summary} (line {number} of {cell_of(file) or os.path.basename(file)}" + (
        f": {code.strip()})" if code else ")"
    )


def _is_machinery(file: str) -> bool:
    """Check whether a file belongs to this package, and is none of the attentions that it offers."""
    path = Path(file)
    return path.is_relative_to(OWN) and path.relative_to(OWN).parts[0] != "attention"


def _is_below(file: str, folder: Path) -> bool:
    """Check whether a file is below a folder, but not in an environment inside it."""
    path = Path(file)
    return path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts
