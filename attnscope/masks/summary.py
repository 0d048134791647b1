"""What a mask amounts to: its pattern, its visible pairs, and what a block-sparse kernel computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.masks.patterns import pattern_of
from attnscope.masks.planes import EMPTY, FULL, PARTIAL, Plane, planes_of_matrix
from attnscope.masks.result import AttentionMask, Blocks

if TYPE_CHECKING:
    import torch

BLOCK = (128, 128)
"""The size of blocks of torch's `flex_attention` (`_DEFAULT_SPARSE_BLOCK_SIZE`)."""


def mask_of_planes(
    planes: list[Plane], sizes: Mapping[str, int], block: tuple[int, int], **facts: Any
) -> AttentionMask:
    """Return a mask with its counts.

    `sizes` are those of `n_batch`, `n_head` (1 if all heads share a mask), `n_Q` and `n_K`; `facts` are
    further attributes.
    """
    return AttentionMask(
        n_batch=sizes["n_batch"],
        n_head=sizes["n_head"],
        n_Q=sizes["n_Q"],
        n_K=sizes["n_K"],
        patterns=[pattern_of(plane) for plane in planes],
        n_visible=_total(planes, [plane.n_visible for plane in planes]),
        n_blind=_total(planes, [plane.n_blind for plane in planes]),
        n_unseen=_total(planes, [plane.n_unseen for plane in planes]),
        blocks=_blocks(planes, *block),
        planes=planes,
        **facts,
    )


def mask_of_tensor(visible: torch.Tensor, block: tuple[int, int], **facts: Any) -> AttentionMask:
    """Return the mask of a tensor `n_batch n_head n_Q n_K`, True where a query sees a key."""
    sizes = dict(zip(("n_batch", "n_head", "n_Q", "n_K"), visible.shape, strict=True))
    return mask_of_planes(planes_of_matrix(visible, sizes), sizes, block, **facts)


def _total(planes: Sequence[Plane], numbers: Sequence[int]) -> int:
    """Add a number of each plane for all sequences and heads that it holds for."""
    return sum(len(plane.places) * number for plane, number in zip(planes, numbers, strict=True))


def _blocks(planes: Sequence[Plane], n_query: int, n_key: int) -> Blocks:
    """Count the blocks of all sequences and heads.

    A block that the border cuts off is partial even if all its pairs are visible, as torch pads it.
    """
    counts: Counter[int] = Counter()
    for plane in planes:
        whole_rows = plane.n_Q // n_query
        for i, runs in enumerate(plane.blocks(n_query, n_key)):
            of_row: Counter[int] = Counter()
            for start, stop, kind in runs:
                of_row[kind] += stop - start
            cut = of_row[FULL] if i >= whole_rows else int(plane.n_K % n_key > 0 and kind == FULL)
            of_row.update({FULL: -cut, PARTIAL: cut})
            for kind, count in of_row.items():
                counts[kind] += count * len(plane.places)
    return Blocks(n_query, n_key, counts[FULL], counts[PARTIAL], counts[EMPTY])


def parse_block(block: str | int | Sequence[int] | None) -> tuple[int, int]:
    """Return the numbers of queries and keys in a block: `128`, or `128,64`.

    >>> parse_block(None), parse_block("64"), parse_block((128, 64))
    ((128, 128), (64, 64), (128, 64))
    """
    if block is None:
        return BLOCK
    parts = block.split(",") if isinstance(block, str) else [block] if isinstance(block, int) else block
    texts = [str(part).strip() for part in parts]
    if len(texts) in (1, 2) and all(each.isascii() and each.isdigit() and int(each) for each in texts):
        return int(texts[0][:12]), int(texts[-1][:12])
    raise OptionError(
        f"{spelled('block')} is {block!r}, but takes a number of queries and keys, or both.",
        hint=f"{spelled(block=128)}, or {spelled(block='128,64')}",
    )
