"""Print attention maps in a terminal."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from attnscope.render.columns import Column, check_columns
from attnscope.render.maps import maps_heading
from attnscope.render.terminal.heatmap import print_heatmap
from attnscope.render.terminal.overview import print_overview
from attnscope.render.terminal.table import print_columns, print_heading, print_notices
from attnscope.results.maps import AttentionMap, AttentionMaps


def print_maps(
    maps: AttentionMaps,
    map: AttentionMap | None,
    console: Console,
    *,
    columns: list[Column] | None = None,
    query: int | None = None,
    wide: bool = False,
) -> None:
    """Print a picture of what heads look at, or columns instead, with what there is to say.

    Args:
        maps: what was seen.
        map: the one head that is shown; None: an overview of all that are there.
        console: where.
        columns: what is shown instead of weights.
        query: only this query's row.
        wide: all columns.
    """
    whole = replace(maps, pooling=None) if columns else maps  # the columns are of single queries
    print_heading(maps_heading(whole, map), console)
    if columns:
        print_columns(columns, console, wide)
    else:
        console.print()
        if map is not None:
            print_heatmap(maps, map, console, query=query)
        else:
            print_overview(maps, console)
    print_notices(console, maps.notices)
    if maps.checks:
        print_columns(check_columns(maps.checks), console, wide)
