"""Print attention maps in a terminal."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from attnscope.render.columns import check_columns
from attnscope.render.maps import maps_heading, of_query
from attnscope.render.strongest import top_columns
from attnscope.render.terminal.heatmap import print_heatmap
from attnscope.render.terminal.overview import print_overview
from attnscope.render.terminal.table import print_columns, print_heading, print_notices
from attnscope.results.maps import AttentionMaps


def print_maps(maps: AttentionMaps, console: Console, *, wide: bool = False) -> None:
    """Print attention maps, or each query's strongest keys, with heading, checks and notices.

    Args:
        maps: one head, or several, which are printed as an overview.
        console: the console.
        wide: whether to show all columns.
    """
    if maps.query is not None and maps.pooling is not None:
        maps = of_query(maps, maps.query)
    map, columns = maps.one, top_columns(maps)
    whole = replace(maps, pooling=None) if columns else maps  # the columns are of single queries
    print_heading(maps_heading(whole, map), console)
    if columns:
        print_columns(columns, console, wide)
    else:
        console.print()
        if map is not None:
            print_heatmap(maps, map, console, query=maps.query)
        else:
            print_overview(maps, console)
    print_notices(console, maps.notices)
    if maps.checks:
        print_columns(check_columns(maps.checks), console, wide)
