"""A program that ran, and the traces of calls in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.base.text import shortened
from attnscope.base.units import counted
from attnscope.document.result import Result
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
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
