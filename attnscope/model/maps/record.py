"""Attention maps in words, as tables of the strongest keys, and as records: JSON, CSV and pandas."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from attnscope.document.columns import Column
from attnscope.document.csv import check_pandas, csv_table, csv_value
from attnscope.document.grid.axes import KEY, QUERY, isolated, label, token_style
from attnscope.document.grid.pooling import Pooling, first_tokens, left_out_text, pooling_text, positions
from attnscope.document.json import number, plain
from attnscope.document.result import named
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    import pandas

LARGE = 0.5  # most of a query's weight


def heading(maps: AttentionMaps) -> list[str]:
    """Return a title, and lines with the numbers of queries and keys."""
    map = maps.one
    parts = [named(maps.model, maps.stack)]
    if not maps.of_heads:
        layers = [each.layer for each in maps.maps]
        up_to = f"layers 0 to {layers[0]}" if map is not None else _counted(layers, "layer")
        parts += [f"{up_to} of {maps.n_layer}", f"mean over {maps.n_head} heads"]
    elif map is not None:
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
    if maps.kind.meaning:
        lines.append(maps.kind.meaning)
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


def _counted(numbers: list[int], what: str) -> str:
    return f"{what} {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} {what}s"


# The strongest keys.


def strongest(
    maps: AttentionMaps, map: AttentionMap, k: int
) -> list[tuple[int, list[tuple[int, float]]]]:
    """Return the k keys of largest weight for each query.

    Args:
        maps: the maps, for their tokens and the keys that are left out.
        map: the head; a pooled map must have a `top` of at least k keys, without those left out.
        k: the number of keys; fewer if there are not as many. Keys that are left out are not counted.

    Returns:
        For each query its position, and the positions and weights of its keys, the largest weight first.
        Of equal weights, the smaller position comes first; NaN comes last.
    """
    import numpy as np

    if map.top is not None:
        order, weights = (each[:, :k] for each in map.top)
    else:
        kept = np.delete(np.arange(map.attention.shape[1]), maps.left_out)
        order = kept[np.argsort(-map.attention[:, kept], axis=1, kind="stable")[:, :k]]
        weights = np.take_along_axis(map.attention, order, axis=1)
    keys = [list(zip(*each, strict=True)) for each in zip(order.tolist(), weights.tolist(), strict=True)]
    return list(enumerate(keys, start=maps.first_query))


def strongest_columns(maps: AttentionMaps, map: AttentionMap, k: int) -> list[Column]:
    """Return the same as columns of a table: the query, then for each rank a key and its weight.

    A token is preceded by its position, which distinguishes tokens of the same text. For programs,
    positions, tokens and weights are separate columns; for people, keys of weight 0 are blank.
    """
    rows = strongest(maps, map, k)
    queries, tokens = [position for position, _ in rows], maps.query_tokens
    columns = [
        Column("query", "query", _cells(queries, tokens, QUERY), queries, lead=True),
        Column("", "query_token", [], [token.text for token in tokens]),
    ]
    for rank in range(max((len(keys) for _, keys in rows), default=0)):
        keys, weights = zip(*(ranked[rank] for _, ranked in rows), strict=True)
        columns += _rank_columns(rank + 1, list(keys), list(weights), maps)
    return columns


def top_columns(maps: AttentionMaps) -> list[Column] | None:
    """Return the strongest keys that are shown in place of a map; None where the map is shown."""
    return strongest_columns(maps, maps.one, maps.top) if maps.top and maps.one else None


def _rank_columns(rank: int, keys: list[int], weights: list[float], maps: AttentionMaps) -> list[Column]:
    """Return the columns for the keys of one rank, with a row for each query."""
    ranked = [maps.key_tokens[key] for key in keys]

    def cell_of(weight: float) -> tuple[str, str]:
        if not maps.kind.as_weights:
            return f"{weight:.3g}", ""
        return f"{weight:.2f}", "bold" if weight >= LARGE else ""

    cells = [
        [*cell, cell_of(weight)] if weight else []
        for cell, weight in zip(_cells(keys, ranked, KEY), weights, strict=True)
    ]
    return [
        Column(f"#{rank}", f"key_{rank}", cells, keys),
        Column("", f"key_token_{rank}", [], [token.text for token in ranked]),
        Column("", f"weight_{rank}", [], weights),
    ]


def _cells(positions: list[int], tokens: list[Token], style: str) -> list[list[tuple[str, str]]]:
    """Format positions and tokens, padded to equal width."""
    digits = len(str(max(positions, default=0)))
    texts = [label(token.text) for token in tokens]
    width = max(map(cell_len, texts), default=0)
    return [
        [
            (str(position).rjust(digits), style),
            (isolated(text) + " " * (width - cell_len(text)), token_style(token)),
        ]
        for position, text, token in zip(positions, texts, tokens, strict=True)
    ]


# Records.


def record(maps: AttentionMaps) -> dict[str, Any]:
    """Return one head as `attnscope.map/1`, several as `attnscope.maps/1`; or one query of them."""
    maps = maps if maps.query is None else of_query(maps, maps.query)
    about: dict[str, Any] = {
        "model": maps.model,
        "stack": maps.stack,
        "numbers": maps.numbers,
        "meaning": maps.kind.meaning or None,
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
        end["strongest"] = _strongest_record(maps, maps.one, maps.top)
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


def _strongest_record(maps: AttentionMaps, map: AttentionMap, k: int) -> list[list[dict[str, Any]]]:
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


def json_of(record: dict[str, Any]) -> str:
    """Return a JSON document with a line for each key, and within maps a line for each query."""
    lines = [f"  {json.dumps(key)}: {_compact(key, value)}" for key, value in record.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def csv_lines(maps: AttentionMaps) -> Iterator[str]:
    """Yield a line of CSV for each head, query and key, map by map, because there may be many.

    If strongest keys are shown, there is a line for each query, with these.

    For pooled maps, there is a line for each cell, with its first query, its first key, and the
    numbers of its queries and keys.
    """
    if columns := top_columns(maps):
        yield csv_table(columns)
        return
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


def frame(maps: AttentionMaps) -> pandas.DataFrame:
    """Return a row for each line of CSV, in plain numbers."""
    check_pandas()
    import pandas

    if columns := top_columns(maps):
        return pandas.DataFrame({column.key: column.raw for column in columns if column.raw})
    text = io.StringIO("\n".join(csv_lines(maps)))
    return pandas.read_csv(text, keep_default_na=False, na_values={"attention": ["NaN"]})
