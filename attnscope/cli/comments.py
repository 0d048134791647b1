"""Shape comments in a user's file: shown as a diff, written, or compared with what ran."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.cli.output import tell
from attnscope.errors import FileError, SourceError, first_line
from attnscope.results.common import Check, Finding
from attnscope.results.trace import Trace
from attnscope.text import printable_lines, shortened

if TYPE_CHECKING:
    from attnscope.tracing.comments import Checked


def show_comments(trace: Trace, file: str, *, write: bool) -> int:
    """Show the file with the axes at the ends of its lines, as a diff; or write it.

    Shape comments that are true stay as they are, in whatever words.

    Args:
        trace: what ran.
        file: where its code stands.
        write: whether to change the file.

    Returns:
        The exit status.

    Raises:
        SourceError: the code fails, or cannot be annotated.
        FileError: the file cannot be written, or has changed meanwhile.
    """
    from attnscope.tracing.comments import annotate_file, diff
    from attnscope.tracing.comments import write as write_file

    if trace.crash is not None:
        raise SourceError(
            f"{trace.title} fails in line {trace.crash.line}, so its shapes are not all known:"
            f" {trace.crash.error}",
            hint="leave out --annotate, to see why",
        )
    path = Path(file)
    old, new = annotate_file(path, trace.steps, keep=_checked(trace, file).true_lines)
    if old == new:
        tell(f"{trace.file} says all of it already")
    elif write:
        write_file(path, old, new)
        changed = sum(a != b for a, b in zip(old.splitlines(), new.splitlines(), strict=True))
        tell(f"wrote the axes at the end of {changed} line{'s' * (changed != 1)} of {trace.file}")
    else:
        text = diff(old, new, trace.file or file)  # exact, for `patch`, unless somebody looks at it
        print(printable_lines(text) if sys.stdout.isatty() else text, end="")
        tell(f"{trace.file} is as it was: --write changes it")
    return 0


def check_comments(trace: Trace, file: str) -> None:
    """Compare the shape comments of the file with what ran: what is not true becomes a finding."""
    found = _checked(trace, file)
    counts = {"true": found.true, "not true": len(found.lies), "not known": len(found.unknown)}
    note = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "there are none"
    verdict = not found.lies if found.true or found.lies else None
    trace.checks.append(Check("shape comments", None, None, verdict, note))
    lies = [Finding(lie.message.partition(": ")[2], lie.line) for lie in found.lies]
    trace.findings = sorted([*(trace.findings or []), *lies], key=lambda finding: finding.line or 0)
    for unknown in found.unknown:
        tell(unknown.message)


def _checked(trace: Trace, file: str) -> Checked:
    import tokenize

    from attnscope.tracing.comments import checked

    try:
        with tokenize.open(file) as opened:
            text = opened.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:  # the code may have changed its file
        raise FileError(
            f"cannot read {shortened(file)} again, to compare its comments:"
            f" {getattr(error, 'strerror', None) or first_line(error)}."
        ) from error
    return checked(text, trace.steps, sizes=trace.sizes)
