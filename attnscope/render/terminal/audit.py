"""Print an audit: a row for each property, and the evidence for those that are broken."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.render.audit import columns, evidence_lines, heading
from attnscope.render.colours import Scale
from attnscope.render.influence_picture import Frame, picture
from attnscope.render.styles import WRONG
from attnscope.render.terminal.heatmap import PIPED
from attnscope.render.terminal.table import (
    print_columns,
    print_hanging,
    print_heading,
    print_line,
    print_notices,
)
from attnscope.results.audit import Audit, Influence
from attnscope.text import printable

MOST = 64
"""The most rows of a picture on a terminal."""

INDENT = 2


def print_audit(result: Audit, console: Console, *, wide: bool = False) -> None:
    """Print an audit.

    Args:
        result: the audit.
        console: the console; piped output is as wide as necessary.
        wide: whether to show all columns.
    """
    print_heading(heading(result), console)
    print_columns(columns(result), console, wide)
    for each in result.broken:
        print_line(console, Text())
        for index, line in enumerate(evidence_lines(each)):
            sign = ("✗ ", WRONG) if index == 0 else ("  ", "")
            print_hanging(console, Text.assemble(sign, printable(line)))
        if each.evidence is not None and each.evidence.influence is not None:
            _print_influence(each.evidence.influence, console)
    print_notices(console, result.notices)


def _print_influence(influence: Influence, console: Console) -> None:
    """Print which positions influence which, indented below the evidence."""
    terminal = console.is_terminal
    width = console.width if terminal else max(console.width, PIPED)
    scale = Scale.up_to(console, 1.0)
    parts, sentences = picture(influence, Frame(width - INDENT, MOST if terminal else PIPED, scale))
    for title, lines in parts:
        print_hanging(console, Text(" " * INDENT) + Text(printable(title), "dim"))
        for line in lines:
            if not scale.ramp:
                line.rstrip()
            console.print(Text(" " * INDENT) + line, soft_wrap=True)
    for sentence in sentences:
        print_hanging(console, Text(" " * INDENT) + sentence)
