"""Print the worked example: the values of every form, and whether the forms agree."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.render.columns import check_columns
from attnscope.render.heading import heading
from attnscope.render.numbers import print_numbers
from attnscope.render.terminal.table import print_columns, print_line
from attnscope.render.values import values_of
from attnscope.results.example import WorkedExample


def print_example(example: WorkedExample, console: Console) -> None:
    """Print each form, followed by its comparison with the first."""
    for i, trace in enumerate(example.forms.values()):
        title, *about = heading(trace)
        print_line(console, Text(("\n\n" if i else "") + title, "bold"))
        for line in about:
            print_line(console, Text(line))
        print_numbers(trace, values_of(trace), console)
        if trace.checks:
            print_columns(check_columns(trace.checks), console)
