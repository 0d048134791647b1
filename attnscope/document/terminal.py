"""Print documents on a terminal: tables have as many columns as fit."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from attnscope.base.spelling import either
from attnscope.base.text import printable
from attnscope.base.units import MISSING, counted
from attnscope.document.blocks import (
    Block,
    Drawing,
    Findings,
    Heading,
    Notices,
    Sentence,
    Strip,
    Table,
    Verdict,
    shown_in,
)
from attnscope.document.columns import Column, in_order
from attnscope.document.console import Terminal
from attnscope.document.result import Finding
from attnscope.document.styles import FINDING, GOOD, WRONG
from attnscope.document.text import (
    GAP,
    READABLE,
    break_expression,
    folded,
    joined,
    said_once,
    shorten,
    wrapped,
)

NARROWEST = 15  # the least width of a column of expressions


STRIP = 64
"""The most marks of a strip on a line."""


def print_document(blocks: Iterable[Block], console: Console, *, wide: bool = False) -> None:
    """Print a document: piped as wide as necessary, and never truncated.

    `wide` shows all columns of tables, in as many parts as the width requires.
    """
    for block in shown_in(blocks, html=False):
        match block:
            case Heading():
                print_heading([block.title, *block.about, *(block.more if wide else ())], console)
            case Sentence():
                if block.apart:
                    print_line(console, Text())
                print_parts(console, Text(printable(block.text), block.style), block.joint)
            case Strip():
                for start in range(0, len(block.marks), STRIP):
                    print_line(console, Text(block.marks[start : start + STRIP]))
                print_parts(console, Text(block.legend, "dim"), ", ")
            case Table(instead=str(sentence)) if not wide:
                print_line(console, Text(printable(sentence), "dim"))
            case Table():
                print_columns(block.columns, console, wide or block.whole)
            case Verdict():
                _print_verdict(block, console)
            case Findings():
                for finding in block.findings:
                    print_finding(console, finding)
            case Notices():
                print_notices(console, block.lines)
            case Drawing():
                block.print(console, wide=wide)


def rich_text(blocks: Iterable[Block], console: Console, options: ConsoleOptions) -> Text:
    """Render a document for a terminal as wide as the console of `rich.print`, with its colours."""
    terminal = Terminal(
        file=io.TextIOWrapper(io.BytesIO(), encoding=options.encoding),
        width=options.max_width,
        force_terminal=True,
        color_system=console.color_system,
        no_color=console.no_color,
        legacy_windows=False,
    )
    with terminal.capture() as captured:
        print_document(blocks, terminal)
    text = Text.from_ansi(captured.get(), no_wrap=True, overflow="ignore")
    text.rstrip()
    return text


def _print_verdict(block: Verdict, console: Console) -> None:
    if block.apart:
        print_line(console, Text())
    sign = ("✓ ", GOOD) if block.ok else ("✗ ", WRONG)
    print_hanging(console, Text.assemble(sign, printable(block.sentence)))
    for line in block.lines:
        print_hanging(console, Text.assemble("  ", printable(line)))


def print_heading(lines: list[str], console: Console) -> None:
    """Print a title, and the lines below it."""
    title, *about = map(printable, lines)
    print_parts(console, Text(title, style="bold"))
    for line in about:
        print_parts(console, Text(line))


def print_finding(console: Console, finding: Finding) -> None:
    """Print a finding: its line in colour, and the lines of its sentence below each other."""
    where = f"line {finding.line}: " if finding.line else ""
    print_hanging(console, Text.assemble(("! ", FINDING), (where, FINDING), printable(finding.message)))


def print_hanging(console: Console, text: Text) -> None:
    """Print a sentence, its lines below each other, right of the sign or spaces in front of it."""
    margin = " " * re.match(r"[!✗]? *", text.plain).end()  # type: ignore[union-attr]
    sign, sentence = text.divide([len(margin)])
    lines = sentence.wrap(console, console.width - len(margin)) if console.is_terminal else [sentence]
    for i, line in enumerate(lines):
        line.rstrip()
        console.print(Text.assemble(margin if i else sign, line), soft_wrap=True)


def print_notices(console: Console, notices: Iterable[str]) -> None:
    """Print notices, one line each."""
    for notice in notices:
        print_line(console, Text(printable(notice), style="dim"))


def print_line(console: Console, text: Text) -> None:
    """Print a line, wrapped at the width of a terminal; piped lines are not wrapped."""
    console.print(text, soft_wrap=not console.is_terminal)


def print_parts(console: Console, text: Text, joint: str | None = " · ") -> None:
    """Print parts that `joint` separates; a terminal's lines end after a part, if that is possible."""
    for line in folded(text, console.width, joint) if joint and console.is_terminal else [text]:
        print_line(console, line)


def print_columns(columns: list[Column], console: Console, wide: bool = False) -> None:
    """Print the columns that fit, or all of them, split into several tables if necessary.

    Sentences are printed below their rows; flexible ones only if they do not fit beside them. A line
    below counts the columns that are left out.
    """
    known = [each.printable() for each in columns if each.cells and not (each.wide and _is_empty(each))]
    shown = [each for each in known if wide or not each.wide]
    beside = [column for column in shown if not column.below]
    below = [column for column in shown if column.below]
    if not shown:
        return
    if all(column.flexible for column in below) and _fits(shown, console):
        beside, below = shown, []
    if _fits(beside, console):
        parts = [in_order(beside)]
    elif wide:
        parts = _split(in_order(beside), console.width)
    else:
        chosen = _choose(beside, console.width)
        more = _choose([_with_narrow_title(each) for each in beside], console.width)
        parts = [in_order(more if len(more) > len(chosen) else chosen)]
    left_out = len(known) - len({column.key for part in [*parts, below] for column in part})
    for part in parts:
        _print_table(part, console, below)
        below = []
    if left_out:
        how = either(command_line="--wide", python="to_pandas()")
        print_line(console, Text(f"{counted(left_out, 'more column')}: {how}", "dim"))


def _with_narrow_title(column: Column) -> Column:
    """Break a title of several words into lines if it is wider than the cells below it."""
    is_wider = cell_len(column.title) > max(map(cell_len, column.texts()), default=0)
    can_break = is_wider and "\n" not in column.title
    return replace(column, title=column.title.replace(" ", "\n")) if can_break else column


def _is_empty(column: Column) -> bool:
    return not any(text.strip(MISSING) for text in column.texts())


def _fits(columns: list[Column], console: Console) -> bool:
    return not console.is_terminal or _total(columns) <= console.width


def _choose(columns: list[Column], width: int) -> list[Column]:
    """Choose as many columns as fit, beginning with the most important."""
    excess = max(0, _total([column for column in columns if column.essential]) - width)
    columns = [_narrowed(column, column.width - excess) for column in columns]
    room = width + GAP
    chosen: list[Column] = []
    for column in columns:
        needed = GAP + (min(column.width, NARROWEST) if column.grows else column.width)
        if needed <= room or not chosen:  # the first column always stays
            chosen.append(column)
            room -= needed
    fitted = [_fitted(each, min(each.width, NARROWEST) + room) for each in chosen]
    while _total(fitted) > width and len(fitted) > 1:  # a word is longer than its column
        fitted.pop()
    return fitted


def _split(columns: list[Column], width: int) -> list[list[Column]]:
    """Split columns into parts that fit; each part begins with the columns that identify its rows."""
    leading = 1 + sum(column.lead for column in columns)
    lead, others = columns[:leading], columns[leading:]
    least = max(NARROWEST, width // 4)
    parts = [lead]
    for column in others:
        column = _narrowed(column, width - _total(lead) - GAP)
        narrow = [_fitted(each, least, elide=False) for each in [*parts[-1], column]]
        if _total(narrow) > width:
            parts.append(lead)
        parts[-1] = [*parts[-1], column]
    return [_filled(part, width, least) for part in parts]


def _filled(columns: list[Column], width: int, least: int) -> list[Column]:
    """Break flexible columns into lines of `least`, or of more where the other columns leave room."""
    narrow = [_fitted(column, least, elide=False) for column in columns]
    free = width - _total(narrow)
    return [
        _fitted(column, each.width + free, elide=False)
        for column, each in zip(columns, narrow, strict=True)
    ]


def _narrowed(column: Column, width: int) -> Column:
    """Break the names of axes into lines of at most `width`, if there are several."""
    if not (column.essential and column.flexible) or column.width <= width:
        return column
    cells = []
    for cell in column.cells:
        pieces: list[tuple[str, str]] = []
        for text, style in cell:
            line = "".join(text for text, _ in pieces).split("\n")[-1]
            if pieces:
                fits = cell_len(line + column.joint + text) <= width
                pieces.append((column.joint if fits else "\n", ""))
            pieces.append((text, style))
        cells.append(pieces)
    return replace(column, cells=cells, joint="")


def _fitted(column: Column, width: int, *, elide: bool = True) -> Column:
    """Break the cells of a flexible column into lines of at most `width`, and shorten them to fit."""
    if not column.grows:
        return column
    cells = []
    for (text, style), *_ in column.cells:
        shown = shorten(text, width) if elide else text
        cells.append([("\n".join(break_expression(shown, width)), style)])
    return replace(column, cells=cells)


def _total(columns: list[Column]) -> int:
    return sum(column.width + GAP for column in columns) - GAP


def _print_table(columns: list[Column], console: Console, below: list[Column]) -> None:
    """Print columns side by side, and below each row the sentences in `below`."""
    widths = [column.width for column in columns]
    room = min(console.width, max(_total(columns), READABLE)) if console.is_terminal else None

    def side_by_side(cells: Iterable[Text]) -> Iterator[Text]:
        parts = [cell.split("\n", allow_blank=True) for cell in cells]
        for line in zip_longest(*parts, fillvalue=Text()):
            whole = Text()
            for column, width, part in zip(columns, widths, line, strict=True):
                free = Text(" " * (width - part.cell_len))
                whole.append_text(free + part if column.right else part + free).append(" " * GAP)
            whole.rstrip()
            yield whole

    lines = [Text(), *side_by_side(Text(column.title, "dim") for column in columns)]
    lines.append(Text("─" * _total(columns)))
    names = [name.strip() for name in columns[0].texts()]
    sentences = [
        column.texts() if column.flexible else said_once(names, column.texts()) for column in below
    ]
    for i in range(len(columns[0].cells)):
        lines += side_by_side(joined(column.cells[i], column.joint) for column in columns)
        for column, said in zip(below, sentences, strict=True):
            sentence, style = said[i], column.cells[i][0][1]
            lines += [Text(" " * GAP + line, style) for line in wrapped(sentence, room and room - GAP)]
    for line in lines:
        console.print(line, soft_wrap=True)  # every line fits; piped lines may be longer
