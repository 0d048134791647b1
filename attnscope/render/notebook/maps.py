"""Attention maps in a notebook: the interactive page in a sandboxed frame.

The frame may run scripts and nothing else. It has no origin of its own, so that it reads neither the
notebook's page nor its storage, and the policy of the page forbids the network.
"""

from __future__ import annotations

from dataclasses import replace

from attnscope.render.page.page import MOST, maps_page
from attnscope.render.pooling import first_tokens, groups, positions, smaller, span
from attnscope.results.maps import AttentionMaps, Pooling

LARGEST = 5_000_000
"""The most characters of a page in a notebook, whose file stores it."""

OF_PAGE, OF_HEAD, OF_WEIGHT = 500_000, 1_000, 2.7
"""The most characters of a page: for script, style and tokens; for each head; for each weight."""


def page_and_note(maps: AttentionMaps) -> tuple[str, str]:
    """Return the page of the maps; and a note if they are pooled because it would be too large."""
    stacks = maps.collected or [maps]
    heads = [each for stack in stacks for each in stack.maps]
    n_weights = sum(each.attention.size for each in heads)
    longest = max(max(each.attention.shape) for each in heads)
    if longest <= MOST and n_weights <= 2 * LARGEST:
        page = maps_page(maps)
        if len(page) <= LARGEST:
            return page, ""
    room = LARGEST - OF_PAGE - OF_HEAD * len(heads)
    most = max(1, int((max(room, 0) / OF_WEIGHT / len(heads)) ** 0.5))
    shown = pooled(maps, most)
    if maps.collected is not None:
        shown.collected = [pooled(stack, most) for stack in maps.collected]
    note = (
        f"The page of these maps has more than {LARGEST // 10**6} MB. Here they are pooled to at most"
        f' {most} × {most} cells; maps.save("attention.html") writes the whole page.'
    )
    return maps_page(shown), note


def pooled(maps: AttentionMaps, most: int) -> AttentionMaps:
    """Pool maps to at most `most` rows and columns of cells; small ones stay as they are."""
    cells = positions(maps)
    rows, columns = (groups(tokens, most) for tokens in first_tokens(maps))
    if (len(rows), len(columns)) == tuple(map(len, cells)):
        return replace(maps)
    small = [
        replace(each, attention=smaller(maps, each.attention, rows, columns), row=None, top=None)
        for each in maps.maps
    ]
    queries, keys = (
        [span(axis, group) for group in of_axis]
        for axis, of_axis in zip(cells, (rows, columns), strict=True)
    )
    shown = "max" if maps.pooling is None else maps.pooling.shown
    return replace(maps, maps=small, pooling=Pooling(shown, queries, keys))


def in_attribute(page: str) -> str:
    """Escape a page for the value of an attribute in single quotation marks."""
    return page.replace("&", "&amp;").replace("'", "&#39;")
