"""Results as records for programs: JSON, CSV and Markdown."""

from __future__ import annotations

import json
from typing import Any

from attnscope.render.circuits import circuit_columns
from attnscope.render.columns import check_columns, columns_of
from attnscope.render.crash import crash_lines
from attnscope.render.heading import heading, summary
from attnscope.render.records.tables import csv_table, markdown, markdown_table, plain
from attnscope.results.audit import Audit
from attnscope.results.card import Card
from attnscope.results.cards import Cards
from attnscope.results.comparison import Comparison
from attnscope.results.example import WorkedExample
from attnscope.results.heads import HeadMetrics
from attnscope.results.maps import AttentionMaps
from attnscope.results.masks import AttentionMasks
from attnscope.results.scaling import Scaling
from attnscope.results.trace import ProgramRun, Trace
from attnscope.results.weights import HeadWeights
from attnscope.text import printable

KINDS = {
    Trace: "trace",
    HeadWeights: "head",
    Scaling: "scaling",
    Comparison: "comparison",
    Audit: "audit",
    Card: "card",
    Cards: "cards",
}
"""The schema names of results whose records are their fields."""


LISTS = {Trace: ("checks", "source"), HeadWeights: ("checks", "circuits")}
"""Fields that were not computed: None in Python, but empty lists in version 1 of the records."""


def record(result: Any) -> dict[str, Any]:
    """Return a result with its schema: `attnscope.trace/1` for a trace, and so on."""
    if isinstance(result, AttentionMaps):
        from attnscope.render.records.maps import maps_record

        return maps_record(result)
    if isinstance(result, HeadMetrics):
        from attnscope.render.records.heads import heads_record

        return heads_record(result)
    if isinstance(result, AttentionMasks):
        from attnscope.render.records.masks import masks_record

        return masks_record(result)
    if isinstance(result, ProgramRun):
        traces = [record(trace) for trace in result.traces]
        return traces[0] if result.calls == 1 and traces else several(traces)
    if isinstance(result, WorkedExample):
        from attnscope.render.records.example import example_record

        return example_record(result)
    fields = plain(result)
    for name in LISTS.get(type(result), ()):
        fields[name] = fields[name] or []
    return {"schema": f"attnscope.{KINDS[type(result)]}/1", **fields}


def several(traces: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the records of several calls."""
    return {"schema": "attnscope.traces/1", "traces": traces}


def json_text(record: dict[str, Any]) -> str:
    """Return a JSON document, which cannot contain NaN or infinity."""
    return json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False)


def csv_text(
    result: Trace
    | HeadWeights
    | AttentionMaps
    | Scaling
    | HeadMetrics
    | Comparison
    | Audit
    | Card
    | Cards
    | AttentionMasks,
) -> str:
    """Return a line for each tensor, weight, head or measurement, in plain numbers."""
    if isinstance(result, AttentionMaps):
        from attnscope.render.records.maps import maps_csv

        return "\n".join(maps_csv(result))
    if isinstance(result, HeadWeights) and result.circuits:
        return csv_table(circuit_columns(result.circuits, result.d_head))
    if isinstance(result, HeadMetrics):
        from attnscope.render.records.heads import heads_csv

        return heads_csv(result)
    if isinstance(result, Scaling):
        from attnscope.render.records import scaling

        return scaling.csv_text(result)
    if isinstance(result, Comparison):
        from attnscope.render.records import comparison

        return comparison.csv_text(result)
    if isinstance(result, Audit):
        from attnscope.render.records import audit

        return audit.csv_text(result)
    if isinstance(result, (Card, Cards)):
        from attnscope.render.records import card

        return card.csv_text(result)
    if isinstance(result, AttentionMasks):
        from attnscope.render.records.masks import masks_csv

        return masks_csv(result)
    return csv_table(columns_of(result))


def markdown_text(
    result: Trace
    | HeadWeights
    | AttentionMaps
    | Scaling
    | WorkedExample
    | HeadMetrics
    | Comparison
    | Audit
    | Card
    | Cards
    | AttentionMasks,
    *,
    wide: bool = False,
) -> str:
    """Return a Markdown table, with its heading above and summary, findings and checks below."""
    if isinstance(result, AttentionMaps):
        from attnscope.render.records.maps import maps_text

        return maps_text(result)
    if isinstance(result, HeadWeights) and result.circuits:
        from attnscope.render.records.circuits import circuits_text

        return circuits_text(result)
    if isinstance(result, HeadMetrics):
        from attnscope.render.records.heads import heads_markdown

        return heads_markdown(result)
    if isinstance(result, Scaling):
        from attnscope.render.records import scaling

        return scaling.markdown_text(result)
    if isinstance(result, Comparison):
        from attnscope.render.records import comparison

        return comparison.markdown_text(result, wide=wide)
    if isinstance(result, Audit):
        from attnscope.render.records import audit

        return audit.markdown_text(result, wide=wide)
    if isinstance(result, WorkedExample):
        from attnscope.render.records.example import example_text

        return example_text(result)
    if isinstance(result, (Card, Cards)):
        from attnscope.render.records import card

        return card.markdown_text(result, wide=wide)
    if isinstance(result, AttentionMasks):
        from attnscope.render.records.masks import masks_markdown

        return masks_markdown(result, wide=wide)
    parts = [markdown_table(columns_of(result), wide)]
    if isinstance(result, Trace):
        parts += [summary(result)]
        for finding in result.findings or []:
            where = f"line {finding.line}: " if finding.line else ""
            parts.append(f"- {where}{printable(finding.message)}")
        if result.crash is not None:
            parts.append("```\n" + "\n".join(line.plain for line in crash_lines(result.crash)) + "\n```")
    if result.checks:
        parts += [markdown_table(check_columns(result.checks), wide)]
    return markdown(heading(result, wide=wide), *parts)
