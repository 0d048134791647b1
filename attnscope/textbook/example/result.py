"""The worked example: one small attention, computed in several forms."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.document.result import Result, held_of
from attnscope.errors import no_such_part
from attnscope.observe.trace import Trace
from attnscope.units import listed


@dataclass(repr=False)
class WorkedExample(Result):
    """The formula worked out with small whole numbers, in forms that agree.

    Attributes:
        forms: a trace for each form, with every step's tensor, by its name: `rows`, `columns`, and
            `query` for one query as vectors. The last two are compared with the first (`checks`).
    """

    forms: dict[str, Trace]

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        checks = [check for trace in self.forms.values() for check in trace.checks or []]
        return listed([*self.forms, *held_of(checks)])

    def __getitem__(self, form: str) -> Trace:
        """Return the trace of a form.

        Raises:
            KeyError: it is not shown.
        """
        if form not in self.forms:
            raise no_such_part(form, self.forms, "this example")
        return self.forms[form]
