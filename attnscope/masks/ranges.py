"""Masks of the textbook: `causal`, `window:4`, files, and several of them together."""

from __future__ import annotations

from collections.abc import Mapping

from attnscope.attention.mask_rules import Masks
from attnscope.attention.positions import offset_of
from attnscope.masks.planes import Plane, RangePlane, planes_of_matrix


def planes_of_masks(masks: Masks, sizes: Mapping[str, int]) -> list[Plane]:
    """Return the keys that queries see; without files, neither torch nor numpy is needed.

    Args:
        masks: the masks, which all have to let a key pass.
        sizes: `n_batch`, `n_head`, `n_Q` and `n_K`, and `n_past` if there is one.

    Raises:
        SizeError: a mask does not fit these sizes.
    """
    masks.dims(sizes)  # checks the sizes
    if masks.files:
        from attnscope.attention.masks import hidden

        return planes_of_matrix(~hidden(masks.build(sizes, "float32", "cpu")), sizes)
    n_Q, n_K, n_batch = sizes["n_Q"], sizes["n_K"], sizes["n_batch"]
    n_past, ends = sizes.get("n_past", 0), masks.ends or (n_K,) * n_batch
    first = offset_of(n_Q, n_K, align=masks.align, n_past=n_past, lengths=masks.ends)
    firsts = (first,) * n_batch if isinstance(first, int) else first
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for sequence, which in enumerate(zip(firsts, ends, strict=True)):
        places.setdefault(which, []).append((sequence, 0))
    return [
        RangePlane(
            sequences,
            n_Q,
            n_K,
            [_range(masks, place, end) for place in range(first, first + n_Q)],
            first,
        )
        for (first, end), sequences in places.items()
    ]


def _range(masks: Masks, position: int, end: int) -> range:
    """Return the keys that a query sees of the first `end`: every kind of mask allows one range."""
    start: float = max([0, *(position - left for left, _ in masks.windows)])
    stop: float = min([end, *(position + right + 1 for _, right in masks.windows)])
    for chunk in masks.chunks:
        first = position // chunk * chunk
        start, stop = max(start, first), min(stop, first + chunk)
    if masks.causal:
        stop = min(stop, position + 1)
    for prefix in masks.prefixes:
        stop = min(stop, max(position + 1, prefix))
    return range(int(start), int(max(start, stop)))
