"""Masks as records: JSON, CSV and Markdown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnscope.render.columns import check_columns
from attnscope.render.mask_picture import PLAIN, Frame, picture
from attnscope.render.masks import MOST_PLANES, columns, heading, mask_lines, more_planes, plane_title
from attnscope.render.records.tables import csv_table, markdown, markdown_table, plain
from attnscope.results.masks import AttentionMask, AttentionMasks
from attnscope.text import printable


def masks_record(result: AttentionMasks) -> dict[str, Any]:
    """Return the masks as a record: each query's keys as ranges, from the first to before the last."""
    return {
        "schema": "attnscope.mask/1",
        "title": result.title,
        "model": result.model,
        "masks": [_mask(mask) for mask in result.masks],
        "checks": plain(result.checks),
        "notices": result.notices,
    }


def _mask(mask: AttentionMask) -> dict[str, Any]:
    """Return one mask."""
    record = {name: value for name, value in plain(mask).items() if name != "patterns"}
    record["blocks"] |= {"saved": mask.blocks.saved}
    planes = [
        {
            "places": [list(place) for place in plane.places],
            "pattern": pattern,
            "visible": [[[keys.start, keys.stop] for keys in row] for row in plane.rows()],
        }
        for plane, pattern in zip(mask.planes, mask.patterns, strict=True)
    ]
    texts = {
        name: None if tokens is None else [[token.text for token in row] for row in tokens]
        for name, tokens in (("query_tokens", mask.query_tokens), ("key_tokens", mask.key_tokens))
    }
    return record | {"n_pairs": mask.n_pairs} | texts | {"planes": planes}


def masks_csv(result: AttentionMasks) -> str:
    """Return a line for each mask, in plain numbers."""
    return csv_table(columns(result))


def masks_markdown(result: AttentionMasks, *, wide: bool = False) -> str:
    """Return the table of masks, and their pictures."""
    parts = [markdown_table(columns(result), wide)]
    frame = replace(FRAME, cell=result.cell)
    for mask in result.masks:
        parts += map(printable, mask_lines(result, mask))
        for plane in mask.planes[:MOST_PLANES]:
            parts += filter(None, [plane_title(mask, plane)])
            drawn, sentences = picture(mask, plane, frame)
            lines = [line.plain for line in (*drawn, *sentences)]
            parts.append("\n".join(["```", *lines, "```"]))
        parts += filter(None, [more_planes(mask)])
    if result.checks:
        parts.append(markdown_table(check_columns(result.checks), wide))
    return markdown(heading(result), *parts, *result.notices)


FRAME = Frame(width=120, rows=120, cell=None, scale=PLAIN)
"""The room for a picture in a document."""
