"""The worked example: every number of every form, and whether the forms agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from attnscope.results import Trace
from attnscope.views.columns import check_columns
from attnscope.views.heading import heading
from attnscope.views.numbers import numbers_record, numbers_text, print_numbers
from attnscope.views.records import markdown_table, record
from attnscope.views.table import print_columns, print_line
from attnscope.views.values import Shown

Forms = Sequence[tuple[Trace, Mapping[str, Shown]]]
"""The same attention in several forms: a trace of each, and its steps' values by their names."""


def print_example(forms: Forms, console: Console) -> None:
    """Print each form, and below it how it compares with the first."""
    for i, (trace, values) in enumerate(forms):
        title, *about = heading(trace)
        print_line(console, Text(("\n\n" if i else "") + title, "bold"))
        for line in about:
            print_line(console, Text(line))
        print_numbers(trace, values, console)
        if trace.checks:
            print_columns(check_columns(trace.checks), console)


def example_text(forms: Forms) -> str:
    """The same as Markdown."""
    parts = []
    for trace, values in forms:
        title, *about = heading(trace)
        parts += [f"## {title}", *about, numbers_text(trace, values)]
        if trace.checks:
            parts.append(markdown_table(check_columns(trace.checks)))
    return "\n\n".join(parts)


def example_record(forms: Forms) -> dict[str, Any]:
    """The same as `attnscope.example/1`: a trace for each form, with its `values`."""
    traces = [record(trace) | {"values": numbers_record(trace, values)} for trace, values in forms]
    return {"schema": "attnscope.example/1", "forms": traces}
