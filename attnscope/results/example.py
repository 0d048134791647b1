"""The worked example: one small attention, computed in several forms."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.results.common import Result
from attnscope.results.trace import Trace


@dataclass(repr=False)
class WorkedExample(Result):
    """The formula worked out with small whole numbers, in forms that agree.

    Attributes:
        forms: a trace for each form, with every step's tensor, by its name: `rows`, `columns`, and
            `query` for one query as vectors. The last two are compared with the first (`checks`).
    """

    forms: dict[str, Trace]

    def __getitem__(self, form: str) -> Trace:
        """Return the trace of a form.

        Raises:
            KeyError: it is not shown.
        """
        return self.forms[form]
