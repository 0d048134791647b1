"""Planned traces: from declared steps to every shape, byte and FLOP, without computing anything; and the
variants that select the steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, prod

from attnscope.base.bounds import CHECKS
from attnscope.base.dtypes import FLOATS
from attnscope.base.errors import OptionError, dtype_hint, groups_are_uneven, width_is_odd
from attnscope.base.sizes import check_sizes
from attnscope.base.spelling import spelled
from attnscope.observe.trace import Step, Trace

PLURALS = "keys values numbers weights products embeddings vectors positions heads"
SINGULAR = {"queries": "query"} | {word: word.removesuffix("s") for word in PLURALS.split()}
"""The nouns that are counted in the explanations, with their singulars."""

INPUT = "input"
"""The expression of a tensor that the caller passes in."""


@dataclass(frozen=True)
class Stage:
    """One declared step."""

    name: str
    dims: str  #: the names of the axes. `n_head·d_K` is one axis, whose size is the product
    how: str  #: the expression, as in the code
    why: str = ""  #: explains the step and its shape; `{n_Q}` is replaced by the size of that axis
    product: str = ""  #: the axes of a matrix product: FLOPs = 2 · the product of their sizes
    view_of: str | None = None  #: the step whose memory it views
    same_as: str | None = None  #: the step with the same tensor under another name
    #: the axes in memory order, if that differs from `dims`; an axis that `dims` lacks was indexed, so
    #: only one of its entries remains
    layout: str = ""
    copied: bool = False  #: the view is copied into memory of its own, unless it is contiguous
    dtype: str = ""  #: the dtype, if it is not that of the inputs


def size_of(axis: str, sizes: Mapping[str, int]) -> int:
    """Return the size of an axis: a product for `n_head·d_K`, and 1 for `1`."""
    return prod(1 if part == "1" else sizes[part] for part in axis.split("·"))


def plan(title: str, sizes: dict[str, int], stages: Iterable[Stage], dtype: str) -> Trace:
    """Return the trace that running these stages would record."""
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


ORDER = (
    *("n_batch", "n_Q", "n_past", "n_new", "n_K", "n_pos"),
    *("d_feat", "d_context", "n_head", "n_kv_head", "d_head", "d_K", "d_V"),
)


THETA = 10000.0
"""The default base of rotary positions: RoFormer's, and that of the first Llama."""


@dataclass(frozen=True)
class Variant:
    """Everything beside the sizes that selects stages."""

    scale: float | None = None  #: the factor of the scores, if it is not 1/√(the width summed over)
    mask: str | None = None  #: the mask's dims, or None for no mask
    #: `bool`, or empty for an additive mask, which has the dtype of the inputs
    mask_dtype: str = "bool"
    mask_fill: float = -inf  #: the score of a key that a boolean mask hides
    masked_rows: str | None = None  #: the weights of queries that see no key, if chosen
    #: Q, K and V come with merged heads, which are split; those of the result are merged
    split: bool = False
    rope_theta: float | None = None  #: the base of rotary positions, or None for none
    #: the first query has the position of the first new key; so queries may have positions behind the
    #: last key
    after_past: bool = False
    #: with queries at the end of each sequence's keys, the least number of keys that are not padding; so
    #: queries may have positions before the first key. None: they are elsewhere.
    shortest: int | None = None
    softcap: float | None = None  #: the bound for soft-capping the scores, or None
    dropout: float = 0.0  #: the fraction of weights that is dropped
    embeddings: bool = False  #: Q, K and V are projections of X


def stages_of(
    scale: float | None, softcap: float | None, rope: bool | None, rope_theta: float | None
) -> tuple[float | None, float | None]:
    """Check the numbers of the optional stages, as users write them.

    Args:
        softcap: the bound for soft-capping the scores; None or infinity: none.

    Returns:
        The bound and the base, each None where its stage does nothing.

    Raises:
        OptionError: a number is impossible.
    """
    for name, value in {"rope_theta": rope_theta, "softcap": softcap, "scale": scale}.items():
        if value is not None:
            CHECKS[name](value)
    base = THETA if rope_theta is None else rope_theta
    return None if softcap == inf else softcap, base if rope else None


def completed(sizes: dict[str, int], variant: Variant, d_K: str = "d_K") -> dict[str, int]:
    """Return all sizes that the stages name, in the usual reading order."""
    check_sizes(sizes)
    sizes = dict(sizes)
    n_head, n_kv_head = sizes.get("n_head", 1), sizes.get("n_kv_head")
    if n_kv_head is not None:
        if n_head % n_kv_head:
            raise groups_are_uneven(n_head, n_kv_head)
        if n_kv_head == n_head:
            del sizes["n_kv_head"]
    if "n_past" in sizes:
        sizes["n_new"] = sizes["n_K"] - sizes["n_past"]
        check_sizes(sizes)
    if variant.rope_theta is not None:
        if sizes[d_K] % 2:
            wider = sizes[d_K] + 1
            if d_K == "d_K":
                option = spelled("dk", wider)
            elif n_head * sizes[d_K] == sizes["d_feat"]:
                option = f"{spelled('d_feat', n_head * wider)}, {spelled('d_head', wider)}"
            else:
                option = spelled("d_head", wider)
            raise width_is_odd(d_K, sizes[d_K], hint=f"{option}, or no {spelled(rope=True)}")
        n_at_keys = sizes.get("n_new", sizes["n_K"]) if variant.after_past else sizes["n_K"]
        if variant.shortest is not None:
            n_at_keys = variant.shortest
        sizes["n_pos"] = sizes["n_K"] + max(0, sizes["n_Q"] - n_at_keys)
    place = {axis: i for i, axis in enumerate(ORDER)}
    return dict(sorted(sizes.items(), key=lambda item: place[item[0]]))


def named(variant: Variant | None, sizes: dict[str, int]) -> Variant:
    """Name the mask's axes of size 1 whose size in the scores is 1 too; return the variant."""
    variant = variant or Variant()
    if variant.mask is None:
        return variant
    axes = [axis for axis in ("n_batch", "n_head", "n_Q", "n_K") if axis in sizes]
    mask = variant.mask.split()
    aligned = zip(axes[len(axes) - len(mask) :], mask, strict=True)
    dims = " ".join(axis if sizes[axis] == 1 else dim for axis, dim in aligned)
    return replace(variant, mask=dims)
