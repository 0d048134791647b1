"""A program that ran, with traces; what a file says about shapes, and what can be added to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.base.text import shortened
from attnscope.base.units import counted
from attnscope.document.result import Display, Result, of_room
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    from attnscope.document.blocks import Block
    from attnscope.document.columns import Column


@dataclass(repr=False)
class ProgramRun(Result):
    """A program that ran, and the traces of the calls that were watched."""

    schema = "traces"
    texts = (".json",)

    target: str  #: the watched function or class, such as `model.py:Attention`
    calls: int = 1  #: the number of calls requested
    status: int = 0  #: the program's exit status
    traces: list[Trace] = field(default_factory=list)
    #: why there are fewer traces than requested, and further sentences for the reader
    notes: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return (
            f"{shortened(self.target)}: {len(self.traces)} of {counted(self.calls, 'call')} traced,"
            f" exit status {self.status}"
        )

    def table(self) -> list[Column]:
        """Return the columns of its trace."""
        if len(self.traces) != 1:
            found = counted(len(self.traces), "trace")
            raise OptionError(f"this run has {found}, and a table shows one.", hint="run.traces[0]")
        return super().table()

    def to_dict(self) -> dict[str, Any]:
        """Return the record of the trace, if one call was requested, or else of all of them."""
        traces = [trace.to_dict() for trace in self.traces]
        several = {"schema": f"attnscope.{self.schema}/1", "traces": traces}
        return traces[0] if self.calls == 1 and traces else several


FEW = 3
"""The most undecided statements that are listed one by one."""
MOST_LINES = 20
"""Line numbers that a list shows."""


@dataclass(frozen=True)
class WrongComment:
    """A comment, docstring, annotation or pattern that disagrees with the run."""

    line: int
    name: str  #: the name that it is about; `return` for a returned value
    said: str  #: the shape that it states
    ran: str  #: the shape in the run: `[n_Q, d_K] = [30, 128]`
    message: str


@dataclass(frozen=True)
class Unknown:
    """A comment about code that did not run, or about a value that is not a tensor."""

    line: int
    name: str
    said: str
    medium: str = "comment"

    @property
    def message(self) -> str:
        """Describe it in one line."""
        return (
            f"line {self.line}: the {self.medium} says {subject(self.name)} is {self.said},"
            " but no tensor was created there."
        )


@dataclass(repr=False)
class CommentReport(Display):
    """What a file says about shapes: what is right (and where), wrong, and undecidable."""

    true: int = 0  #: the number of statements that are right
    wrong: list[WrongComment] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)  #: those about code that did not run
    true_lines: set[int] = field(default_factory=set)  #: the lines of comments that are right
    #: the lines of what resembles a shape, but cannot be read or attributed to a tensor
    unread: list[int] = field(default_factory=list)

    @property
    def lies(self) -> list[WrongComment]:
        """The former name of `wrong`."""
        return self.wrong

    @property
    def notices(self) -> list[str]:
        """What could not be decided: each in a line, if there are few."""
        if len(self.unknown) <= FEW:
            return [each.message for each in self.unknown]
        lines = listed({each.line for each in self.unknown})
        return [f"{len(self.unknown)} shapes are stated where no tensor was created: lines {lines}"]

    @property
    def summary(self) -> str:
        """The number of statements of each kind."""
        unread = f"not read (line{'s' * (len(self.unread) != 1)} {listed(self.unread)})"
        counts = {
            "true": self.true,
            "not true": len(self.wrong),
            "not known": len(self.unknown),
            unread: len(self.unread),
        }
        return (
            ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "there are none"
        )

    def document(self) -> list[Block]:
        """Build the blocks of the report."""
        return of_room(CommentReport, "report_document")(self)


@dataclass(frozen=True, repr=False)
class SourceDiff(Display):
    """Changes to a source file."""

    name: str  #: the file's name in messages
    diff: str  #: the changes in the format of `diff -u`; empty if there are none

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{shortened(self.name)}: {counted(self.changed_lines, 'changed line')}"

    @property
    def changed_lines(self) -> int:
        """The number of lines that change or are added."""
        rows = self.diff.splitlines()[2:]
        return sum(row.startswith("+") for row in rows)

    def document(self) -> list[Block]:
        """Build the blocks of the changes."""
        return of_room(SourceDiff, "diff_document")(self)


def listed(lines: Collection[int]) -> str:
    """Return line numbers as a text: `3, 7, 12`; of many, the first."""
    shown = ", ".join(map(str, sorted(lines)[:MOST_LINES]))
    return shown + ", …" * (len(lines) > MOST_LINES)


def subject(name: str) -> str:
    """Name the subject of a statement in words: `the return value` for `return`."""
    return {"return": "the return value", "yield": "the yielded value"}.get(name, name)
