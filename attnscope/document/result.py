"""Parts common to all results: statistics of a tensor's values, checks, findings, and the base class."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.errors import AttnscopeError
from attnscope.text import printable, shortened
from attnscope.units import counted, listed, number_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas
    from rich.console import Console, ConsoleOptions, RenderableType

    from attnscope.document.blocks import Block
    from attnscope.document.columns import Column
    from attnscope.document.tensor_file import Tensors


class Part:
    """Base class of results and of what they consist of. Its `repr` is one line."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({printable(self.summary)})"

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        raise NotImplementedError


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

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        numbers = {name: getattr(self, name) for name in ("min", "mean", "max", "std")}
        parts = [f"{name} {number_text(number)}" for name, number in numbers.items()]
        parts += [f"{self.nan} NaN"] if self.nan else []
        parts += [f"{self.inf} inf"] if self.inf else []
        return listed(parts)


UNMEASURED = Stats(None, None, None, None, 0, 0)
"""The statistics of a tensor whose values were not read."""


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

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        verdict = {True: "holds", False: "FAILS", None: "undecided"}[self.ok]
        size = self.max_abs_diff
        parts = [verdict, "" if size is None else f"largest difference {size:.2g}"]
        parts += [] if self.tolerance is None else [f"tolerance {self.tolerance:.2g}"]
        return f"{self.name}: {listed([*parts, shortened(self.note)])}"

    @classmethod
    def within(cls, name: str, difference: float, tolerance: float, note: str = "") -> Check:
        """Return the check that a difference is at most the tolerance; NaN is not."""
        return cls(name, difference, tolerance, difference <= tolerance, note)


def held_of(checks: list[Check] | None) -> list[str]:
    """Say how many checks hold, if any were made."""
    if not checks:
        return []
    held = sum(check.ok is True for check in checks)
    return [f"{held} of {counted(len(checks), 'check')} hold" + ("s" if len(checks) == 1 else "")]


def named(model: str, stack: str) -> str:
    """Return a model's name, followed by the stack's name if the model has several stacks."""
    return model if stack == "self" else f"{model} · {stack} attention"


@dataclass(frozen=True)
class Finding:
    """An observation about a result, usually a likely mistake, and the source line that causes it."""

    message: str
    line: int | None = None

    @property
    def text(self) -> str:
        """The line, if it is known, and the message."""
        return f"line {self.line}: {self.message}" if self.line else self.message


class Display(Part):
    """Base class of what `rich.print` and notebooks show in full. Views are imported when used."""

    def document(self) -> list[Block]:
        """Build the blocks that every format renders."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield what the command prints, for `rich.print`."""
        from attnscope.document.terminal import rich_text

        yield rich_text(self.document(), console, options)

    def _repr_html_(self) -> str:
        """Render the result as HTML for a notebook."""
        from attnscope.document.html import html_document, with_style

        return with_style(html_document(self.document()))

    def page(self) -> str:
        """Return a page, which `--page` writes: what a notebook shows, unless a page shows more."""
        from attnscope.document.page.document import document

        return document(repr(self), self._repr_html_())


class Result(Display):
    """Base class of the results of commands."""

    schema: ClassVar[str]
    """The kind of its record: `card` for `attnscope.card/1`."""

    texts: ClassVar[tuple[str, ...]] = (".json", ".csv", ".md")
    """The suffixes of the files that hold it as text."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record that `--format json` prints: names, numbers, strings, lists and None."""
        from attnscope.document.json import plain

        return {"schema": f"attnscope.{self.schema}/1", **plain(self)}

    def table(self) -> list[Column]:
        """Return the columns that CSV and pandas contain: those of the first table of its document."""
        from attnscope.document.csv import first_table

        return first_table(self.document())

    def to_json(self) -> str:
        """Return the JSON document that `--format json` prints."""
        return self.json_of(self.to_dict())

    def json_of(self, record: dict[str, Any]) -> str:
        """Return a record of this result as a JSON document."""
        from attnscope.document.json import json_text

        return json_text(record)

    def csv(self) -> Iterator[str]:
        """Yield the lines that `--format csv` prints, some at a time."""
        from attnscope.document.csv import csv_table

        yield csv_table(self.table())

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with a row for each line that `--format csv` prints, in plain numbers.

        Raises:
            OptionError: pandas is not installed.
        """
        from attnscope.document.csv import check_pandas

        check_pandas()
        import pandas

        return pandas.DataFrame({column.key: column.raw for column in self.table() if column.raw})

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
        from attnscope.document.save import save

        try:
            save(self, Path(path), force=force, **options)
        except AttnscopeError as error:
            hint = error.hint and re.sub(r"--(save|page|plot) ", "", error.hint)
            error.say(error.message, hint and hint.replace("--force", "force=True"))
            raise


class TensorResult(Result):
    """Base class of results that consist of tensors, which `save` writes by name."""

    more_arrays: ClassVar[tuple[str, ...]] = ()
    """The suffixes of files that hold its tensors, beside those that hold any."""

    def tensors(self) -> Tensors:
        """Return its tensors by name, as stored in a file."""
        raise NotImplementedError

    def metadata(self) -> dict[str, str] | None:
        """Describe the tensors for a `.safetensors` file."""
        return None

    def save_tensors(self, path: Path, *, force: bool = False) -> int:
        """Write its tensors to a file; return the size in bytes."""
        from attnscope.document.tensor_file import save

        return save(path, self.tensors(), force=force, metadata=self.metadata())
