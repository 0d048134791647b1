"""The worked example as Markdown and JSON."""

from __future__ import annotations

from typing import Any

from attnscope.render.columns import check_columns
from attnscope.render.heading import heading
from attnscope.render.numbers import numbers_record, numbers_text
from attnscope.render.records.records import record
from attnscope.render.records.tables import markdown_table
from attnscope.render.values import Forms


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
