"""Print the tensors of a trace or a head, one a row."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.document.columns import check_columns
from attnscope.document.terminal import (
    print_columns,
    print_finding,
    print_hanging,
    print_heading,
    print_line,
    print_parts,
)
from attnscope.observe.trace import Trace
from attnscope.render.columns import columns_of
from attnscope.render.crash import crash_lines
from attnscope.render.heading import heading, summary


def print_table(result: Trace, console: Console, *, wide: bool = False) -> None:
    """Print a result: its heading, a row for each tensor, and its summary, findings and checks.

    Args:
        result: a trace.
        console: the console; piped output is as wide as necessary, and never truncated.
        wide: whether to show all columns, in as many tables as the terminal's width requires.
    """
    print_heading(heading(result, wide=wide), console)
    print_columns(columns_of(result), console, wide)
    if isinstance(result, Trace):
        print_line(console, Text())
        print_parts(console, Text(summary(result), style="dim"))
        for finding in result.findings or []:
            print_finding(console, finding)
        if result.crash is not None:
            for text in crash_lines(result.crash):
                print_hanging(console, text)
    if result.checks:
        print_columns(check_columns(result.checks), console, wide)
