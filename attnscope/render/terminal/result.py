"""Print any result as its command does, and give Rich the same text."""

from __future__ import annotations

import io
from functools import singledispatch
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.text import Text

from attnscope.document.console import Terminal
from attnscope.document.terminal import print_document, print_notices
from attnscope.models.maps.result import AttentionMaps
from attnscope.observe.trace import ProgramRun, Trace
from attnscope.render.terminal.table import print_table
from attnscope.textbook.example.result import WorkedExample


def rich_text(result: Any, console: Console, options: ConsoleOptions) -> Text:
    """Return what a result's command prints on a terminal as wide as a console, in its colours.

    Args:
        result: the result.
        console: the console of `rich.print`.
        options: its options, with the width.
    """
    file = io.TextIOWrapper(io.BytesIO(), encoding=options.encoding)
    terminal = Terminal(
        file=file,
        width=options.max_width,
        force_terminal=True,
        color_system=console.color_system,
        no_color=console.no_color,
        legacy_windows=False,
    )
    with terminal.capture() as captured:
        print_result(result, terminal)
    text = Text.from_ansi(captured.get(), no_wrap=True, overflow="ignore")
    text.rstrip()
    return text


@singledispatch
def print_result(result: Any, console: Console) -> None:
    """Print a result as its command prints it by default."""
    print_document(result.document(), console)


@print_result.register
def _(trace: Trace, console: Console) -> None:
    print_table(trace, console)
    if trace.source is not None:
        from attnscope.render.terminal.source import print_source

        print_source(trace, console)


@print_result.register
def _(run: ProgramRun, console: Console) -> None:
    for i, trace in enumerate(run.traces):
        if i:
            console.print()
        print_result(trace, console)
    print_notices(console, run.notes)


@print_result.register
def _(maps: AttentionMaps, console: Console) -> None:
    if maps.steps is not None:
        print_result(maps.steps, console)
    else:
        print_document(maps.document(), console)


@print_result.register
def _(example: WorkedExample, console: Console) -> None:
    from attnscope.render.terminal.example import print_example

    print_example(example, console)
