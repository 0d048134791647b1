"""The strongest keys of each query as a table."""

from __future__ import annotations

from rich.cells import cell_len

from attnscope.render.axes import KEY, QUERY, isolated, token_style
from attnscope.render.columns import Column
from attnscope.render.tokens import label
from attnscope.results.maps import AttentionMap, AttentionMaps, Token

LARGE = 0.5  # most of a query's weight


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
        columns += _rank_columns(rank + 1, list(keys), list(weights), maps.key_tokens)
    return columns


def top_columns(maps: AttentionMaps) -> list[Column] | None:
    """Return the strongest keys that are shown in place of a map; None where the map is shown."""
    return strongest_columns(maps, maps.one, maps.top) if maps.top and maps.one else None


def _rank_columns(rank: int, keys: list[int], weights: list[float], tokens: list[Token]) -> list[Column]:
    """Return the columns for the keys of one rank, with a row for each query."""
    ranked = [tokens[key] for key in keys]
    cells = [
        [*cell, (f"{weight:.2f}", "bold" if weight >= LARGE else "")] if weight else []
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
