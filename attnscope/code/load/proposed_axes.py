"""Names for the axes of inputs that the user does not name: the code's, or else the usual ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

Dims = tuple[str | int, ...]
"""The axes of a tensor: a name each, or the size of one without a name."""

KEYS = re.compile(r"(enc\w*_)?(k|v|xk|xv|kv|keys?|values?|memory|context)(_\w*)?", re.IGNORECASE)
QUERIES = re.compile(r"(q|xq|query|queries)(_\w*)?", re.IGNORECASE)
VALUES = re.compile(r"(v|xv|values?)(_\w*)?", re.IGNORECASE)
"""The names of arguments that hold keys or values, queries, and values."""


class InputShape(NamedTuple):
    """The shape of an input, and the name of its dtype in torch."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def is_float(self) -> bool:
        """Whether its values are floating-point numbers."""
        return "float" in self.dtype

    @property
    def has_width(self) -> bool:
        """Whether products with weights contract over its last axis."""
        return self.is_float and len(self.shape) > 1


def proposed_axes(
    inputs: Mapping[str, InputShape],
    named: Mapping[str, Dims],
    of_code: Mapping[str, Sequence[str | None]],
    module_sizes: Mapping[str, int],
    *,
    has_weights: bool,
    are_fixed: bool = True,
    batch_first: bool | None = None,
) -> dict[str, Dims]:
    """Return the axes of all inputs, with textbook names for those without a name.

    Queries are `n_batch n_Q d_feat`, keys and values `n_batch n_K d_feat`; tensors with other names are
    `n_batch n d_feat`. Masks, and integer tensors other than ids, get the names of axes of their sizes.
    If an axis of another tensor that would be called `n_batch` is named `B`, it is `B` here too.
    One name stands for one size.

    `module_sizes` have names already; `are_fixed` if existing weights have them, which then name the
    axes of these sizes. `has_weights` if a module is called, whose weights determine the widths.
    """
    usual = {
        label: _usual_axes(label, each, module_sizes if are_fixed else {}, has_weights)
        for label, each in inputs.items()
        if not ("mask" in label or "bias" in label or each.dtype == "bool")
        and (each.has_width or len(each.shape) == 2)
        and len(each.shape) <= 4
    }
    if batch_first is None:
        batch_first = not _has_sequence_first({label: inputs[label] for label in usual})
    if not batch_first:
        for label, axes in usual.items():
            if len(axes) == 3:
                usual[label] = [axes[1], axes[0], axes[2]]
    sizes = dict(module_sizes)
    known: dict[str, Sequence[str | int | None]] = {}
    renamed: dict[str, str] = {}  # the names of axes that would have usual ones
    for label, each in inputs.items():
        names = usual.get(label, ())
        stated: Sequence[str | int | None] = named.get(label) or _without_module_sizes(
            of_code.get(label, ()), names, module_sizes
        )
        known[label] = [
            axis if not isinstance(axis, str) or sizes.setdefault(axis, size) == size else None
            for axis, size in zip(stated, each.shape, strict=False)
        ] or [None] * len(each.shape)
        pairs = zip(names, known[label], strict=False)
        renamed = {name: axis for name, axis in pairs if isinstance(axis, str)} | renamed
    found: dict[str, Dims] = {}
    for label, each in inputs.items():
        if label in named:
            found[label] = named[label]
        elif label in usual and 0 not in each.shape:
            axes = []
            for axis, name, size in zip(known[label], usual[label], each.shape, strict=True):
                choices = (str(axis or ""), renamed.get(name, name), name, f"{name}_{label}")
                free = next(each for each in choices if each and sizes.get(each, size) == size)
                sizes[free] = size
                axes.append(free)
            found[label] = tuple(axes)
    for label, each in inputs.items():
        if label not in found and 0 not in each.shape:
            others = {} if are_fixed else module_sizes
            of_inputs = {axis for axes in found.values() for axis in axes}
            found[label] = _aligned(
                each.shape, {n: sizes[n] for n in sizes if n not in others}, of_inputs
            )
    return found


def _without_module_sizes(
    of_code: Sequence[str | None], usual: Sequence[str], module_sizes: Mapping[str, int]
) -> list[str | None]:
    """Return the code's names for axes, without that of a width that the module has a name for."""
    if not usual or len(of_code) != len(usual):
        return []
    return [*of_code[:-1], None if usual[-1] in module_sizes else of_code[-1]]


def guessed_axes(dims: Mapping[str, Dims], known: Iterable[Collection[str | None]]) -> list[str]:
    """Return the names of axes that neither the user nor the code has, but that are customary."""
    said = {name for names in known for name in names}
    names = (axis for axes in dims.values() for axis in axes if isinstance(axis, str))
    return [name for name in dict.fromkeys(names) if name not in said]


def _has_sequence_first(inputs: Mapping[str, InputShape]) -> bool:
    """Check whether queries and keys agree in axis 1 and not in axis 0: then axis 1 is the batch."""
    of_three = {label: each.shape for label, each in inputs.items() if len(each.shape) == 3}
    queries = [shape for label, shape in of_three.items() if QUERIES.fullmatch(label)]
    keys = [shape for label, shape in of_three.items() if KEYS.fullmatch(label)]
    pairs = [(query, key) for query in queries for key in keys]
    return bool(pairs) and all(q[0] != k[0] and q[1] == k[1] for q, k in pairs)


def _usual_axes(
    label: str, tensor: InputShape, module_sizes: Mapping[str, int], has_weights: bool
) -> list[str]:
    """Return the usual names of the axes of queries, keys, values, or other tensors."""
    word = re.sub(r"\W", "_", label)
    length = "n_K" if KEYS.fullmatch(word) else "n_Q" if QUERIES.fullmatch(word) else "n"
    n_axes = len(tensor.shape)
    if not tensor.is_float:
        return ["n_batch", length]
    if has_weights and n_axes < 4:
        width = next((name for name, size in module_sizes.items() if size == tensor.shape[-1]), "d_feat")
    elif length == "n":
        width = "d_feat" if n_axes < 4 else "d_head"
    else:
        width = "d_V" if VALUES.fullmatch(word) else "d_K"
    return {
        2: [length, width],
        3: ["n_batch", length, width],
        4: ["n_batch", "n_head", length, width],
    }[n_axes]


def _aligned(shape: Sequence[int], sizes: Mapping[str, int], of_inputs: Collection[str | int]) -> Dims:
    """Return the axes of a mask or another broadcast tensor: names of equal sizes, or the sizes.

    A mask of two axes is one of positions of the inputs: other sizes of the module, such as a number of
    layers, are equal by accident.
    """
    order = ["n_batch", "n_head", "n_Q", "n_K"]
    named: list[str | int] = []
    for place, size in enumerate(shape, start=4 - len(shape)):
        usual = order[place] if 0 <= place < 4 else ""
        names = [name for name, each in sizes.items() if each == size and size > 1]
        likely = [name for name in names if name in of_inputs] if len(shape) == 2 else []
        names = likely or names
        named.append(usual if usual in names else names[0] if len(names) == 1 else size)
    return tuple(named)
