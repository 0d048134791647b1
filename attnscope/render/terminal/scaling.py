"""Print the effect of the scale: a table with and without it side by side, bars, and findings."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.render.scaling import SCALED, heading, legend, pairs
from attnscope.render.terminal.table import print_columns, print_line, print_parts
from attnscope.render.text import GAP
from attnscope.results.scaling import Scaling, ScalingRow

LONGEST_BAR, SHORTEST_BAR = 50, 8  # in characters
EIGHTHS = " ▏▎▍▌▋▊▉"


def print_scaling(result: Scaling, console: Console, *, plot: bool = True) -> None:
    """Print a table with and without the scale side by side, bars, and the findings.

    Args:
        result: the measurements.
        console: the console; a narrow terminal gets several tables, and piped output is never truncated.
        plot: whether to draw the bars.
    """
    title, *about = heading(result)
    print_line(console, Text(title, style="bold"))
    for line in about:
        print_line(console, Text(line))
    print_columns(pairs(result), console, wide=True)
    print_line(console, Text())
    for line in legend(result):
        print_parts(console, Text(line, style="dim"))
    if plot:
        for bar in _bars(result.rows, console.width):
            console.print(bar, soft_wrap=True)
    print_line(console, Text())
    for finding in result.findings:
        print_line(console, Text(finding.message))


def _bars(rows: list[ScalingRow], width: int) -> list[Text]:
    """Draw the largest weight at each width as bars between 0 and 1, without and with the scale."""
    names = {scaled: name for scaled, (name, _) in SCALED.items()}
    values = [row.text("largest_weight") for row in rows]
    digits = max(len("d_K"), *(len(str(row.d_K)) for row in rows))
    called, valued = max(map(len, names.values())), max(map(len, values))
    before = digits + GAP + called + GAP
    longest = max(SHORTEST_BAR, min(LONGEST_BAR, width - before - GAP - valued))
    axis = f"0{'largest weight':─^{longest - 2}}1"
    lines = [Text(), Text(f"{'d_K':>{digits}}".ljust(before) + axis, "dim")]
    for row, value in zip(rows, values, strict=True):
        name, style = SCALED[row.scaled]
        d_K = "" if row.scaled else str(row.d_K)
        line = Text.assemble((d_K.rjust(digits), "bold"), " " * GAP, name.ljust(called), " " * GAP)
        line.append(_bar(row.largest_weight, longest).ljust(longest), style)
        lines.append(line.append(" " * GAP + value.rjust(valued)))
    return lines


def _bar(share: float, longest: int) -> str:
    """Draw a bar to the nearest eighth of a character; any positive share is visible."""
    if not share > 0:
        return ""
    eighths = max(1, round(min(share, 1) * longest * 8))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
