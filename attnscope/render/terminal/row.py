"""Print one query's weights as bars, one for each key."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnscope.render import axes
from attnscope.render.colours import Scale
from attnscope.render.pooling import borders
from attnscope.render.terminal.table import print_line
from attnscope.results.maps import AttentionMaps

if TYPE_CHECKING:
    import numpy as np

LONGEST_BAR = 50
FEW = 3  # up to this number, neighbouring keys of weight 0 have a line each
NUMBER = len(" 0.1234")


def print_row(maps: AttentionMaps, attention: np.ndarray, query: int, console: Console) -> None:
    """Print a query's weights, one line for each key; runs of keys of weight 0 share a line.

    Args:
        maps: the maps, for their tokens.
        attention: `n_Q n_K`.
        query: the query's position.
        console: the console.
    """
    import numpy as np

    row = query - maps.first_query
    weights = attention[row]
    scale = Scale.of(console, np.delete(weights, maps.left_out))
    token = maps.query_tokens[row]
    text = axes.isolated(axes.token_text(token, scale))
    print_line(
        console, Text.assemble("query ", (str(query), axes.QUERY), " ", (text, axes.token_style(token)))
    )
    for line in _lines(maps, weights.tolist(), scale, console.width):
        line.rstrip()
        console.print(line, soft_wrap=True)


def _lines(maps: AttentionMaps, weights: list[float], scale: Scale, width: int) -> Iterator[Text]:
    tokens = maps.key_tokens
    texts = [axes.token_text(token, scale) for token in tokens]
    number = len(str(len(tokens) - 1))
    room = width - number - NUMBER - 3
    label = min(max(map(cell_len, texts)), room // 2)
    longest = min(LONGEST_BAR, room - label)
    starts = borders(tokens)
    for positions in _runs(weights, starts):
        if positions.start in starts:
            yield Text(scale.marks.horizontal * (width - room + label + longest), "dim")
        if len(positions) > 1:
            yield Text(f"{axes.range_text(positions, scale)}: 0", "dim")
            continue
        key, weight = positions.start, weights[positions.start]
        line = Text().append(str(key).rjust(number), axes.KEY).append(" ")
        line.append_text(axes.left(texts[key], label, scale, axes.token_style(tokens[key])))
        left_out = key in maps.left_out
        line.append(f" {scale.bar(0.0 if left_out else weight, longest)} ", scale.filled)
        yield line.append(f"{weight:.4f}" if weight else "0", "dim" if left_out or not weight else "")


def _runs(weights: list[float], starts: list[int]) -> Iterator[range]:
    """Yield each key by itself, and long runs of keys of weight 0 within one text together."""
    text_of = [sum(start <= key for start in starts) for key in range(len(weights))]
    for (_, is_zero), run in groupby(
        range(len(weights)), key=lambda key: (text_of[key], weights[key] == 0)
    ):
        keys = list(run)
        if is_zero and len(keys) > FEW:
            yield range(keys[0], keys[-1] + 1)
        else:
            yield from (range(key, key + 1) for key in keys)
