"""Print the worked example: every number once, and whether the forms agree."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.document.columns import check_columns
from attnscope.document.terminal import print_columns, print_line
from attnscope.render.example import new_numbers, same_numbers
from attnscope.render.heading import heading
from attnscope.render.numbers import print_numbers
from attnscope.textbook.example.result import WorkedExample

BESIDE = [("W_Q", "W_K", "W_V"), ("Q", "K", "V")]
"""Matrices that are printed side by side."""


def print_example(example: WorkedExample, console: Console) -> None:
    """Print the first form whole, and of the others what is new; each is compared with that by rows."""
    first = next(iter(example.forms.values()))
    for trace in example.forms.values():
        title, *about = heading(trace)
        print_line(console, Text(("" if trace is first else "\n\n") + title, "bold"))
        for line in about if trace is first else same_numbers(trace, first):
            print_line(console, Text(line, "" if trace is first else "dim"))
        print_numbers(trace, new_numbers(trace, first), console, beside=BESIDE)
        if trace.checks:
            print_columns(check_columns(trace.checks), console, wide=True)
