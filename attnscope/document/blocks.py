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
    """A title, and the lines below it."""

    title: str
    about: list[str]  #: the lines
    #: lines that a terminal and Markdown show if a user asks for everything
    more: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sentence:
    """A sentence."""

    text: str  #: the sentence, on one line
    style: str = ""  #: `bold`, `dim`, or empty
    #: separates the parts after which a terminal prefers to break the line; None: any words
    joint: str | None = ", "
    apart: bool = False  #: whether a terminal leaves a line free above it
    item: bool = False  #: whether Markdown shows it as the item of a list


@dataclass(frozen=True)
class Strip:
    """A character for each item, in order, such as the kinds of a model's layers; and what they mean."""

    marks: str
    legend: str


@dataclass(frozen=True)
class Table:
    """A table of columns, the most important first."""

    columns: list[Column]  #: for people and for programs; without rows, nothing is shown
    instead: str | None = None  #: a sentence that stands for the table unless a user asks for everything
    #: keys of columns that HTML, which leaves no columns out, shows in a second table
    second: frozenset[str] = frozenset()
    #: whether a terminal that is too narrow splits the table, and leaves no column out
    whole: bool = False


@dataclass(frozen=True)
class Verdict:
    """A sentence about what is wrong or right, and lines about why."""

    ok: bool  #: whether the sign is a tick or a cross
    sentence: str  #: the first line
    lines: list[str]  #: the others
    apart: bool = True  #: whether a terminal leaves a line free above it


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
    """A figure for papers and slides, which no other format shows."""

    #: draws into an empty figure of matplotlib; it may have options, which `save` takes
    draw: Callable[..., None]
    missing: str = ""  #: why there is nothing to draw; empty: there is something


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
