"""The document of a program that ran."""

from __future__ import annotations

from rich.console import Console

from attnscope.document.blocks import Block, Drawing, Notices
from attnscope.tracing.result import ProgramRun


def document(run: ProgramRun) -> list[Block]:
    """Build the documents of the traces, and below them the notes."""
    blocks: list[Block] = []
    for i, trace in enumerate(run.traces):
        blocks += [Between()] if i else []
        blocks += trace.document()
    return [*blocks, Notices(run.notes)]


class Between(Drawing):
    """What separates two traces: an empty line; in HTML, a rule."""

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print an empty line."""
        console.print()

    def html(self) -> str:
        """Return a rule."""
        return "<hr>"
