"""The documents of a program that ran, of what comments say, and of what is added to them."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from attnscope.base.text import printable_lines
from attnscope.code.trace.result import CommentReport, ProgramRun, SourceDiff
from attnscope.document.blocks import Block, Drawing, Findings, Notices, Only, Sentence
from attnscope.document.html import rendered
from attnscope.document.result import Finding


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


def report_document(report: CommentReport) -> list[Block]:
    """Build a line with the number of statements of each kind, and what is wrong or undecided."""
    wrong = [
        Finding(fault.message.removeprefix(f"line {fault.line}: "), fault.line) for fault in report.wrong
    ]
    title = f"shape comments: {report.summary}"
    return [
        Only(Sentence(title, "bold"), html=True),
        Only(Sentence(title, joint=None), html=False),
        Findings(wrong),
        Notices(report.notices),
    ]


def diff_document(change: SourceDiff) -> list[Block]:
    """Build the lines of a diff, in HTML below the name of the file."""
    return [Only(Sentence(change.summary, "bold"), html=True), Diff(change.diff)]


@dataclass(frozen=True)
class Diff(Drawing):
    """The lines of a diff."""

    text: str

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print them."""
        for line in printable_lines(self.text).splitlines():
            console.print(Text(line), soft_wrap=True)

    def html(self) -> str:
        """Return them, those that are added and removed in colours."""
        colours = {"+": "green", "-": "red", "@": "cyan"}
        lines = printable_lines(self.text).splitlines()
        return rendered(DIFF, lines=[(colours.get(line[:1], ""), line) for line in lines])

    def markdown(self) -> list[str]:
        """Return them as a block of code."""
        return [f"```diff\n{printable_lines(self.text)}```"]


DIFF = """\
{% if lines %}
<pre>{% for style, line in lines %}<span class="{{ style }}">{{ line }}</span>
{% endfor %}</pre>
{% endif %}
"""
