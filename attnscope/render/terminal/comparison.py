"""Print a comparison: the verdict, a row for each tensor, and where the two part."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.render.comparison import (
    after,
    columns,
    divergence_lines,
    gradient_columns,
    heading,
    weight_columns,
)
from attnscope.render.styles import GOOD, WRONG
from attnscope.render.terminal.table import (
    print_columns,
    print_hanging,
    print_heading,
    print_line,
    print_notices,
)
from attnscope.results.comparison import Comparison
from attnscope.text import printable


def print_comparison(result: Comparison, console: Console, *, wide: bool = False) -> None:
    """Print a comparison.

    Args:
        result: the comparison.
        console: the console; piped output is as wide as necessary.
        wide: whether to show all columns, and which weights were copied.
    """
    print_heading(heading(result), console)
    if result.weights and wide:
        print_columns(weight_columns(result.weights), console, wide)
    elif result.weights:
        names = ", ".join(dict.fromkeys(f"{each.a} = {each.b}" for each in result.weights))
        print_line(console, Text(f"the same weights: {printable(names)}", "dim"))
    print_columns(columns(result), console, wide)
    for each in result.divergences or []:
        print_line(console, Text())
        for sign, text in divergence_lines(result, each):
            style = WRONG if sign.strip() else ""
            print_hanging(console, Text.assemble((sign, style), printable(text)))
    if (sentence := after(result)) is not None:
        print_hanging(
            console,
            Text.assemble(
                ("✓ " if result.explained else "✗ ", GOOD if result.explained else WRONG), sentence
            ),
        )
    if result.gradients is not None:
        print_columns(gradient_columns(result.gradients), console, wide)
    print_notices(console, result.notices)
