"""A program that ran, and the traces of calls in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.document.result import Result
from attnscope.errors import OptionError
from attnscope.observe.trace import Trace
from attnscope.text import shortened
from attnscope.units import counted

if TYPE_CHECKING:
    from attnscope.document.blocks import Block
    from attnscope.document.columns import Column


@dataclass(repr=False)
class ProgramRun(Result):
    """A program that ran, and the traces of the calls that were watched.

    Attributes:
        target: the watched function or class, such as `model.py:Attention`.
        calls: the number of calls requested.
        status: the program's exit status.
        traces: the traced calls, in order.
        notes: why there are fewer traces than requested, and further sentences for the reader.
    """

    schema = "traces"
    texts = (".json",)

    target: str
    calls: int = 1
    status: int = 0
    traces: list[Trace] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return (
            f"{shortened(self.target)}: {len(self.traces)} of {counted(self.calls, 'call')} traced,"
            f" exit status {self.status}"
        )

    def document(self) -> list[Block]:
        """Build the documents of its traces, and below them the notes."""
        from attnscope.tracing.document import document

        return document(self)

    def table(self) -> list[Column]:
        """Return the columns of its trace.

        Raises:
            OptionError: there is none, or there are several.
        """
        if len(self.traces) != 1:
            found = counted(len(self.traces), "trace")
            raise OptionError(f"this run has {found}, and a table shows one.", hint="run.traces[0]")
        return super().table()

    def to_dict(self) -> dict[str, Any]:
        """Return the record of the trace, if one call was requested, or else of all of them."""
        traces = [trace.to_dict() for trace in self.traces]
        several = {"schema": f"attnscope.{self.schema}/1", "traces": traces}
        return traces[0] if self.calls == 1 and traces else several
