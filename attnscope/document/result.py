"""Parts common to all results: statistics of a tensor's values, checks, findings, and the base class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.base.arguments import check_methods
from attnscope.base.errors import PartError, no_such_part
from attnscope.base.spelling import unnamed
from attnscope.base.text import described, printable, shortened
from attnscope.base.units import counted, listed, number_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas
    from rich.console import Console, ConsoleOptions, RenderableType

    from attnscope.document.blocks import Block
    from attnscope.document.columns import Column
    from attnscope.document.tensor_file import Tensors


class Part:
    """Base class of results and of what they consist of. Its `repr` is one line.

    Public methods check their arguments, as the public functions do.
    """

    def __init_subclass__(cls) -> None:
        check_methods(cls)

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


def of_room(kind: type, name: str, module: str = "document") -> Any:
    """Return what a module of the room of a class defines, such as `document` of `masks/document.py`.

    What shows results imports them, so results do not import what shows them. The room is the folder of
    the class, or the next one around it that has the module.
    """
    return getattr(import_module(f"{_room(kind, module)}.{module}"), name)


@cache
def _room(kind: type, module: str) -> str | None:
    """Return the folder nearest to a class that has a module; None if none has it."""
    folder = kind.__module__.rpartition(".")[0]
    while folder != "attnscope" and not find_spec(f"{folder}.{module}"):
        folder = folder.rpartition(".")[0]
    return None if folder == "attnscope" else folder


class Display(Part):
    """Base class of what `rich.print` and notebooks show in full. Views are imported when used."""

    def document(self) -> list[Block]:
        """Build the blocks that every format renders: those of `document.py` in its room."""
        rooms = (each for each in type(self).__mro__ if each.__module__.startswith("attnscope."))
        shown = next((each for each in rooms if _room(each, "document")), None)
        if shown is None:
            raise NotImplementedError
        return of_room(shown, "document")(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield what the command prints, for `rich.print`."""
        yield of_room(Display, "rich_text", "terminal")(self.document(), console, options)

    def _repr_html_(self) -> str:
        """Render the result as HTML for a notebook."""
        return of_room(Display, "styled_document", "html")(self.document())

    def page(self) -> str:
        """Return a page, which `--page` writes: what a notebook shows, unless a page shows more."""
        return of_room(Display, "document", "page.document")(repr(self), self._repr_html_())


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
        return of_room(Result, "first_table", "csv")(self.document())

    def to_json(self) -> str:
        """Return the JSON document that `--format json` prints."""
        return self.json_of(self.to_dict())

    def json_of(self, record: dict[str, Any]) -> str:
        """Return a record of this result as a JSON document."""
        from attnscope.document.json import json_text

        return json_text(record)

    def csv(self) -> Iterator[str]:
        """Yield the lines that `--format csv` prints, some at a time."""
        yield of_room(Result, "csv_table", "csv")(self.table())

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with a row for each line that `--format csv` prints, in plain numbers.

        Raises:
            OptionError: pandas is not installed.
        """
        of_room(Result, "check_pandas", "csv")()
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
        with unnamed("save", "page", "plot"):
            of_room(Result, "save", "save")(self, Path(path), force=force, **options)


class NamedTensors(partial[Any]):
    """The method `tensors` of a result, which takes a name as well: `result.tensors["W_Q"]`."""

    def __getitem__(self, name: object) -> Any:
        found = self()
        if not isinstance(name, str):
            raise PartError(f"{described(name)} does not name a tensor.", hint=next(iter(found), None))
        if name not in found:
            raise no_such_part(name, found, "these tensors")
        return found[name]


class TensorResult(Result):
    """Base class of results that consist of tensors, which `save` writes by name."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if isfunction(method := vars(cls).get("tensors")):
            cls.tensors = property(partial(NamedTensors, method), doc=method.__doc__)  # type: ignore[assignment,method-assign]

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
