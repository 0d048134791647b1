"""Print an audit: a row for each property, and the evidence for those that are broken."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnscope.render.audit import LEGEND, columns, evidence_lines, heading, influence_rows
from attnscope.render.styles import WRONG
from attnscope.render.terminal.table import (
    print_columns,
    print_hanging,
    print_heading,
    print_line,
    print_notices,
)
from attnscope.results.audit import Audit, Influence
from attnscope.text import printable


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
    """Print which positions influence which, if the terminal is wide enough."""
    rows = list(influence_rows(influence))
    wide = 2 * len(rows[0]) + 2 <= console.width
    if len(rows[0]) + 2 > console.width:
        print_line(console, Text("  too many positions to draw here: --plot FILE", "dim"))
        return
    print_line(console, Text(f"  {influence.of}: a row for each position of the output", "dim"))
    for row in rows:
        text = Text("  ")
        for mark, style in row:
            text.append(mark + " " * wide, style)
        print_line(console, text)
    print_hanging(console, Text.assemble("  ", (LEGEND, "dim")))
