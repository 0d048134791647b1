"""The columns of tables, for people and for programs.

Every format of a table shares its columns, so that all contain the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnscope.base.text import LEFT_TO_RIGHT_MARK, printable
from attnscope.base.units import MISSING, number_text
from attnscope.document.result import UNMEASURED, Check, Stats
from attnscope.document.styles import GOOD, WRONG


@dataclass
class Column:
    """One column of a table."""

    title: str  #: its heading for people
    key: str  #: its heading for programs
    #: its content for people; a cell consists of pieces of text, each with a style, joined by `joint`.
    #: Empty: not for people.
    cells: list[list[tuple[str, str]]]
    raw: list[Any]  #: its content for programs. Empty: not for programs.
    right: bool = False  #: aligned at the right, as numbers are
    wide: bool = False  #: shown only if all columns are requested
    essential: bool = False  #: identifies its row, and so is the last to be left out
    #: can be broken into lines: names of axes; or expressions and sentences, which can be shortened,
    #: too
    flexible: bool = False
    lead: bool = False  #: stands at the left, beside the name, in each part of a table that is split
    #: contains sentences, printed below their rows; if flexible, beside them if they fit
    below: bool = False
    joint: str = " "

    def texts(self) -> list[str]:
        """Return the cells as plain text."""
        return [self.joint.join(text for text, _ in cell) for cell in self.cells]

    @property
    def grows(self) -> bool:
        """Whether it takes the room that others leave, and is cut if there is none."""
        return self.flexible and not self.essential

    @property
    def width(self) -> int:
        """The width in characters."""
        from rich.cells import cell_len

        lines = [line for text in [self.title, *self.texts()] for line in text.split("\n")]
        return max(map(cell_len, lines))

    def printable(self) -> Column:
        """Escape unprintable characters, so that each cell is one line: names may contain anything."""
        cells = [
            [(printable(text, LEFT_TO_RIGHT_MARK), style) for text, style in cell] for cell in self.cells
        ]
        return replace(self, cells=cells)


ORDER = (
    *("name", "how", "tensor", "dims", "shape", "axis", "start", "stop", "head_shape"),
    *("dtype", "memory", "bytes", "fresh_bytes", "flops", "view_of", "line"),
    *("max_abs_diff", "tolerance", "ok", "times"),
)
"""The order of columns from left to right, by key; other columns follow in their own order."""


def in_order(columns: list[Column]) -> list[Column]:
    """Sort columns from left to right."""
    place = {key: i for i, key in enumerate(ORDER)}
    return sorted(columns, key=lambda each: (not each.lead, place.get(each.key, len(place))))


def shown_columns(columns: Iterable[Column], wide: bool = False) -> list[Column]:
    """Return the columns for people, from left to right; `wide`: with those shown on request only."""
    return in_order([each.printable() for each in columns if each.cells and (wide or not each.wide)])


def check_columns(checks: list[Check]) -> list[Column]:
    """Return the columns of comparisons with a reference."""
    verdicts = {
        True: ("holds", GOOD),
        False: ("FAILS", WRONG),
        None: ("undecided", "dim"),
    }

    def size(title: str, key: str) -> Column:
        raw = [getattr(check, key) for check in checks]
        cells = [[(MISSING, "dim") if x is None else (f"{x:.2g}", "")] for x in raw]
        return Column(title, key, cells, raw, right=True, wide=all(x is None for x in raw))

    columns = [
        Column("check", "name", [[(c.name, "bold")] for c in checks], [c.name for c in checks]),
        Column("verdict", "ok", [[verdicts[c.ok]] for c in checks], [c.ok for c in checks]),
        size("largest difference", "max_abs_diff"),
        size("tolerance", "tolerance"),
    ]
    if any(check.note for check in checks):
        raw = [check.note for check in checks]
        columns.append(
            Column("note", "note", [[(note, "dim")] for note in raw], raw, flexible=True, below=True)
        )
    return columns


def stats_columns(stats: Sequence[Stats | None]) -> list[Column]:
    """Return six columns of statistics, or none at all; NaN and inf are for `wide` if all are 0."""
    if not any(stats):
        return []
    known = [each or UNMEASURED for each in stats]
    columns = []
    for key in ("min", "mean", "max", "std"):
        raw = [getattr(each, key) for each in known]
        columns.append(Column(key, key, [[(number_text(x), "")] for x in raw], raw, right=True))
    for key, title in (("nan", "NaN"), ("inf", "inf")):
        raw = [getattr(each, key) for each in known]
        cells = [[(str(x), WRONG if x else "dim")] for x in raw]
        columns.append(Column(title, key, cells, raw, right=True, wide=not any(raw)))
    return columns
