"""Masks of the textbook: `causal`, `window:4`, files, and several of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnscope.attention.positions import offset_of
from attnscope.results.planes import Plane, RangePlane
from attnscope.textbook.inputs.mask_options import Masks


def planes_of_masks(masks: Masks, sizes: Mapping[str, int]) -> list[Plane]:
    """Return the keys that queries see; without files, neither torch nor numpy is needed.

    Args:
        masks: the masks, which all have to let a key pass.
        sizes: `n_batch`, `n_head`, `n_Q` and `n_K`.

    Raises:
        SizeError: a mask does not fit these sizes.
    """
    masks.dims(sizes)  # checks the sizes
    if masks.files:
        from attnscope.attention.masks import hidden
        from attnscope.masks.matrices import planes_of_matrix

        return planes_of_matrix(~hidden(masks.build(sizes, "float32", "cpu")), sizes)
    places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for sequence in range(sizes["n_batch"]):
        of_sequence = tuple(each[sequence] for each in masks.lengths)
        places.setdefault(of_sequence, []).append((sequence, 0))
    n_Q, n_K = sizes["n_Q"], sizes["n_K"]
    return [
        RangePlane(of_lengths, n_Q, n_K, _ranges(masks, n_Q, n_K, min(lengths, default=n_K)))
        for lengths, of_lengths in places.items()
    ]


def _ranges(masks: Masks, n_Q: int, n_K: int, length: int) -> Sequence[range]:
    """Return the keys that each query of a sequence sees: every kind of mask allows one range."""
    first = offset_of(n_Q, n_K, align=masks.align)
    ranges = []
    for position in range(first, first + n_Q):
        starts = [0, *(position - left for left, _ in masks.windows)]
        stops = [length, *(position + right + 1 for _, right in masks.windows)]
        stops += [position + 1] * masks.causal
        stops += [max(position + 1, prefix) for prefix in masks.prefixes]
        ranges.append(range(max(starts), max(*starts, min(stops))))
    return ranges
