"""Declared steps become a trace, with every shape, byte and FLOP, before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from attnscope.errors import OptionError, SizeError
from attnscope.results.trace import Step, Trace

DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""The dtypes that attention runs in, and the bytes of an element."""

SINGULAR = {
    "queries": "query",
    "keys": "key",
    "values": "value",
    "numbers": "number",
    "weights": "weight",
    "products": "product",
    "embeddings": "embedding",
    "vectors": "vector",
    "positions": "position",
    "heads": "head",
}
"""The nouns that sentences count."""

INPUT = "input"
"""How a tensor was made that the caller handed in."""


@dataclass(frozen=True)
class Stage:
    """One declared step.

    Attributes:
        name: as in the code.
        dims: the axes' names. `n_head·d_K` is one axis, as long as the two together.
        how: the expression, as in the code.
        why: what it is, and why its shape is so; `{n_Q}` stands for that axis's size.
        product: for a matrix product, the axes that it runs over: FLOPs = 2 · their sizes.
        view_of: the step whose memory it looks at.
        same_as: the step that it is, under another name.
        layout: the axes in the order in which they lie in memory, if that is not `dims`; an axis
            that `dims` lacks was left behind when one of its entries was taken.
        copied: the view is copied into a memory of its own, unless it is contiguous.
        dtype: if it is not the inputs'.
    """

    name: str
    dims: str
    how: str
    why: str = ""
    product: str = ""
    view_of: str | None = None
    same_as: str | None = None
    layout: str = ""
    copied: bool = False
    dtype: str = ""


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Raise a SizeError unless every size is a positive whole number that fits into 64 bits."""
    for axis, size in sizes.items():
        if not hasattr(size, "__index__") or size < 1:
            raise SizeError(f"{axis} is {size}, but a size is a whole number from 1 up.")
        if size >= 2**63:
            raise SizeError(f"{axis} has {len(str(size))} digits, but a size fits into 64 bits.")


def size_of(axis: str, sizes: Mapping[str, int]) -> int:
    """An axis's size; that of `n_head·d_K` is a product, and that of `1` is one."""
    return prod(1 if part == "1" else sizes[part] for part in axis.split("·"))


def plan(title: str, sizes: dict[str, int], stages: Iterable[Stage], dtype: str) -> Trace:
    """The trace that running these stages would make.

    Args:
        title: what is run.
        sizes: the size of every axis that the stages name.
        stages: in the order in which they run.
        dtype: the inputs'.

    Raises:
        SizeError: a size is not a positive whole number.
        OptionError: an unknown dtype.
    """
    check_sizes(sizes)
    if dtype not in DTYPES:
        raise OptionError(
            f"{dtype!r} is not a dtype that attention runs in.", hint=f"--dtype {', '.join(DTYPES)}"
        )
    result = Trace(title=title, sizes=sizes, dtype=dtype)
    owners: dict[str, str] = {}
    for stage in stages:
        step = _step(stage, sizes, stage.dtype or dtype)
        source = step.view_of or step.same_as
        owners[step.name] = owners[source] if source else step.name
        if step.view_of:
            step.view_of = owners[step.name]
        result.steps.append(step)
    return result


def _step(stage: Stage, sizes: dict[str, int], dtype: str) -> Step:
    dims = tuple(stage.dims.split())
    contiguous = _lies_in_order(stage, sizes)
    own = stage.copied and not contiguous
    shape = tuple(size_of(axis, sizes) for axis in dims)
    return Step(
        name=stage.name,
        dims=dims,
        shape=shape,
        dtype=dtype,
        how=stage.how,
        bytes=prod(shape) * DTYPES.get(dtype, 1),
        flops=2 * prod(size_of(axis, sizes) for axis in stage.product.split()) if stage.product else 0,
        contiguous=contiguous or own,
        view_of=None if own else stage.view_of,
        same_as=stage.same_as,
        why=_sentence(stage.why, sizes) or None,
    )


def _sentence(text: str, sizes: Mapping[str, int]) -> str:
    """A sentence with its sizes in it: `{n_Q} queries` is `3 queries`, or `1 query`."""
    return re.sub(
        r"(?<![\d×·/])(?<![×·/] )\b1 (\w+)",
        lambda one: f"1 {SINGULAR.get(one[1], one[1])}",
        text.format_map(sizes),
    )


def _lies_in_order(stage: Stage, sizes: dict[str, int]) -> bool:
    axes = _long_axes(stage.dims, sizes)
    layout = _long_axes(stage.layout or stage.dims, sizes)
    while layout and layout[0] not in axes:  # nothing lies before the entry that was taken
        layout = layout[1:]
    return layout == axes


def _long_axes(dims: str, sizes: dict[str, int]) -> list[str]:
    """The single axes, but for those of one, which do not count when elements are laid out."""
    return [axis for axis in dims.replace("·", " ").split() if size_of(axis, sizes) != 1]
