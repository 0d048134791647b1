"""Select a tensor's values by a name with an index, and format them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from rich.text import Text

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.base.text import nearest
from attnscope.base.units import shape_text
from attnscope.document.blocks import Drawing
from attnscope.document.json import plain

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

Index = tuple[Any, ...]


@dataclass(frozen=True)
class Shown:
    """A tensor, or the part of it that is selected by an index."""

    name: str  #: the selection as the user wrote it: `attention[0, 1]`
    dims: tuple[str, ...] | None  #: the names of the remaining axes, or None if they are unknown
    dtype: str  #: as stored
    array: np.ndarray  #: the values


def parse_selection(text: str) -> tuple[str, Index]:
    """Parse a name with an optional index: `attention[0, 1]` becomes `("attention", (0, 1))`.

    An index consists of integers, slices and `...`, as in numpy.

    Raises:
        OptionError: the text is not a name with such an index.
    """
    name, bracket, rest = text.partition("[")
    name = name.strip()
    if not bracket:
        return name, ()
    try:
        tree = ast.parse(f"_[{rest}", mode="eval").body
        if not isinstance(tree, ast.Subscript) or not isinstance(tree.value, ast.Name):
            raise ValueError
        parts = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        return name, tuple(_index_part(part) for part in parts)
    except (SyntaxError, ValueError) as error:
        raise OptionError(
            f"{text!r} is not a name with an index.",
            hint=f"{spelled(show='attention[0, 1, :5]')}, for example",
        ) from error


def check_name(name: str, known: Collection[str], where: str) -> None:
    """Raise an OptionError unless `name` is one of the known names."""
    if name not in known:
        near = nearest(name, known)
        several = "one of " if len(known) > 1 else ""
        hint = spelled(show=f'"{near}"') if near else f"{several}{', '.join(known)}"
        raise OptionError(f"there is no {name!r} in {where}.", hint=hint)


def check_index(text: str, index: Index, shape: tuple[int, ...], dims: tuple[str, ...] | None) -> None:
    """Raise an OptionError if an index, as `parse_selection` returns it, is not valid for a shape."""
    if index.count(...) > 1:
        raise OptionError(f"{text!r} has more than one '...', so it is ambiguous.")
    n_indices = len(index) - index.count(...)
    if n_indices > len(shape):
        raise OptionError(
            f"{text!r} has {n_indices} indices, but {shape_text(shape)} has {len(shape)} axes"
            f" ({' '.join(dims or ())})."
        )
    for axis, part in _expanded(index, len(shape)):
        if isinstance(part, int) and not -shape[axis] <= part < shape[axis]:
            name = dims[axis] if dims else f"axis {axis}"
            raise OptionError(
                f"{text!r}: index {part} of {name} is out of range: it has {shape[axis]}, 0 to"
                f" {shape[axis] - 1}."
            )


def select(
    text: str, index: Index, array: np.ndarray, dtype: str, dims: tuple[str, ...] | None
) -> Shown:
    """Return the part of a tensor that an index selects."""
    parts = dict(_expanded(index, array.ndim))
    remaining = [axis for axis in range(array.ndim) if not isinstance(parts.get(axis), int)]
    return Shown(text, tuple(dims[axis] for axis in remaining) if dims else None, dtype, array[index])


def size_of_selection(index: Index, shape: tuple[int, ...]) -> int:
    """Return the number of values that an index selects."""
    parts = dict(_expanded(index, len(shape)))
    sizes = [
        1 if isinstance(part := parts.get(axis, slice(None)), int) else len(range(size)[part])
        for axis, size in enumerate(shape)
    ]
    return prod(sizes)


def shown_text(shown: Shown, width: int = 80) -> str:
    """Return a line with name, dims, shape and dtype, and the values in numpy's format."""
    import numpy as np

    parts = [shown.name, " ".join(shown.dims or ()), shape_text(shown.array.shape), shown.dtype]
    values = np.array2string(
        shown.array, max_line_width=width, precision=4, threshold=200, edgeitems=3, floatmode="maxprec"
    )
    return "  ".join(part for part in parts if part) + "\n" + values


def shown_record(shown: Shown) -> dict[str, Any]:
    """Return the record of a selection with all its values; NaN and infinities become strings."""
    return {
        "name": shown.name,
        "dims": list(shown.dims) if shown.dims is not None else None,
        "shape": list(shown.array.shape),
        "dtype": shown.dtype,
        "values": plain(shown.array.tolist()),
    }


@dataclass(frozen=True)
class Values(Drawing):
    """The values of a selection, below a table."""

    shown: Shown

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print them below an empty line, each line of a matrix on as many lines as necessary."""
        console.print(Text("\n" + shown_text(self.shown, console.width)), soft_wrap=True)

    def markdown(self) -> list[str]:
        """Return them as a block of code."""
        return [f"```\n{shown_text(self.shown)}\n```"]


def shown_fields(shown: Sequence[Shown]) -> dict[str, Any]:
    """Return the fields that selections add to a record: `shown`, the last; and, for several, all."""
    records = [shown_record(each) for each in shown]
    return ({"shown": records[-1]} if records else {}) | (
        {"shown_all": records} if len(records) > 1 else {}
    )


def _index_part(node: ast.expr) -> Any:
    if isinstance(node, ast.Slice):
        ends = [None if e is None else ast.literal_eval(e) for e in (node.lower, node.upper, node.step)]
        if not all(end is None or type(end) is int for end in ends) or ends[2] == 0:
            raise ValueError
        return slice(*ends)
    value = ast.literal_eval(node)
    if type(value) is not int and value is not ...:
        raise ValueError
    return value


def _expanded(index: Index, ndim: int) -> list[tuple[int, Any]]:
    """Return each part of an index with the axis that it applies to."""
    if ... in index:
        place = index.index(...)
        after = len(index) - place - 1
        return [*enumerate(index[:place]), *enumerate(index[place + 1 :], start=ndim - after)]
    return list(enumerate(index))
