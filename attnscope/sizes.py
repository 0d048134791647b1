"""Sizes that options and files give together: each axis has one, and everybody must agree on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.contracts import DTYPES, check_sizes
from attnscope.errors import OptionError, SizeError

if TYPE_CHECKING:
    from attnscope.tensor_files import TensorFile


@dataclass(frozen=True)
class Said:
    """A size, and the sentence in which it was said: `--dk says that d_K is 64`."""

    size: int
    sentence: str


class Sizes:
    """The size of each axis, as far as options and files say it.

    Args:
        options: the sizes that were asked for, by axis; None where nothing was.
        flags: what the options are called, by axis.

    Raises:
        SizeError: a size is not a positive whole number.
    """

    def __init__(self, options: Mapping[str, int | None], flags: Mapping[str, str]) -> None:
        given = {axis: size for axis, size in options.items() if size is not None}
        check_sizes(given)
        self._said = {
            axis: Said(size, f"{flags[axis]} says that {axis} is {size}") for axis, size in given.items()
        }

    def __contains__(self, axis: str) -> bool:
        return axis in self._said

    def __getitem__(self, axis: str) -> int:
        return self._said[axis].size

    def get(self, axis: str, default: int) -> int:
        """An axis's size, or a default one where nobody has said any."""
        return self._said[axis].size if axis in self._said else default

    def learn(self, axis: str, size: int, sentence: str, *, note: str = "") -> None:
        """Learn one size, in the sentence that says it.

        Raises:
            SizeError: others say something else; `note` is added to the message.
        """
        old = self._said.setdefault(axis, Said(size, sentence))
        if old.size != size:
            raise SizeError(f"{sentence}, but {old.sentence}.", hint=note or None)

    def suppose(self, axis: str, size: int) -> None:
        """Take a size for granted where nobody has said one."""
        self._said.setdefault(axis, Said(size, f"{axis} is {size} by default"))

    def equate(self, axis: str, other: str) -> None:
        """Two axes have the same size, as far as it is known.

        Raises:
            SizeError: they have not.
        """
        if axis in self and other in self and self[axis] != self[other]:
            raise SizeError(f"{self._said[axis].sentence}, but {self._said[other].sentence}.")
        known = self._said.get(axis) or self._said.get(other)
        if known:
            self._said[axis] = self._said[other] = known

    def take(self, file: TensorFile, dims: str, *, note: str = "") -> None:
        """Learn the sizes of a tensor's axes.

        Args:
            file: the tensor.
            dims: its axes' names. Of `n_head·d_K` one must be known for the other to be learnt.
            note: what to do where it does not fit.

        Raises:
            SizeError: its number of axes is another, or a size is not what others say.
        """
        axes = dims.split()
        if len(axes) != len(file.shape):
            raise SizeError(
                f"{called(file)} is {shape_of(file)}, but needs {len(axes)}"
                f" {'axis' if len(axes) == 1 else 'axes'}: {' '.join(axes)}.",
                hint=note or None,
            )
        if 0 in file.shape:
            raise SizeError(f"{called(file)} is {shape_of(file)}: there is nothing in it.")
        for place, (axis, size) in enumerate(zip(axes, file.shape, strict=True)):
            where = f"(axis {place} of {shape_of(file)})"
            *known, axis = sorted(axis.split("·"), key=lambda part: part not in self)
            for part in known:
                if size % self[part]:
                    raise SizeError(
                        f"{called(file)} is {size} wide {where}, but {self._said[part].sentence}:"
                        f" {size} / {self[part]} leaves {size % self[part]}.",
                        hint=note or None,
                    )
                size //= self[part]
            self.learn(axis, size, f"{called(file)} has {axis} {size} {where}", note=note)


def one_dtype(files: Mapping[str, TensorFile], asked: str | None) -> str:
    """The dtype to run in: the one that was asked for, or that of all files, or float32.

    Raises:
        OptionError: the files have several, or one that attention does not run in.
    """
    if asked is not None or not files:
        return asked or "float32"
    first, *others = files.values()
    for file in others:
        if file.dtype != first.dtype:
            both = {first.dtype, file.dtype}
            widest = (
                max(both, key=lambda dtype: DTYPES.get(dtype, 0)) if both <= set(DTYPES) else "float32"
            )
            if both == {"float16", "bfloat16"}:
                widest = "float32"
            raise OptionError(
                f"{called(first)} is {first.dtype}, but {called(file)} is {file.dtype}.",
                hint=f"--dtype {widest}, to run all in it",
            )
    if first.dtype not in DTYPES:
        raise OptionError(
            f"{called(first)} is {first.dtype}, and attention runs in {', '.join(DTYPES)}.",
            hint="--dtype float32, to convert it",
        )
    return first.dtype


def called(file: TensorFile) -> str:
    """What messages call a tensor of a file: `Q in q.npy`."""
    return f"{file.name} in {file}"


def shape_of(file: TensorFile) -> str:
    """A file's shape in a message: `3×30×64`."""
    return "×".join(map(str, file.shape)) or "a scalar"
