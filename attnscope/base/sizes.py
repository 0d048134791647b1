"""The sizes of axes, collected from options and files, which must agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.base.dtypes import FLOATS
from attnscope.base.errors import OptionError, SizeError
from attnscope.base.spelling import spelled

if TYPE_CHECKING:
    from attnscope.base.tensor_files import TensorFile


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Raise a SizeError unless every size is a positive whole number that fits into 64 bits."""
    for axis, size in sizes.items():
        if not hasattr(size, "__index__") or size < 1:
            raise SizeError(f"{axis} is {size}, but a size is a whole number from 1 up.")
        if size >= 2**63:
            raise SizeError(f"{axis} has {len(str(size))} digits, but a size fits into 64 bits.")


@dataclass(frozen=True)
class KnownSize:
    """A size, and the sentence that explains its origin: `--dk says that d_K is 64`."""

    size: int
    sentence: str


class Sizes:
    """The known sizes of axes, from options and files.

    Args:
        options: the sizes set by options, by axis; None where an option was not used.
        names: the options' names, by axis.

    Raises:
        SizeError: a size is not a positive whole number.
    """

    def __init__(self, options: Mapping[str, int | None], names: Mapping[str, str]) -> None:
        sizes = {axis: size for axis, size in options.items() if size is not None}
        check_sizes(sizes)
        self._known = {
            axis: KnownSize(size, f"{spelled(names[axis])} says that {axis} is {size}")
            for axis, size in sizes.items()
        }

    def __contains__(self, axis: str) -> bool:
        return axis in self._known

    def __getitem__(self, axis: str) -> int:
        return self._known[axis].size

    def get(self, axis: str, default: int) -> int:
        """Return the size of an axis, or the default if it is unknown."""
        return self._known[axis].size if axis in self._known else default

    def learn(self, axis: str, size: int, sentence: str, *, note: str = "") -> None:
        """Add the size of an axis, with a sentence that explains its origin.

        Raises:
            SizeError: the axis is known to have another size; `note` is added to the message.
        """
        old = self._known.setdefault(axis, KnownSize(size, sentence))
        if old.size != size:
            raise SizeError(f"{sentence}, but {old.sentence}.", hint=note or None)

    def suppose(self, axis: str, size: int) -> None:
        """Set the default size of an axis that is still unknown."""
        self._known.setdefault(axis, KnownSize(size, f"{axis} is {size} by default"))

    def equate(self, axis: str, other: str) -> None:
        """Give two axes the same size, if one of them is known.

        Raises:
            SizeError: they are known to have different sizes.
        """
        if axis in self and other in self and self[axis] != self[other]:
            raise SizeError(f"{self._known[axis].sentence}, but {self._known[other].sentence}.")
        known = self._known.get(axis) or self._known.get(other)
        if known:
            self._known[axis] = self._known[other] = known

    def take(self, file: TensorFile, dims: str, *, note: str = "") -> None:
        """Add the sizes of a tensor's axes.

        Args:
            file: the tensor.
            dims: the names of its axes. For `n_head·d_K`, one of the two must be known.
            note: a hint for the error.

        Raises:
            SizeError: the tensor has another number of axes, or sizes disagree.
        """
        axes = dims.split()
        if len(axes) != len(file.shape):
            raise SizeError(
                f"{called(file)} is {shape_of(file)}, but needs {len(axes)}"
                f" {'axis' if len(axes) == 1 else 'axes'}: {' '.join(axes)}.",
                hint=note or None,
            )
        if 0 in file.shape:
            raise SizeError(f"{called(file)} is {shape_of(file)}: it has no elements.")
        for place, (axis, size) in enumerate(zip(axes, file.shape, strict=True)):
            where = f"(axis {place} of {shape_of(file)})"
            *known, axis = sorted(axis.split("·"), key=lambda part: part not in self)
            for part in known:
                if size % self[part]:
                    raise SizeError(
                        f"{called(file)} is {size} wide {where}, but {self._known[part].sentence}:"
                        f" {size} / {self[part]} leaves {size % self[part]}.",
                        hint=note or None,
                    )
                size //= self[part]
            self.learn(axis, size, f"{called(file)} has {axis} {size} {where}", note=note)


def one_dtype(files: Mapping[str, TensorFile], requested: str | None) -> str:
    """Return the dtype to run in: the requested one, that of all files, or float32.

    Raises:
        OptionError: the files have different dtypes, or one that attention does not run in.
    """
    if requested is not None or not files:
        return requested or "float32"
    first, *others = files.values()
    for file in others:
        if file.dtype != first.dtype:
            both = {first.dtype, file.dtype}
            widest = (
                max(both, key=lambda dtype: FLOATS.get(dtype, 0)) if both <= set(FLOATS) else "float32"
            )
            if both == {"float16", "bfloat16"}:
                widest = "float32"
            raise OptionError(
                f"{called(first)} is {first.dtype}, but {called(file)} is {file.dtype}.",
                hint=f"{spelled(dtype=widest)}, to run all in it",
            )
    if first.dtype not in FLOATS:
        raise OptionError(
            f"{called(first)} is {first.dtype}, and attention runs in {', '.join(FLOATS)}.",
            hint=f"{spelled(dtype='float32')}, to convert it",
        )
    return first.dtype


def called(file: TensorFile) -> str:
    """Return the name of a file's tensor in messages: `Q in q.npy`."""
    return f"{file.name} in {file}"


def shape_of(file: TensorFile) -> str:
    """Return the shape of a file's tensor in messages: `3×30×64`."""
    return "×".join(map(str, file.shape)) or "a scalar"
