"""Parts common to all views of attention maps."""

from __future__ import annotations

from dataclasses import replace

from attnscope.render.columns import Column
from attnscope.render.heading import named
from attnscope.render.pooling import (
    left_out_text,
    of_cells,
    pooling_text,
)
from attnscope.render.tokens import label
from attnscope.results.maps import AttentionMap, AttentionMaps


def maps_heading(maps: AttentionMaps, map: AttentionMap | None = None) -> list[str]:
    """Return a title, and lines with the numbers of queries and keys.

    Args:
        maps: the maps of one stack.
        map: the one head that is shown; None: all heads of `maps`.
    """
    parts = [named(maps.model, maps.stack)]
    if map is not None:
        parts += [f"layer {map.layer} of {maps.n_layer}", f"head {map.head} of {maps.n_head}"]
        if maps.n_kv_head != maps.n_head:
            parts.append(f"K,V head {map.kv_head} of {maps.n_kv_head}")
    else:
        layers = sorted({each.layer for each in maps.maps})
        heads = sorted({each.head for each in maps.maps})
        parts.append(f"{_counted(layers, 'layer')} of {maps.n_layer}")
        parts.append(f"{_counted(heads, 'head')} of {maps.n_head}")
    n_Q, n_K = len(maps.query_tokens), len(maps.key_tokens)
    lines = [
        " · ".join(parts),
        f"{n_Q} quer{'ies' if n_Q > 1 else 'y'} · {n_K} key{'s' if n_K > 1 else ''}",
    ]
    if maps.picture:
        lines[-1] += f" · patches {maps.picture.rows} × {maps.picture.columns}"
    if maps.pooling:
        lines[-1] += f" · {pooling_text(maps)}"
    if maps.left_out:
        lines.append(left_out_text(maps))
    return lines


def of_query(maps: AttentionMaps, query: int) -> AttentionMaps:
    """Restrict maps to the query at a position; for pooled maps, it is the one whose row was kept."""
    row = query - maps.first_query
    tokens = [maps.query_tokens[row]]
    if maps.pooling is None:
        restricted = [replace(each, attention=each.attention[[row]]) for each in maps.maps]
    else:
        restricted = [
            AttentionMap(each.layer, each.head, each.kv_head, each.row[None]) for each in maps.maps
        ]
    return replace(maps, query_tokens=tokens, first_query=query, maps=restricted, pooling=None)


def matrix_columns(maps: AttentionMaps, map: AttentionMap) -> list[Column]:
    """Return the table of a map for Markdown: a row for each query, a column for each key."""
    maps = of_cells(maps)
    queries = Column("", "query", [[(label(token.text), "")] for token in maps.query_tokens], [])
    columns = [queries]
    for k, token in enumerate(maps.key_tokens):
        cells = [[(f"{weight:.2f}", "")] for weight in map.attention[:, k].tolist()]
        columns.append(Column(label(token.text), f"key {k}", cells, [], right=True))
    return columns


def _counted(numbers: list[int], what: str) -> str:
    return f"{what} {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} {what}s"
