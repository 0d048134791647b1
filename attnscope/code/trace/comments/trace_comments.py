"""Shape comments in the file of a trace: writing new ones, and checking the existing ones."""

from __future__ import annotations

import ast
import linecache
import os
import tokenize
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from attnscope.base.errors import FileError, OptionError, SourceError, first_line
from attnscope.base.spelling import either
from attnscope.base.text import shortened
from attnscope.code.trace.comments.annotate import Style, annotate_file, diff, write
from attnscope.code.trace.comments.check import check_source
from attnscope.code.trace.result import CommentReport, SourceDiff
from attnscope.document.result import Check, Finding
from attnscope.observe.trace import Trace


@dataclass(frozen=True, repr=False)
class Annotation(SourceDiff):
    """A source file with the axes of its tensors, in comments or annotations."""

    path: Path
    old: bytes  #: its current content
    new: bytes  #: its content with these

    def write(self) -> None:
        """Rewrite the file, completely or not at all."""
        write(self.path, self.old, self.new)


def annotate(trace: Trace, style: Style = "comments") -> Annotation:
    """Add the axes of its tensors to the file of a trace, in comments or in annotations of jaxtyping.

    Comments with axes stand at the end of each line that binds tensors; correct shape comments stay as
    they are, in any notation. Annotations are those of the arguments and results of functions that ran;
    only ones that say nothing more than `Tensor` are replaced. Nothing is written.

    Args:
        trace: a trace from `attnscope.inspect`.
        style: `comments` or `jaxtyping`.

    Raises:
        OptionError: there is no such style.
        SourceError: the code failed, has changed since it was imported, or cannot be annotated.
        FileError: the file cannot be read.
    """
    if style not in get_args(Style):
        raise OptionError(
            f"{style!r} is not an annotation style.", hint=f"annotate: {' or '.join(get_args(Style))}"
        )
    if trace.crash is not None:
        raise SourceError(
            f"{trace.title} fails in line {trace.crash.line}, so not all of its shapes are known:"
            f" {trace.crash.error}",
            hint=either(command_line="run without --annotate to see why", python="trace.crash"),
        )
    path = _file_of(trace)
    _check_imported(path)
    keep = _report(trace, path).true_lines if style == "comments" else ()
    old, new = annotate_file(path, trace.steps, keep=keep, style=style)
    name = trace.file or str(path)
    return Annotation(name, diff(old, new, name), path, old, new)


def check_comments(trace: Trace) -> CommentReport:
    """Compare what the file of a trace says about shapes with its run.

    Comments, docstrings, jaxtyping's annotations and einops patterns are read. The trace gets a check,
    and a finding for each that is not true.

    Args:
        trace: a trace from `attnscope.inspect`.

    Returns:
        The number of those that are true, those that are not true, those about code that did not run,
        and the lines of what resembles a shape and could not be read.

    Raises:
        FileError: the file cannot be read.
        SourceError: it has changed since it was imported.
    """
    path = _file_of(trace)
    _check_imported(path)
    report = _report(trace, path)
    verdict = not report.wrong if report.true or report.wrong else None
    trace.checks = [*(trace.checks or []), Check("shape comments", None, None, verdict, report.summary)]
    wrong = [Finding(fault.message.partition(": ")[2], fault.line) for fault in report.wrong]
    trace.findings = sorted([*(trace.findings or []), *wrong], key=lambda finding: finding.line or 0)
    return report


def _file_of(trace: Trace) -> Path:
    if trace.file is None:
        raise SourceError(f"the trace of {trace.title} does not say which file its code is in.")
    path = Path(os.path.abspath(trace.file))
    entries = [linecache.cache.get(each, ()) for each in (str(path), trace.file)]
    is_cell = trace.file.startswith("Cell In[") or any(
        len(each) == 4 and each[1] is None
        for each in entries  # no mtime
    )
    if is_cell and not path.exists():
        raise SourceError(
            f"the code of {trace.title} is in a cell of a notebook, not in a file.",
            hint="save it as a .py file, and import it",
        )
    return path


def _check_imported(path: Path) -> None:
    """Check that the code in a file is still the one that ran; comments may differ."""
    imported = linecache.cache.get(str(path))
    if imported is None or len(imported) < 3 or not path.exists():
        return
    with suppress(OSError, SyntaxError, UnicodeDecodeError):  # reported when the file is read
        present = [ast.parse(text) for text in ("".join(imported[2]), _text_of(path))]
        before, now = [ast.dump(tree, include_attributes=True) for tree in present]
        if before != now:
            raise SourceError(
                f"{shortened(path)} has changed since it was imported.",
                hint="restart Python to run the code that is in the file",
            )


def _report(trace: Trace, path: Path) -> CommentReport:
    try:
        text = _text_of(path)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:  # the code may have changed its file
        raise FileError(
            f"cannot read {shortened(path)} again to compare its comments:"
            f" {getattr(error, 'strerror', None) or first_line(error)}."
        ) from error
    return check_source(text, trace.steps, sizes=trace.sizes)


def _text_of(path: Path) -> str:
    """Read a source file, or the cell of a notebook."""
    cell = linecache.cache.get(path.name) or linecache.cache.get(str(path))
    if cell is not None and len(cell) > 2 and cell[1] is None and not path.exists():
        return "".join(cell[2])
    with tokenize.open(path) as opened:
        return opened.read()
