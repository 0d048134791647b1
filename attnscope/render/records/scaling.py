"""The experiment about the scale as CSV and Markdown."""

from __future__ import annotations

from attnscope.render.records.tables import csv_table, markdown_table
from attnscope.render.scaling import columns, heading, legend
from attnscope.results.scaling import Scaling


def csv_text(result: Scaling) -> str:
    """Return two lines for each width, without and with the scale, in plain numbers."""
    return csv_table(columns(result))


def markdown_text(result: Scaling) -> str:
    """Return the same rows as a Markdown table, with the sizes above and the findings below."""
    title, *about = heading(result)
    parts = [f"**{title}**", *about, markdown_table(columns(result)), *legend(result)]
    return "\n\n".join([*parts, *(f"- {finding.message}" for finding in result.findings)])
