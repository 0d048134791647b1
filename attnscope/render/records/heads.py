"""Metrics of heads as JSON, CSV and Markdown."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from attnscope.comparison.map_differences import HeadDifferences, MapDifferences
from attnscope.document.csv import csv_table
from attnscope.document.json import plain
from attnscope.document.markdown import markdown, markdown_table
from attnscope.models.heads.result import HeadMetrics, HeadTable
from attnscope.render.heads import heads_heading
from attnscope.render.ranking import head_columns, shown
from attnscope.text import printable


def heads_record(table: HeadMetrics) -> dict[str, Any]:
    """Return heads as `attnscope.heads/1` or `attnscope.differences/1`, in the order of `shown`."""
    heads = []
    for row in shown(table):
        fields: dict[str, Any] = {"stack": row.stack, "layer": row.layer, "head": row.head, **row.values}
        if isinstance(table, HeadTable):
            fields["errors"] = row.errors
        if isinstance(table, MapDifferences):
            fields["strongest"] = table.strongest[row.layer, row.head]
        heads.append(fields)
    return {
        **_facts(table),
        "stacks": {
            stack: {"n_layer": n_layer, "n_head": n_head}
            for stack, (n_layer, n_head) in table.layers.items()
        },
        "metrics": table.metrics,
        "heads": plain(heads),
        "notices": table.notices,
    }


@singledispatch
def _facts(table: HeadMetrics) -> dict[str, Any]:
    """Return the schema and the fields that describe the whole table."""
    raise TypeError(f"there is no record of {type(table).__name__}")


@_facts.register
def _(table: HeadDifferences) -> dict[str, Any]:
    return {
        "schema": "attnscope.differences/1",
        "a": table.a,
        "b": table.b,
        "adapter": table.adapter,
        "dtypes": list(table.dtypes),
        "changed": len(table.changed),
    }


@_facts.register
def _(table: MapDifferences) -> dict[str, Any]:
    texts = (table.of_a, table.of_b)
    return {
        "schema": "attnscope.map_differences/1",
        "a": table.a,
        "b": table.b,
        "adapter": table.adapter,
        "queries": [[token.text for token in each.query_tokens] for each in texts],
        "keys": [[token.text for token in each.key_tokens] for each in texts],
        "first_query": table.of_a.first_query,
        "changed": len(table.changed),
    }


@_facts.register
def _(table: HeadTable) -> dict[str, Any]:
    return {
        "schema": "attnscope.heads/1",
        "model": table.model,
        "tokens": table.tokens,
        "sequences": table.sequences,
        "partial": table.partial,
        "skipped": table.skipped,
        "without_sink": table.without_sink,
    }


def heads_csv(table: HeadMetrics) -> str:
    """Return a line for each head, in the order of `shown`, with values and standard errors."""
    return csv_table(head_columns(table, shown(table), table.sort))


def heads_markdown(table: HeadMetrics) -> str:
    """Return the same rows as a Markdown table, with heading and meanings of the metrics."""
    columns = head_columns(table, shown(table), table.sort)
    meanings = "\n".join(f"- {name}: {meaning}" for name, meaning in table.metrics.items())
    return markdown(
        heads_heading(table), markdown_table(columns), meanings, *map(printable, table.notices)
    )
