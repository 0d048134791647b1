"""Planned traces: from declared steps to every shape, byte and FLOP, without computing anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from attnscope.dtypes import FLOATS
from attnscope.errors import OptionError, SizeError, dtype_hint
from attnscope.observe.trace import Step, Trace

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
"""The nouns that are counted in the explanations, with their singulars."""

INPUT = "input"
"""The expression of a tensor that the caller passes in."""


@dataclass(frozen=True)
class Stage:
    """One declared step.

    Attributes:
        name: as in the code.
        dims: the names of the axes. `n_head·d_K` is one axis, whose size is the product.
        how: the expression, as in the code.
        why: explains the step and its shape; `{n_Q}` is replaced by the size of that axis.
        product: the axes of a matrix product: FLOPs = 2 · the product of their sizes.
        view_of: the step whose memory it views.
        same_as: the step with the same tensor under another name.
        layout: the axes in memory order, if that differs from `dims`; an axis that `dims` lacks
            was indexed, so only one of its entries remains.
        copied: the view is copied into memory of its own, unless it is contiguous.
        dtype: the dtype, if it is not that of the inputs.
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
    """Return the size of an axis: a product for `n_head·d_K`, and 1 for `1`."""
    return prod(1 if part == "1" else sizes[part] for part in axis.split("·"))


def plan(title: str, sizes: dict[str, int], stages: Iterable[Stage], dtype: str) -> Trace:
    """Return the trace that running these stages would record.

    Args:
        title: the title of the trace.
        sizes: the size of every axis that the stages name.
        stages: in execution order.
        dtype: the dtype of the inputs.

    Raises:
        SizeError: a size is not a positive whole number.
        OptionError: an unknown dtype.
    """
    check_sizes(sizes)
    if dtype not in FLOATS:
        raise OptionError(
            f"{dtype!r} is not a dtype that attention runs in.", hint=dtype_hint(dtype, FLOATS)
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
    contiguous = _is_contiguous(stage, sizes)
    owns_memory = stage.copied and not contiguous
    shape = tuple(size_of(axis, sizes) for axis in dims)
    return Step(
        name=stage.name,
        dims=dims,
        shape=shape,
        dtype=dtype,
        how=stage.how,
        bytes=prod(shape) * FLOATS.get(dtype, 1),
        flops=2 * prod(size_of(axis, sizes) for axis in stage.product.split()) if stage.product else 0,
        contiguous=contiguous or owns_memory,
        view_of=None if owns_memory else stage.view_of,
        same_as=stage.same_as,
        why=_sentence(stage.why, sizes) or None,
    )


def _sentence(text: str, sizes: Mapping[str, int]) -> str:
    """Fill the sizes into a sentence: `{n_Q} queries` becomes `3 queries`, or `1 query`."""
    return re.sub(
        r"(?<![\d×·/])(?<![×·/] )\b1 (\w+)",
        lambda one: f"1 {SINGULAR.get(one[1], one[1])}",
        text.format_map(sizes),
    )


def _is_contiguous(stage: Stage, sizes: dict[str, int]) -> bool:
    axes = _long_axes(stage.dims, sizes)
    layout = _long_axes(stage.layout or stage.dims, sizes)
    while layout and layout[0] not in axes:  # indexing the outermost axis keeps a tensor contiguous
        layout = layout[1:]
    return layout == axes


def _long_axes(dims: str, sizes: dict[str, int]) -> list[str]:
    """Return the single axes without those of size 1, which do not matter for contiguity."""
    return [axis for axis in dims.replace("·", " ").split() if size_of(axis, sizes) != 1]
