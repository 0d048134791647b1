"""Print the attention maps that differ most: side by side, and where."""

from __future__ import annotations

from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from attnscope.comparison.map_differences import MapDifferences
from attnscope.document.grid.colours import Scale
from attnscope.document.grid.heatmap import print_heatmap
from attnscope.document.grid.overview import (
    GAP,
    HEAD_STYLE,
    height_of,
    picture,
    side_by_side,
    small_map,
)
from attnscope.document.terminal import print_columns, print_line
from attnscope.models.heads.result import HeadRow
from attnscope.render.map_differences import SIDES, leading, sides, strongest_columns
from attnscope.render.ranking import place, ranked, shown

MOST_HEADS = 3
"""The most heads whose maps are shown."""

MOST_WIDTH = 18
"""The most characters of a map's width, where several are side by side."""


def print_changed_maps(table: MapDifferences, console: Console, *, wide: bool = False) -> None:
    """Print the maps of the heads that differ most, and the weights in them that changed most.

    A single head's maps are printed one below the other, as large as possible; those of several heads
    side by side.

    Args:
        table: the differences.
        console: the console.
        wide: whether to show all columns.
    """
    rows = ranked(table, "change") if table.sort is None else shown(table)
    rows = leading(table, rows, MOST_HEADS)
    if not rows:
        return
    print_line(console, Text())
    if len(table.rows) == 1:
        for maps in sides(table):
            print_line(console, Text(maps.stack, "bold"))
            print_heatmap(maps, maps.maps[0].attention, console)
            print_line(console, Text())
    else:
        _print_pictures(table, rows, console)
    print_line(console, Text("the weights that changed most", "dim"))
    print_columns(strongest_columns(table, rows), console, wide)


def _print_pictures(table: MapDifferences, rows: list[HeadRow], console: Console) -> None:
    """Print small maps: a row for each head, and a column for A, for B and for the differences.

    A and B share a scale, and so do the differences, which may be much smaller.
    """
    import numpy as np

    labels = [place(table, row).split() for row in rows]  # a word a line leaves more room for maps
    indent = max(len(word) for label in (["head"], *labels) for word in label) + GAP
    room = (console.width - indent + GAP) // len(SIDES) - GAP
    width = max(len(max(SIDES, key=len)), min(MOST_WIDTH, room))
    high = height_of(width, Scale.of(console, np.zeros(0)))
    columns = sides(table, rows)
    small = {
        (maps.stack, each.layer, each.head): small_map(maps, each.attention, width, high)
        for maps in columns
        for each in maps.maps
    }
    tops = dict.fromkeys(SIDES, 0.0)
    for (side, *_), each in small.items():
        tops[side] = max(tops[side], float(np.nan_to_num(each).max(initial=0)))
    both, differences = SIDES[:2], SIDES[2:]
    scales = {
        side: Scale.of(console, np.array([tops[each] for each in sides_of_scale]))
        for sides_of_scale in (both, differences)
        for side in sides_of_scale
    }
    heading = Text("head".ljust(indent), "dim")
    for side in SIDES:
        heading.append(side.ljust(width + GAP), "bold")
    heading.rstrip()
    print_line(console, heading)
    for row, label in zip(rows, labels, strict=True):
        pictures = [picture(small[side, row.layer, row.head], width, scales[side]) for side in SIDES]
        for word, line in zip_longest(label, side_by_side(pictures, width)):
            whole = Text(word or "", HEAD_STYLE)
            whole.append(" " * (indent - whole.cell_len)).append_text(line or Text())
            if not scales[both[0]].ramp:
                whole.rstrip()
            console.print(whole, soft_wrap=True)
    for name, side in (("A, B", both[0]), ("more, less", differences[0])):
        print_line(console, scales[side].legend(console.width).append(f"  {name}", "dim"))
    print_line(console, Text())
