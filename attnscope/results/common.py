"""Parts common to all results: statistics of a tensor's values, checks, findings, and the base class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas
    from rich.console import Console, ConsoleOptions, RenderableType


class Part:
    """Base class of results and of what they consist of. Its `repr` is one line."""

    def __repr__(self) -> str:
        from attnscope.render.one_line import one_line

        return one_line(self)


@dataclass(frozen=True, repr=False)
class Stats(Part):
    """Six statistics of a tensor's values.

    `min`, `mean`, `max` and `std` (of the population: divided by n) are taken over the finite
    values, and are None if there are none; `nan` and `inf` count the other values.
    """

    min: float | None
    mean: float | None
    max: float | None
    std: float | None
    nan: int
    inf: int


UNMEASURED = Stats(None, None, None, None, 0, 0)
"""The statistics of values that nobody looked at."""


@dataclass(frozen=True, repr=False)
class Check(Part):
    """One comparison with a reference that is not part of attnscope.

    `max_abs_diff` is the largest absolute difference between the two, and the check is `ok`
    if it is at most `tolerance`. If the reference cannot express what was computed, all three
    are None, and `note` gives the reason. If rounding alone could explain a difference, `ok` is None.
    """

    name: str
    max_abs_diff: float | None
    tolerance: float | None
    ok: bool | None
    note: str = ""

    @classmethod
    def within(cls, name: str, difference: float, tolerance: float, note: str = "") -> Check:
        """Return the check that a difference is at most the tolerance; NaN is not."""
        return cls(name, difference, tolerance, difference <= tolerance, note)


@dataclass(frozen=True)
class Finding:
    """An observation about a result, usually a likely mistake, and the source line that causes it."""

    message: str
    line: int | None = None


class Display(Part):
    """Base class of what `rich.print` and notebooks show in full. Views are imported when used."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield what the command prints, for `rich.print`."""
        from attnscope.render.terminal.result import rich_text

        yield rich_text(self, console, options)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from attnscope.render.notebook.html import html

        return html(self)


class Result(Display):
    """Base class of the results of commands."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record that `--format json` prints: names, numbers, strings, lists and None."""
        from attnscope.render.records.records import record

        return record(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with a row for each line that `--format csv` prints, in plain numbers.

        Raises:
            OptionError: pandas is not installed.
        """
        from attnscope.render.records.frames import frame

        return frame(self)

    def save(self, path: str | Path, *, force: bool = False, **options: Any) -> None:
        """Write the result to a file; the suffix decides the format.

        Args:
            path: `.safetensors`, `.npz` or `.pt` for tensors, `.png`, `.svg` or `.pdf` for a figure,
                `.html` for a page, `.json`, `.csv` or `.md` for the record. A result supports the
                formats that its command supports.
            force: overwrite an existing file.
            options: options of the figure or the page, as in the command.

        Raises:
            FileError: the file exists, or cannot be written.
            OptionError: this result cannot be saved in that format.
        """
        from attnscope.render.files.save import save

        save(self, Path(path), force=force, **options)
