"""Tables as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

from attnscope.base.errors import OptionError
from attnscope.base.text import printable
from attnscope.document.blocks import Block, Findings, Notices, Table, shown_in
from attnscope.document.columns import Column, in_order


def first_table(blocks: Iterable[Block]) -> list[Column]:
    """Return the columns of the first table of a document, the only one that CSV and pandas contain."""
    return next(
        each.columns
        for each in shown_in(blocks, html=False)
        if isinstance(each, Table) and each.instead is None
    )


def remarks(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the findings and notices of a document, which CSV has no room for."""
    for block in shown_in(blocks, html=False):
        if isinstance(block, Findings):
            yield from (each.text for each in block.findings)
        elif isinstance(block, Notices):
            yield from block.lines


def csv_table(columns: list[Column]) -> str:
    """Return a line for each row, with every column for programs."""
    columns = in_order([column for column in columns if column.raw])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.key for column in columns)
    for row in zip(*(column.raw for column in columns), strict=True):
        writer.writerow("" if value is None else csv_value(value) for value in row)
    return out.getvalue().rstrip("\n")


def check_pandas() -> None:
    """Raise an OptionError if pandas is not installed."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "to_pandas() needs pandas, which is not installed.", hint="pip install pandas"
        ) from error


def csv_value(value: Any) -> Any:
    r"""Return a value as a field of CSV: text on one line, with a ' before what spreadsheets would run.

    Tabs and newlines, which may precede a formula too, are escaped. Numbers stay as they are.

    Source: OWASP, "CSV Injection", https://owasp.org/www-community/attacks/CSV_Injection

    >>> csv_value("=1+1"), csv_value("-scores"), csv_value("\t=1"), csv_value("-0.5"), csv_value(-0.5)
    ("'=1+1", "'-scores", '\\t=1', '-0.5', -0.5)
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


FORMULA = tuple("=+-@＝＋－＠")
"""The first characters of formulas in spreadsheets, including the full-width ones."""


NUMBER = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(infinity|inf|nan)", re.ASCII | re.IGNORECASE
)
