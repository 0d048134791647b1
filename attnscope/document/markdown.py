"""Documents as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attnscope.base.text import printable
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
from attnscope.document.columns import Column, shown_columns


def markdown_document(blocks: Iterable[Block], *, wide: bool = False) -> str:
    """Return a document as Markdown; `wide` shows all columns of its tables."""
    return "\n\n".join(part for block in shown_in(blocks, html=False) for part in _parts(block, wide))


def _parts(block: Block, wide: bool) -> Iterator[str]:
    """Yield the paragraphs of a block."""
    match block:
        case Heading():
            yield f"**{printable(block.title)}**"
            yield from map(printable, [*block.about, *(block.more if wide else ())])
        case Sentence():
            yield "- " * block.item + printable(block.text)
        case Strip():
            yield f"```\n{block.marks}\n{block.legend}\n```"
        case Table(instead=str(sentence)) if not wide:
            yield printable(sentence)
        case Table(columns):
            if any(each.cells for each in columns):
                yield markdown_table(columns, wide)
        case Verdict():
            first, *others = map(printable, [block.sentence, *block.lines])
            yield "\n".join([f"- {first}", *(f"  - {line}" for line in others)])
        case Findings():
            for each in block.findings:
                yield f"- {printable(each.text)}"
        case Notices():
            yield from map(printable, block.lines)
        case Drawing():
            yield from block.markdown()


def markdown_table(columns: list[Column], wide: bool = False) -> str:
    """Return a Markdown table of the columns that a table shows, or of all with `wide`."""
    shown = shown_columns(columns, wide)

    def row(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "\\<") for cell in cells) + " |"

    lines = [row([column.title for column in shown])]
    lines.append(row(["--:" if column.right else ":--" for column in shown]))
    for cells in zip(*(column.texts() for column in shown), strict=True):
        lines.append(row(list(cells)))
    return "\n".join(lines)
