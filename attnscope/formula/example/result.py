"""The worked example: one small attention, computed in several forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import no_such_part
from attnscope.base.units import listed
from attnscope.document.result import Result, held_of
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    import pandas


@dataclass(repr=False)
class WorkedExample(Result):
    """The formula worked out with small whole numbers, in forms that agree.

    Attributes:
        forms: a trace for each form, with every step's tensor, by its name: `rows`, `columns`, and
            `query` for one query as vectors. The last two are compared with the first (`checks`).
    """

    schema = "example"
    texts = (".json", ".md")

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

    def to_dict(self) -> dict[str, Any]:
        """Return the record that `--format json` prints: that of each trace, with all values."""
        forms = [trace.to_dict(numbers=True) for trace in self.forms.values()]
        return {"schema": f"attnscope.{self.schema}/1", "forms": forms}

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows of every trace, by the names of the forms.

        Raises:
            OptionError: pandas is not installed.
        """
        frames = {name: trace.to_pandas() for name, trace in self.forms.items()}
        import pandas

        return pandas.concat(frames, names=["form"])
