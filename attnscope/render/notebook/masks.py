"""Pictures of masks as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.render.masks import (
    MOST_PLANES,
    cell_size,
    mask_lines,
    more_planes,
    plane_title,
    tokens_of,
)
from attnscope.render.tokens import label
from attnscope.results.masks import AttentionMask, AttentionMasks
from attnscope.results.planes import EMPTY, PARTIAL, Plane
from attnscope.text import printable

if TYPE_CHECKING:
    from markupsafe import Markup

MOST = 128
"""The most cells along an axis."""

PIXELS, TALLEST = 16, 640
"""Of a cell, at most, and of a picture."""

WITH_TOKENS = 48
"""The most rows that are labelled with tokens."""


def pictures(result: AttentionMasks) -> list[tuple[list[str], list[tuple[str, Markup]], str]]:
    """Return for each mask the lines above it, its pictures with their titles, and a line below."""
    return [
        (
            [printable(line) for line in mask_lines(result, mask)],
            [
                (plane_title(mask, plane), picture(mask, plane, result.cell))
                for plane in mask.planes[:MOST_PLANES]
            ],
            more_planes(mask),
        )
        for mask in result.masks
    ]


def picture(mask: AttentionMask, plane: Plane, cell: int | None) -> Markup:
    """Return one plane as SVG: each row is a group, whose tooltip names the query and its keys."""
    from markupsafe import Markup, escape

    size = cell_size(mask, cell, MOST, MOST)
    n_row, n_column = -(-mask.n_Q // size), -(-mask.n_K // size)
    queries = tokens_of(mask.query_tokens, plane)
    pixels = max(2, min(PIXELS, TALLEST // n_row))
    named = queries is not None and size == 1 and n_row <= WITH_TOKENS
    margin = max((len(label(token.text)) for token in queries or ()), default=0) * 0.62 if named else 0
    rows = []
    for i, runs in enumerate(plane.blocks(size, size)):
        paths = {
            kind: "".join(
                f"M{start} {i}h{stop - start}v1h-{stop - start}z"
                for start, stop, of in runs
                if of == kind
            )
            for kind in {kind for _, _, kind in runs} - {EMPTY}
        }
        drawn = "".join(
            f'<path class="{"some" if kind == PARTIAL else "all"}" d="{path}"/>'
            for kind, path in sorted(paths.items())
        )
        first = i * size
        position = str(first) if size == 1 else f"{first}–{min(first + size, mask.n_Q) - 1}"
        text = printable(label(queries[first].text)) if queries is not None and size == 1 else ""
        title = escape(f"query {position} {text}".strip())
        name = f'<text x="-0.5" y="{i + 0.78}">{escape(text)}</text>' if named else ""
        row = f'<path class="row" d="M0 {i}h{n_column}v1h-{n_column}z"/>'
        rows.append(f"<g><title>{title}</title>{name}{row}{drawn}</g>")
    width = (n_column + margin) * pixels
    view = f"{-margin:g} 0 {n_column + margin:g} {n_row}"
    return Markup(
        f'<svg class="mask" viewBox="{view}" width="{width:.0f}" height="{n_row * pixels}" role="img"'
        f' shape-rendering="crispEdges"><title>{mask.n_Q} queries downwards, {mask.n_K} keys across'
        f"</title>{''.join(rows)}</svg>"
    )
