"""Parts common to all views of numbers of heads."""

from __future__ import annotations

from functools import singledispatch

from attnscope.render.map_differences import tokens_text
from attnscope.render.ranking import several_stacks
from attnscope.results.differences import HeadDifferences, MapDifferences
from attnscope.results.heads import HeadMetrics, HeadTable
from attnscope.units import counted


def heads_heading(table: HeadMetrics) -> list[str]:
    """Return a title, and lines with the numbers of heads, what they are of, and what is missing."""
    sizes = [
        f"{stack} " * several_stacks(table) + f"{counted(n_layer, 'layer')} × {counted(n_head, 'head')}"
        for stack, (n_layer, n_head) in table.layers.items()
    ]
    lines = [table.title, " · ".join([*sizes, *facts(table)])]
    if isinstance(table, HeadTable) and table.partial:
        lines.append("partial: the run ended before the end of the corpus")
    if isinstance(table, HeadDifferences) and table.changed and table.unchanged_metrics:
        lines.append(f"unchanged in every head: {', '.join(table.unchanged_metrics)}")
    if isinstance(table, MapDifferences) and table.two_texts:
        lines.append(tokens_text(table))
    if isinstance(table, HeadTable) and table.skipped:
        lines.append(f"skipped: {counted(table.skipped, 'line')} without text")
    return lines


def heads_source(table: HeadMetrics) -> str:
    """Describe, for a page, what the metrics were computed from."""
    source = ", ".join(facts(table))
    if isinstance(table, HeadTable):
        source = f"means over {source}"
        source += ", the beginning of a corpus that was not read completely" if table.partial else ""
        source += f"; {counted(table.skipped, 'line')} skipped" if table.skipped else ""
    return f"metrics: {source}"


@singledispatch
def facts(table: HeadMetrics) -> list[str]:
    """Return short facts about all of the metrics, for one line."""
    raise TypeError(f"there are no facts about {type(table).__name__}")


@facts.register
def _(table: HeadTable) -> list[str]:
    return [counted(table.sequences, "sequence"), counted(table.tokens, "token")]


@facts.register
def _(table: HeadDifferences) -> list[str]:
    of_a, of_b = table.dtypes
    n, n_changed = len(table.rows), len(table.changed)
    verdict = f"{n_changed:,} of {counted(n, 'head')} differ" + ("s" if n_changed == 1 else "")
    if not n_changed:
        verdict = f"{counted(n, 'head')} equal bit for bit"
    return [of_a if of_a == of_b else f"{of_a} → {of_b}", verdict]


@facts.register
def _(table: MapDifferences) -> list[str]:
    n, n_changed = (
        len({(row.layer, row.head) for row in rows}) for rows in (table.rows, table.changed)
    )  # on a page, several rows are of the same head
    verdict = f"{n_changed:,} of {counted(n, 'head')} differ" + ("s" if n_changed == 1 else "")
    if not n_changed:
        verdict = f"{counted(n, 'map')} equal bit for bit"
    n_Q, n_K = len(table.of_a.query_tokens), len(table.of_a.key_tokens)
    tokens = counted(n_K, "token") if n_Q == n_K else f"{counted(n_Q, 'query')}, {counted(n_K, 'key')}"
    return [tokens, verdict]
