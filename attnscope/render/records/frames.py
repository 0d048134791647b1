"""Results as pandas tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.document.columns import Column
from attnscope.document.csv import check_pandas
from attnscope.render.columns import columns_of
from attnscope.render.records.records import has_document
from attnscope.textbook.example.result import WorkedExample

if TYPE_CHECKING:
    import pandas


def frame(result: Any) -> pandas.DataFrame:
    """Return a table with a row for each line of the result's CSV, in plain numbers.

    Raises:
        OptionError: pandas is not installed.
    """
    check_pandas()
    import pandas

    if isinstance(result, WorkedExample):
        return pandas.concat(
            {name: frame(trace) for name, trace in result.forms.items()}, names=["form"]
        )
    return pandas.DataFrame({column.key: column.raw for column in _columns(result) if column.raw})


def _columns(result: Any) -> list[Column]:
    if has_document(result):
        return result.table()
    return columns_of(result)
