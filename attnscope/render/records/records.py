"""Results as records for programs: JSON, CSV and Markdown."""

from __future__ import annotations

from typing import Any

from attnscope.document.columns import check_columns
from attnscope.document.csv import csv_table
from attnscope.document.json import plain
from attnscope.document.markdown import markdown, markdown_document, markdown_table
from attnscope.document.result import Display
from attnscope.observe.trace import ProgramRun, Trace
from attnscope.render.columns import columns_of
from attnscope.render.crash import crash_lines
from attnscope.render.heading import heading, summary
from attnscope.text import printable
from attnscope.textbook.example.result import WorkedExample


def has_document(result: Any) -> bool:
    """Return whether a result's class builds its document, which has all formats."""
    return isinstance(result, Display) and type(result).document is not Display.document


LISTS = {Trace: ("checks", "source")}
"""Fields that were not computed: None in Python, but empty lists in version 1 of the records."""


def record(result: Any) -> dict[str, Any]:
    """Return a result with its schema: `attnscope.trace/1` for a trace, and so on."""
    if getattr(result, "schema", ""):
        return result.to_dict()
    if isinstance(result, ProgramRun):
        traces = [record(trace) for trace in result.traces]
        return traces[0] if result.calls == 1 and traces else several(traces)
    if isinstance(result, WorkedExample):
        from attnscope.render.records.example import example_record

        return example_record(result)
    fields = plain(result)
    for name in LISTS[type(result)]:
        fields[name] = fields[name] or []
    return {"schema": "attnscope.trace/1", **fields}


def several(traces: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the records of several calls."""
    return {"schema": "attnscope.traces/1", "traces": traces}


def csv_text(result: Any) -> str:
    """Return a line for each tensor, weight, head or measurement, in plain numbers."""
    if has_document(result):
        return "\n".join(result.csv())
    return csv_table(columns_of(result))


def markdown_text(result: Any, *, wide: bool = False) -> str:
    """Return a Markdown table, with its heading above and summary, findings and checks below."""
    if has_document(result):
        return markdown_document(result.document(), wide=wide)
    if isinstance(result, WorkedExample):
        from attnscope.render.records.example import example_text

        return example_text(result)
    parts = [markdown_table(columns_of(result), wide)]
    if isinstance(result, Trace):
        parts += [summary(result)]
        for finding in result.findings or []:
            parts.append(f"- {printable(finding.text)}")
        if result.crash is not None:
            parts.append("```\n" + "\n".join(line.plain for line in crash_lines(result.crash)) + "\n```")
    if result.checks:
        parts += [markdown_table(check_columns(result.checks), wide)]
    return markdown(heading(result, wide=wide), *parts)
