"""Ranges and matrices count the same pairs and blocks, and so does torch's `create_block_mask`."""

import random

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from attnscope.masks.planes import EMPTY, FULL, PARTIAL, MatrixPlane, RangePlane


def drawn(seed):
    """Ranges of keys that overlap, touch, or are empty."""
    draw = random.Random(seed)
    n_Q, n_K = draw.randrange(1, 23), draw.randrange(1, 23)
    ranges = []
    for _ in range(n_Q):
        start = draw.randrange(n_K)
        ranges.append(range(start, draw.randrange(start, n_K + 1)))
    return RangePlane([(0, 0)], n_Q, n_K, ranges)


@pytest.mark.parametrize("seed", range(25))
def test_ranges_and_their_matrix_are_the_same(seed):
    ranges = drawn(seed)
    expected = np.array([[key in keys for key in range(ranges.n_K)] for keys in ranges.ranges])
    assert (ranges.array() == expected).all()
    matrix = MatrixPlane([(0, 0)], ranges.n_Q, ranges.n_K, expected)
    for name in ("n_visible", "n_blind", "n_unseen"):
        assert getattr(ranges, name) == getattr(matrix, name), name
    assert list(ranges.rows()) == list(matrix.rows())
    for block in ((1, 1), (2, 3), (5, 4), (40, 40)):
        assert list(ranges.blocks(*block)) == list(matrix.blocks(*block)), block


@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_those_of_torch(seed):
    """torch pads the last blocks, so that none at the border is full: these sizes have none."""
    drawing = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 3, (6, 4), generator=drawing)  # nothing, some, all of a block of 4 × 8
    inside = torch.rand(24, 32, generator=drawing) < 0.5
    level = rows.repeat_interleave(4, 0).repeat_interleave(8, 1)
    visible = (level == 2) | ((level == 1) & inside)

    def mask_mod(b, h, q, k):
        return visible[q, k]

    blocks = create_block_mask(mask_mod, None, None, 24, 32, device="cpu", BLOCK_SIZE=(4, 8))
    grid = np.array(MatrixPlane([(0, 0)], 24, 32, visible.numpy()).grid(4, 8))
    partial, full = int(blocks.kv_num_blocks.sum()), int(blocks.full_kv_num_blocks.sum())
    assert ((grid == PARTIAL).sum(), (grid == FULL).sum()) == (partial, full)
    assert blocks.sparsity() == pytest.approx(100 * (grid == EMPTY).mean())
