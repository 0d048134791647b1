"""The blocks that documents consist of: plain data, which every format renders in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.document.columns import Column

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.document.result import Finding


@dataclass(frozen=True)
class Heading:
    """A title, and the lines below it.

    Attributes:
        title: the title.
        about: the lines.
        more: lines that a terminal and Markdown show if a user asks for everything.
    """

    title: str
    about: list[str]
    more: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sentence:
    """A sentence.

    Attributes:
        text: the sentence, on one line.
        style: `bold`, `dim`, or empty.
        joint: separates the parts after which a terminal prefers to break the line; None: any words.
        apart: whether a terminal leaves a line free above it.
        item: whether Markdown shows it as the item of a list.
    """

    text: str
    style: str = ""
    joint: str | None = ", "
    apart: bool = False
    item: bool = False


@dataclass(frozen=True)
class Strip:
    """A character for each item, in order, such as the kinds of a model's layers; and what they mean."""

    marks: str
    legend: str


@dataclass(frozen=True)
class Table:
    """A table of columns, the most important first.

    Attributes:
        columns: for people and for programs; without rows, nothing is shown.
        instead: a sentence that stands for the table unless a user asks for everything.
        second: keys of columns that HTML, which leaves no columns out, shows in a second table.
        whole: whether a terminal that is too narrow splits the table, and leaves no column out.
    """

    columns: list[Column]
    instead: str | None = None
    second: frozenset[str] = frozenset()
    whole: bool = False


@dataclass(frozen=True)
class Verdict:
    """A sentence about what is wrong or right, and lines about why.

    Attributes:
        ok: whether the sign is a tick or a cross.
        sentence: the first line.
        lines: the others.
        apart: whether a terminal leaves a line free above it.
    """

    ok: bool
    sentence: str
    lines: list[str]
    apart: bool = True


@dataclass(frozen=True)
class Findings:
    """Observations about a result, with the lines of source that cause them."""

    findings: list[Finding]


@dataclass(frozen=True)
class Notices:
    """Sentences about how a result was computed, one a line."""

    lines: list[str]


class Drawing:
    """A picture, or another piece that one room alone shows, which draws itself in some formats."""

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print it on a terminal, or piped."""

    def html(self) -> str:
        """Return it as HTML, in which everything that comes from data is escaped."""
        return ""

    def markdown(self) -> list[str]:
        """Return it as paragraphs of Markdown."""
        return []


@dataclass(frozen=True)
class Plot:
    """A figure for papers and slides, which no other format shows.

    Attributes:
        draw: draws into an empty figure of matplotlib; it may have options, which `save` takes.
        missing: why there is nothing to draw; empty: there is something.
    """

    draw: Callable[..., None]
    missing: str = ""


@dataclass(frozen=True)
class Only:
    """A block that HTML alone shows, or that HTML alone leaves out."""

    block: Block
    html: bool


Block = Heading | Sentence | Strip | Table | Verdict | Findings | Notices | Drawing | Plot | Only


def shown_in(blocks: Iterable[Block], *, html: bool) -> Iterator[Block]:
    """Yield the blocks that HTML shows, or those of the other formats."""
    for each in blocks:
        if not isinstance(each, Only):
            yield each
        elif each.html is html:
            yield each.block
