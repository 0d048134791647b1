"""What results of every kind share: the values of a tensor in six numbers, checks and findings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Stats:
    """The values of a tensor in six numbers.

    `min`, `mean`, `max` and `std` (the population's: divided by n) are those of the finite
    values, and None where there is none; `nan` and `inf` count the others.
    """

    min: float | None
    mean: float | None
    max: float | None
    std: float | None
    nan: int
    inf: int


@dataclass(frozen=True)
class Check:
    """One comparison with a reference that attnscope did not write.

    `max_abs_diff` is the largest absolute difference between the two, and the check is `ok`
    when it is at most `tolerance`. Where the reference has no way to say what was computed,
    all three are None, and `note` says why. Where a difference may be rounding alone, `ok` is None.
    """

    name: str
    max_abs_diff: float | None
    tolerance: float | None
    ok: bool | None
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """Something worth knowing, such as what looks wrong; and the line of the source, if one does it."""

    message: str
    line: int | None = None


class Result:
    """What every result can do. Its views are loaded when they are first used."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON record that `--format json` prints: names, numbers, strings, lists and None."""
        from attnscope.render.records.records import record

        return record(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A table with a row for each line that `--format csv` prints, in plain numbers.

        Raises:
            OptionError: pandas is not installed.
        """
        from attnscope.render.records.frames import frame

        return frame(self)

    def save(self, path: str | Path, *, force: bool = False, **options: Any) -> None:
        """Write a file, of the kind that its suffix names.

        Args:
            path: `.safetensors`, `.npz` or `.pt` for tensors, `.png`, `.svg` or `.pdf` for a picture,
                `.html` for a page, `.json`, `.csv` or `.md` for the record. A result has those that its
                command has.
            force: replace a file that is there.
            options: of the picture or the page, as the command has them.

        Raises:
            FileError: there is such a file, or it cannot be written.
            OptionError: this result has no files of that kind.
        """
        from attnscope.render.files.save import save

        save(self, Path(path), force=force, **options)
