"""Print any result as its command does, and give Rich the same text."""

from __future__ import annotations

import io
from functools import singledispatch
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.text import Text

from attnscope.render.terminal.console import Terminal
from attnscope.render.terminal.table import print_finding, print_line, print_notices, print_table
from attnscope.results.audit import Audit
from attnscope.results.card import Card
from attnscope.results.cards import Cards
from attnscope.results.comments import CommentReport, SourceDiff
from attnscope.results.common import Finding
from attnscope.results.comparison import Comparison
from attnscope.results.example import WorkedExample
from attnscope.results.heads import HeadMetrics
from attnscope.results.maps import AttentionMaps
from attnscope.results.masks import AttentionMasks
from attnscope.results.scaling import Scaling
from attnscope.results.trace import ProgramRun, Trace
from attnscope.results.weights import HeadWeights
from attnscope.text import printable_lines


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
    raise TypeError(f"there is no view of {type(result).__name__}")


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
def _(head: HeadWeights, console: Console) -> None:
    if head.circuits:
        from attnscope.render.terminal.circuits import print_head_circuits

        print_head_circuits(head, console)
    else:
        print_table(head, console)


@print_result.register
def _(maps: AttentionMaps, console: Console) -> None:
    from attnscope.render.terminal.maps import print_maps

    if maps.steps is not None:
        print_result(maps.steps, console)
    else:
        print_maps(maps, console)


@print_result.register
def _(table: HeadMetrics, console: Console) -> None:
    from attnscope.render.terminal.heads import print_heads

    print_heads(table, console)


@print_result.register
def _(scaling: Scaling, console: Console) -> None:
    from attnscope.render.terminal.scaling import print_scaling

    print_scaling(scaling, console)


@print_result.register
def _(comparison: Comparison, console: Console) -> None:
    from attnscope.render.terminal.comparison import print_comparison

    print_comparison(comparison, console)


@print_result.register
def _(audit: Audit, console: Console) -> None:
    from attnscope.render.terminal.audit import print_audit

    print_audit(audit, console)


@print_result.register
def _(card: Card, console: Console) -> None:
    from attnscope.render.terminal.card import print_card

    print_card(card, console)


@print_result.register
def _(cards: Cards, console: Console) -> None:
    from attnscope.render.terminal.card import print_cards

    print_cards(cards, console)


@print_result.register
def _(masks: AttentionMasks, console: Console) -> None:
    from attnscope.render.terminal.masks import print_masks

    print_masks(masks, console)


@print_result.register
def _(example: WorkedExample, console: Console) -> None:
    from attnscope.render.terminal.example import print_example

    print_example(example, console)


@print_result.register
def _(report: CommentReport, console: Console) -> None:
    print_line(console, Text(f"shape comments: {report.summary}"))
    for lie in report.lies:
        print_finding(console, Finding(lie.message.removeprefix(f"line {lie.line}: "), lie.line))
    print_notices(console, report.notices)


@print_result.register
def _(change: SourceDiff, console: Console) -> None:
    for line in printable_lines(change.diff).splitlines():
        console.print(Text(line), soft_wrap=True)
