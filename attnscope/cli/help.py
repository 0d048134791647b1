"""Print the help of a command: its options in groups, in two columns, and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDEST = 100
"""The most columns of a line, which is easier to read than a wider one."""
LEFT_COLUMN = 26
"""The most columns of the left column."""


@dataclass(frozen=True)
class HelpLine:
    """A line of the help.

    Attributes:
        name: an option, an argument or a command.
        help: a sentence on it.
        value: the placeholder of its value.
        note: its default, or that it is required.
    """

    name: str
    help: str
    value: str = ""
    note: str = ""


@dataclass(frozen=True)
class Help:
    """The help of a command.

    Attributes:
        usage: the command line in general.
        purpose: a sentence on what the command does.
        sections: entries by heading.
        examples: command lines, each with what it shows.
        more: a line about further help.
    """

    usage: str
    purpose: str
    sections: Mapping[str, Sequence[HelpLine]]
    examples: Mapping[str, str] = field(default_factory=dict)
    more: str | None = None


def print_help(help: Help, console: Console) -> None:
    """Print the help of a command."""
    width = min(console.width, WIDEST)
    console.print(Text.assemble(("Usage: ", "bold"), help.usage), width=width)
    console.print()
    console.print(Text(help.purpose), width=width)
    left = {entry: _left(entry) for entries in help.sections.values() for entry in entries}
    options = [len(text) for entry, text in left.items() if entry.name.startswith("-")]
    for heading, entries in help.sections.items():
        is_options = entries[0].name.startswith("-")
        widest = max(options if is_options else [len(left[entry]) for entry in entries])
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=min(widest, LEFT_COLUMN, width // 2 - 4))
        table.add_column()
        for entry in entries:
            note = (f" [{entry.note}]", "dim") if entry.note else ""
            table.add_row(left[entry], Text.assemble(entry.help, note))
        _print_section(heading, table, console, width)
    if help.examples:
        lines = [
            Text.assemble(f"$ {command}", "\n  ", (what, "dim"))
            for command, what in help.examples.items()
        ]
        _print_section("Examples", Text("\n").join(lines), console, width)
    if help.more:
        console.print()
        console.print(Text(help.more), width=width)


def _left(entry: HelpLine) -> Text:
    text = Text(entry.name, "bold cyan")
    return text.append(" ").append(entry.value, "yellow") if entry.value else text


def _print_section(heading: str, content: Table | Text, console: Console, width: int) -> None:
    console.print()
    console.print(Text(heading, "bold"))
    console.print(Padding(content, (0, 0, 0, 2)), width=width)
