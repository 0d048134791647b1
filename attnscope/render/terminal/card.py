"""Print a card: the strip of layers, and tables of their anatomy, the cache, and the weights."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.render import cards as side_by_side
from attnscope.render.card import (
    cache_line,
    check_columns,
    columns,
    curve_columns,
    dtypes_line,
    fit_lines,
    heading,
    parameter_check_columns,
    reserve_columns,
    strip,
    weight_columns,
    work_columns,
    work_lines,
)
from attnscope.render.terminal.table import (
    print_columns,
    print_finding,
    print_heading,
    print_line,
    print_notices,
    print_parts,
)
from attnscope.results.card import Card
from attnscope.results.cards import Cards


def print_card(card: Card, console: Console, *, wide: bool = False) -> None:
    """Print a card.

    Args:
        card: the card.
        console: the console; tables fit its width.
        wide: whether to show all columns of the tables.
    """
    print_heading(heading(card), console)
    marks = strip(card)
    for start in range(0, len(marks[0]) if marks else 0, 64):
        print_line(console, Text(marks[0][start : start + 64]))
    if marks:
        print_parts(console, Text(marks[1], "dim"), ", ")
    print_columns(columns(card), console, wide)
    print_line(console, Text())
    print_parts(console, Text(cache_line(card), "bold"), ", ")
    if card.curve:
        print_columns(curve_columns(card), console, wide)
    if card.reserved:
        print_columns(reserve_columns(card), console, wide)
    if card.weights is not None:
        print_columns(weight_columns(card), console, wide)
        print_line(console, Text(dtypes_line(card) or "", "dim"))
    if card.work is not None:
        print_columns(work_columns(card), console, wide)
    for line in work_lines(card):
        print_parts(console, Text(line, "dim"), ", ")
    if card.checks:
        print_columns(check_columns(card), console, wide)
    if card.parameter_checks:
        print_columns(parameter_check_columns(card), console, wide)
    lines = fit_lines(card)
    if lines:
        print_line(console, Text())
    for line in lines:
        print_parts(console, Text(line), ", ")
    for finding in card.findings:
        print_finding(console, finding)
    print_notices(console, card.notices)


def print_cards(cards: Cards, console: Console, *, wide: bool = False) -> None:
    """Print a row for each of several models; arguments as for `print_card`."""
    print_heading(side_by_side.heading(cards), console)
    print_columns(side_by_side.columns(cards), console, wide)
    print_notices(console, cards.notices)
