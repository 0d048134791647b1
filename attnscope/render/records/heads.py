"""Metrics of heads as JSON, CSV and Markdown."""

from __future__ import annotations

from typing import Any

from attnscope.render.heads import heads_heading
from attnscope.render.ranking import head_columns, shown
from attnscope.render.records.tables import csv_table, markdown, markdown_table, plain
from attnscope.results.heads import HeadTable
from attnscope.text import printable


def heads_record(table: HeadTable) -> dict[str, Any]:
    """Return the heads as `attnscope.heads/1`, in the order of `shown`."""
    heads = [
        {"stack": row.stack, "layer": row.layer, "head": row.head, **row.values, "errors": row.errors}
        for row in shown(table)
    ]
    return {
        "schema": "attnscope.heads/1",
        "model": table.model,
        "tokens": table.tokens,
        "sequences": table.sequences,
        "partial": table.partial,
        "skipped": table.skipped,
        "without_sink": table.without_sink,
        "stacks": {
            stack: {"n_layer": n_layer, "n_head": n_head}
            for stack, (n_layer, n_head) in table.layers.items()
        },
        "metrics": table.metrics,
        "heads": plain(heads),
        "notices": table.notices,
    }


def heads_csv(table: HeadTable) -> str:
    """Return a line for each head, in the order of `shown`, with values and standard errors."""
    return csv_table(head_columns(table, shown(table), table.sort))


def heads_markdown(table: HeadTable) -> str:
    """Return the same rows as a Markdown table, with heading and meanings of the metrics."""
    columns = head_columns(table, shown(table), table.sort)
    meanings = "\n".join(f"- {name}: {meaning}" for name, meaning in table.metrics.items())
    return markdown(
        heads_heading(table), markdown_table(columns), meanings, *map(printable, table.notices)
    )
