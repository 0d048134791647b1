"""Attention maps as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from attnscope.render.columns import check_columns
from attnscope.render.maps import maps_heading, matrix_columns, of_query
from attnscope.render.pooling import (
    first_tokens,
    positions,
)
from attnscope.render.records.tables import csv_table, csv_value, markdown, markdown_table, plain
from attnscope.render.strongest import strongest, top_columns
from attnscope.render.values import number
from attnscope.results.maps import AttentionMap, AttentionMaps, Pooling
from attnscope.text import printable


def maps_record(maps: AttentionMaps) -> dict[str, Any]:
    """Return one head as `attnscope.map/1`, several as `attnscope.maps/1`; or one query of them."""
    maps = maps if maps.query is None else of_query(maps, maps.query)
    about: dict[str, Any] = {
        "model": maps.model,
        "stack": maps.stack,
        "n_layer": maps.n_layer,
        "n_head": maps.n_head,
        "n_kv_head": maps.n_kv_head,
        "query_tokens": [token.text for token in maps.query_tokens],
        "key_tokens": [token.text for token in maps.key_tokens],
        "query_segments": [token.segment for token in maps.query_tokens],
        "key_segments": [token.segment for token in maps.key_tokens],
        "first_query": maps.first_query,
        "generated": [
            maps.first_query + i for i, token in enumerate(maps.query_tokens) if token.generated
        ],
        "patches": maps.picture and [maps.picture.rows, maps.picture.columns],
        "pooling": maps.pooling and _pooling_record(maps.pooling),
        "without_sink": maps.left_out or None,
    }
    of_maps = [_map_record(each) for each in maps.maps]
    end = {"checks": plain(maps.checks or []), "notices": maps.notices}
    if maps.top and maps.one:
        end["strongest"] = strongest_record(maps, maps.one, maps.top)
    if len(of_maps) == 1:
        return {"schema": "attnscope.map/1"} | of_maps[0] | about | end
    return {"schema": "attnscope.maps/1"} | about | {"maps": of_maps} | end


def _map_record(each: AttentionMap) -> dict[str, Any]:
    record = {"layer": each.layer, "head": each.head, "kv_head": each.kv_head}
    pooled = {"mean": each.mean, "max": each.max}
    weights = {"attention": each.attention} | {k: v for k, v in pooled.items() if v is not None}
    return record | {name: list(_rows(array)) for name, array in weights.items()}


def _pooling_record(pooling: Pooling) -> dict[str, Any]:
    """Return the kind of pooling, and the number of tokens in each row and column of cells."""
    return {
        "shown": pooling.shown,
        "queries": [len(cell) for cell in pooling.queries],
        "keys": [len(cell) for cell in pooling.keys],
    }


def strongest_record(maps: AttentionMaps, map: AttentionMap, k: int) -> list[list[dict[str, Any]]]:
    """Return the k strongest keys of each query, the strongest first."""
    import numpy as np

    ranked = [keys for _, keys in strongest(maps, map, k)]
    weights = _rows(np.array([[weight for _, weight in keys] for keys in ranked]))
    return [
        [
            {"key": key, "token": maps.key_tokens[key].text, "attention": weight}
            for (key, _), weight in zip(keys, own, strict=True)
        ]
        for keys, own in zip(ranked, weights, strict=True)
    ]


def maps_json(record: dict[str, Any]) -> str:
    """Return a JSON document with a line for each key, and within maps a line for each query."""
    lines = [f"  {json.dumps(key)}: {_compact(key, value)}" for key, value in record.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def maps_text(maps: AttentionMaps) -> str:
    """Return Markdown: a heading, and a table for each head, or of each query's strongest keys."""
    maps = maps if maps.query is None else of_query(maps, maps.query)
    map, columns = maps.one, top_columns(maps)
    parts = [markdown_table(columns)] if columns else []
    for each in maps.maps if not columns else []:
        parts += [] if map else [f"layer {each.layer}, head {each.head}"]
        parts.append(markdown_table(matrix_columns(maps, each)))
    parts += [
        *(printable(notice) for notice in maps.notices),
        *([markdown_table(check_columns(maps.checks))] if maps.checks else []),
    ]
    return markdown(maps_heading(maps, map), *parts)


def maps_csv(maps: AttentionMaps) -> Iterator[str]:
    """Return lines of CSV: each query's strongest keys if these are shown, else the weights."""
    columns = top_columns(maps)
    return weights_csv(maps) if columns is None else iter([csv_table(columns)])


def weights_csv(maps: AttentionMaps) -> Iterator[str]:
    """Yield a line of CSV for each head, query and key, map by map, because there may be many.

    For pooled maps, there is a line for each cell, with its first query, its first key, and the
    numbers of its queries and keys.
    """
    maps = maps if maps.query is None else of_query(maps, maps.query)
    if maps.pooling is not None:
        yield from _cells_csv(maps)
        return
    yield "layer,head,query,query_token,key,key_token,attention"
    queries, keys = (_csv(token.text for token in axis) for axis in (maps.query_tokens, maps.key_tokens))
    for each in maps.maps:
        for q, row in enumerate(_rows(each.attention)):
            start = f"{each.layer},{each.head},{maps.first_query + q},{queries[q]},"
            yield "\n".join(f"{start}{k},{keys[k]},{weight}" for k, weight in enumerate(row))


def _cells_csv(maps: AttentionMaps) -> Iterator[str]:
    """Yield the same lines for pooled maps."""
    yield "layer,head,query,query_token,queries,key,key_token,keys,attention,mean,max"
    starts = [
        [f"{cell.start},{text},{len(cell)}" for cell, text in zip(cells, _csv(texts), strict=True)]
        for cells, texts in zip(
            positions(maps),
            ((token.text for token in axis) for axis in first_tokens(maps)),
            strict=True,
        )
    ]
    for each in maps.maps:
        arrays = (_rows(array) for array in (each.attention, each.mean, each.max))
        for query, *rows in zip(starts[0], *arrays, strict=True):
            for key, *numbers in zip(starts[1], *rows, strict=True):
                yield ",".join([f"{each.layer},{each.head},{query},{key}", *map(str, numbers)])


def _csv(texts: Iterable[str]) -> list[str]:
    """Quote texts as fields of CSV."""
    fields = []
    for text in texts:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([csv_value(text)])
        fields.append(line.getvalue())
    return fields


def _rows(attention: Any) -> Iterator[list[Any]]:
    """Yield weights with the fewest digits that identify a float32; NaN as a string.

    They are yielded row by row, since weights as text take fifty times their own memory.
    """
    for row in attention.astype("float32", copy=False):
        yield [number(float(weight)) for weight in row.astype(str).tolist()]


def _compact(key: str, value: Any) -> str:
    def text(each: Any) -> str:
        return json.dumps(each, allow_nan=False, ensure_ascii=False)

    if key in ("attention", "mean", "max", "maps"):
        return "[\n    " + ",\n    ".join(text(each) for each in value) + "\n  ]"
    return text(value)
