"""Print masks: a table, and a picture of each with its visible pairs or blocks."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.render.colours import Scale
from attnscope.render.columns import check_columns
from attnscope.render.mask_picture import Frame, picture
from attnscope.render.masks import (
    MOST_PLANES,
    columns,
    heading,
    mask_lines,
    more_planes,
    plane_title,
)
from attnscope.render.terminal.heatmap import MOST_ROWS, PIPED
from attnscope.render.terminal.table import (
    print_columns,
    print_heading,
    print_line,
    print_notices,
    print_parts,
)
from attnscope.results.masks import AttentionMasks
from attnscope.text import printable


def print_masks(result: AttentionMasks, console: Console, *, wide: bool = False) -> None:
    """Print the table of masks, and a picture of each.

    Args:
        result: the masks.
        console: the console. On a terminal, a picture fits its width and has at most 60 rows; piped, it
            has up to 200 of both.
        wide: whether to show all columns of the table.
    """
    print_heading(heading(result), console)
    print_columns(columns(result), console, wide)
    scale = Scale.without_weights(console)
    terminal = console.is_terminal
    width = console.width if terminal else max(console.width, PIPED)
    frame = Frame(width, MOST_ROWS if terminal else PIPED, result.cell, scale)
    for mask in result.masks:
        print_line(console, Text())
        for i, text in enumerate(mask_lines(result, mask)):
            print_parts(console, Text(printable(text), "dim" if i else "bold"), ": ")
        sentences: list[Text] = []
        for plane in mask.planes[:MOST_PLANES]:
            if title := plane_title(mask, plane):
                print_line(console, Text(title))
            lines, sentences = picture(mask, plane, frame)
            for line in lines:
                console.print(line, soft_wrap=True)
        for sentence in sentences:
            print_parts(console, sentence, "; ")
        print_notices(console, filter(None, [more_planes(mask)]))
    if result.checks:
        print_columns(check_columns(result.checks), console, wide)
    print_notices(console, result.notices)
