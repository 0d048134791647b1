"""Columns as CSV and Markdown."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields, is_dataclass
from typing import Any

from attnscope.render.columns import Column, in_order
from attnscope.render.values import number
from attnscope.text import printable


def csv_table(columns: list[Column]) -> str:
    """Return a line for each row, with every column for programs."""
    columns = in_order([column for column in columns if column.raw])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.key for column in columns)
    for row in zip(*(column.raw for column in columns), strict=True):
        writer.writerow("" if value is None else csv_value(value) for value in row)
    return out.getvalue().rstrip("\n")


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


def markdown(lines: list[str], *parts: str) -> str:
    """Join a title, the lines below it, and further parts to a Markdown document."""
    title, *about = map(printable, lines)
    return "\n\n".join([f"**{title}**", *about, *parts])


def plain(value: Any) -> Any:
    """Convert a result to dicts and lists, without fields that have `repr=False`, such as arrays."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.repr}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return number(value) if isinstance(value, float) else value


def compact_json(record: dict[str, Any]) -> str:
    """Return a JSON document in which each row of numbers is on one line."""
    return _compact(record, "")


def _compact(value: Any, indent: str) -> str:
    """Format objects and lists on several lines, but lists of numbers and texts on one."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        lines = [f"{inner}{json.dumps(key)}: {_compact(each, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        lines = [f"{inner}{_compact(each, inner)}" for each in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    if isinstance(value, list) and any(isinstance(each, list) for each in value):
        return "[\n" + ",\n".join(f"{inner}{_line(each)}" for each in value) + f"\n{indent}]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def markdown_table(columns: list[Column], wide: bool = False) -> str:
    """Return a Markdown table of the columns that a table shows, or of all with `wide`."""
    shown = in_order([each.printable() for each in columns if each.cells and (wide or not each.wide)])

    def row(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "\\<") for cell in cells) + " |"

    lines = [row([column.title for column in shown])]
    lines.append(row(["--:" if column.right else ":--" for column in shown]))
    for cells in zip(*(column.texts() for column in shown), strict=True):
        lines.append(row(list(cells)))
    return "\n".join(lines)


FORMULA = tuple("=+-@＝＋－＠")
"""The first characters of formulas in spreadsheets, including the full-width ones."""


NUMBER = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(infinity|inf|nan)", re.ASCII | re.IGNORECASE
)
