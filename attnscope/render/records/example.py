"""The worked example as Markdown and JSON."""

from __future__ import annotations

from typing import Any

from attnscope.document.columns import check_columns
from attnscope.document.markdown import markdown_table
from attnscope.render.example import new_numbers, same_numbers
from attnscope.render.heading import heading
from attnscope.render.numbers import numbers_record, numbers_text
from attnscope.render.records.records import record
from attnscope.render.values import values_of
from attnscope.textbook.example.result import WorkedExample


def example_text(example: WorkedExample) -> str:
    """Return a worked example as Markdown: the first form whole, and of the others what is new."""
    parts = []
    first = next(iter(example.forms.values()))
    for trace in example.forms.values():
        title, *about = heading(trace)
        if trace is not first:
            sentence, *lines = same_numbers(trace, first) or ["the same numbers as above"]
            about = [sentence, "\n".join(["```", *lines, "```"])] if lines else [sentence]
        parts += [f"## {title}", *about]
        if numbers := new_numbers(trace, first):
            parts.append(numbers_text(trace, numbers))
        if trace.checks:
            parts.append(markdown_table(check_columns(trace.checks)))
    return "\n\n".join(parts)


def example_record(example: WorkedExample) -> dict[str, Any]:
    """Return a worked example as `attnscope.example/1`: a trace for each form, with its `values`."""
    traces = [
        record(trace) | {"values": numbers_record(trace, values_of(trace))}
        for trace in example.forms.values()
    ]
    return {"schema": "attnscope.example/1", "forms": traces}
