"""Attention maps as headings and records: what stands above a picture, and the same for programs."""

from __future__ import annotations

import json
from typing import Any

from attnscope.results import AttentionMap, AttentionMaps, Token
from attnscope.views.columns import Column, check_columns
from attnscope.views.records import markdown_table
from attnscope.views.strongest import strongest
from attnscope.views.tokens import label
from attnscope.views.values import number


def maps_heading(maps: AttentionMaps, map: AttentionMap | None = None) -> list[str]:
    """A title, and below it who looks at whom.

    Args:
        maps: what was seen.
        map: the one head that is shown; None: all that are there.
    """
    parts = [maps.model] if maps.stack == "self" else [maps.model, f"{maps.stack} attention"]
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
    return lines


def maps_record(maps: AttentionMaps) -> dict[str, Any]:
    """One head as `attnscope.map/1`, several as `attnscope.maps/1`."""
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
        "generated": [i for i, token in enumerate(maps.key_tokens) if token.generated],
        "patches": maps.picture and [maps.picture.rows, maps.picture.columns],
    }
    of_maps = [
        {
            "layer": each.layer,
            "head": each.head,
            "kv_head": each.kv_head,
            "attention": _rows(each.attention),
        }
        for each in maps.maps
    ]
    checks = [
        {
            "name": check.name,
            "max_abs_diff": number(check.max_abs_diff) if check.max_abs_diff is not None else None,
            "tolerance": check.tolerance,
            "ok": check.ok,
            "note": check.note,
        }
        for check in maps.checks
    ]
    end = {"checks": checks, "notices": maps.notices}
    if len(of_maps) == 1:
        return {"schema": "attnscope.map/1"} | of_maps[0] | about | end
    return {"schema": "attnscope.maps/1"} | about | {"maps": of_maps} | end


def strongest_record(maps: AttentionMaps, map: AttentionMap, k: int) -> list[list[dict[str, Any]]]:
    """For each query its k strongest keys, the strongest first."""
    return [
        [
            {"key": key, "token": maps.key_tokens[key].text, "attention": _short(weight)}
            for key, weight in keys
        ]
        for _, keys in strongest(maps, map, k)
    ]


def maps_json(record: dict[str, Any]) -> str:
    """One JSON document with a line for each key, and in a map for each query."""
    lines = [f"  {json.dumps(key)}: {_compact(key, value)}" for key, value in record.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def maps_text(maps: AttentionMaps, map: AttentionMap | None, columns: list[Column] | None) -> str:
    """Markdown: a table for each head, or the columns instead, and what there is to say.

    Args:
        maps: what was seen.
        map: the one head that is shown, if it is one.
        columns: what is shown instead of weights.
    """
    title, *about = maps_heading(maps, map)
    parts = [f"**{title}**", *about]
    if columns:
        parts.append(markdown_table(columns))
    else:
        for each in maps.maps:
            parts += [] if map else [f"layer {each.layer}, head {each.head}"]
            parts.append(markdown_table(matrix_columns(maps, each)))
    parts += [*maps.notices, *([markdown_table(check_columns(maps.checks))] if maps.checks else [])]
    return "\n\n".join(parts)


def weights_columns(maps: AttentionMaps) -> list[Column]:
    """A row for each head, query and key: what CSV holds."""
    rows = [
        (each.layer, each.head, q, _token(maps.query_tokens[q]), k, _token(maps.key_tokens[k]), weight)
        for each in maps.maps
        for q, row in enumerate(_rows(each.attention))
        for k, weight in enumerate(row)
    ]
    keys = ("layer", "head", "query", "query_token", "key", "key_token", "attention")
    return [
        Column(key, key, [], list(raw)) for key, raw in zip(keys, zip(*rows, strict=True), strict=True)
    ]


def matrix_columns(maps: AttentionMaps, map: AttentionMap) -> list[Column]:
    """A row for each query, a column for each key: what Markdown holds."""
    queries = Column("", "query", [[(label(token.text), "")] for token in maps.query_tokens], [])
    columns = [queries]
    for k, token in enumerate(maps.key_tokens):
        cells = [[(f"{weight:.2f}", "")] for weight in map.attention[:, k].tolist()]
        columns.append(Column(label(token.text), f"key {k}", cells, [], right=True))
    return columns


def _token(token: Token) -> str:
    return token.text


def _counted(numbers: list[int], what: str) -> str:
    return f"{what} {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} {what}s"


def _rows(attention: Any) -> list[list[float]]:
    """Weights in as few digits as tell a float32 from its neighbours."""
    return [
        [float(weight) for weight in row] for row in attention.astype("float32").astype(str).tolist()
    ]


def _short(weight: float) -> float:
    """One weight, as `_rows` has it."""
    import numpy as np

    return float(str(np.float32(weight)))


def _compact(key: str, value: Any) -> str:
    def plain(each: Any) -> str:
        return json.dumps(each, allow_nan=False, ensure_ascii=False)

    if key == "attention":
        return "[\n    " + ",\n    ".join(plain(row) for row in value) + "\n  ]"
    if key == "maps":
        return "[\n    " + ",\n    ".join(plain(each) for each in value) + "\n  ]"
    return plain(value)
