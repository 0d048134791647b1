"""A head's circuits as Markdown."""

from __future__ import annotations

from attnscope.render.circuits import circuit_columns
from attnscope.render.columns import check_columns
from attnscope.render.heading import heading
from attnscope.render.records.tables import markdown, markdown_table
from attnscope.results.weights import HeadWeights


def circuits_text(head: HeadWeights) -> str:
    """Return a head's circuits and checks as Markdown."""
    tables = [markdown_table(circuit_columns(head.circuits or [], head.d_head))]
    tables += [markdown_table(check_columns(head.checks))] if head.checks else []
    return markdown(heading(head), *tables)
