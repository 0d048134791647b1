"""The experiment about the scale as CSV and Markdown."""

from __future__ import annotations

from attnscope.render.records.tables import csv_table, markdown_table
from attnscope.render.scaling import columns, heading, legend
from attnscope.results.scaling import Scaling


def csv_text(result: Scaling) -> str:
    """Two lines for each width, without the scale and with it, in plain numbers."""
    return csv_table(columns(result))


def markdown_text(result: Scaling) -> str:
    """The same rows as a Markdown table, with what was run above and what they say below."""
    title, *about = heading(result)
    parts = [f"**{title}**", *about, markdown_table(columns(result)), *legend(result)]
    return "\n\n".join([*parts, *(f"- {finding.message}" for finding in result.findings)])
