"""Every image token covers the pixels that its box names, and no others."""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest

from attnscope.model.answers.prompt import Patch
from tests.model.answers.families import NAMES, picture
from tests.model.answers.pictures.pixels import changed, moves, overlaps, read
from tests.sweeps import swept

EXACT = {
    "llava": [(32, 32)],
    "deepseek_vl": [(32, 32), (32, 16), (8, 32)],
    "janus": [(32, 32), (32, 16)],
    "llava_next": [(64, 32), (32, 64), (64, 64)],
    "llava_onevision": [(64, 32), (32, 32), (32, 64), (64, 64), (96, 32)],
    "qwen2_vl": [(64, 48), (32, 32)],
    "qwen2_5_vl": [(64, 48), (80, 32)],
    "qwen3_vl": [(64, 48), (32, 96)],
    "qwen3_vl_moe": [(64, 48)],
    "qwen3_5": [(64, 48)],
    "qwen3_5_moe": [(64, 48)],
    "glm4v": [(64, 48), (32, 96)],
    "glm4v_moe": [(64, 48)],
    "glm46v": [(64, 48)],
    "aya_vision": [(32, 32), (64, 32), (32, 96)],
    "gemma3": [(32, 32)],
    "gemma4": [(80, 56), (40, 112)],
    "paligemma": [(32, 32)],
    "idefics3": [(64, 64), (64, 32)],
    "smolvlm": [(64, 64), (32, 64)],
    "internvl": [(32, 32), (64, 32), (96, 32)],
    "mistral3": [(64, 48), (16, 32)],
    "pixtral": [(64, 40), (8, 48)],
}
"""Sizes that a processor leaves as they are, at least in the tiles: one token's pixels are its own."""

SIZES = [(50, 37), (150, 60), (41, 97), (200, 190), (33, 31), (23, 29)]
"""Other sizes: smaller and larger than the models', wide, tall, and no multiples of a patch."""

PADDED = [("llava_next", (50, 37)), ("llava_next", (41, 97))]
"""Pictures that are padded above and below, and left and right."""


TWINS = ("qwen3_5", "qwen3_5_moe", "qwen3_vl_moe", "glm4v_moe", "glm46v")
DISTINCT = [name for name in NAMES if name not in TWINS]
"""Families of which none has the vision model of another."""


SPREAD = list(
    dict.fromkeys(
        [(name, SIZES[(i + 2 * j) % len(SIZES)]) for i, name in enumerate(DISTINCT) for j in range(3)]
        + [(name, SIZES[i]) for i, name in enumerate(TWINS)]
        + PADDED
    )
)
"""Three sizes of each family, so that every size meets every kind of geometry; one of its twins."""


def patches_of(patches: tuple[Patch, ...], part: str) -> list[Patch]:
    return [patch for patch in patches if patch.part == part]


def spread(patches: list[Patch], n: int) -> list[Patch]:
    """A few patches, from the first to the last."""
    return [patches[i] for i in sorted({round(i) for i in np.linspace(0, len(patches) - 1, n)})]


def size_in(patch: Patch) -> tuple[float, float]:
    left, top, right, bottom = patch.box
    return right - left, bottom - top


CASES = [(name, size) for name in NAMES for size in EXACT[name][: 1 if name in TWINS else None]]


@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "size"), swept(CASES, [(name, EXACT[name][0]) for name in DISTINCT]))
def test_where_nothing_is_resized_a_token_moves_with_every_pixel_of_its_box_and_no_other(name, size):
    image = picture(*size)
    before = read(name, [image])
    [found] = before.pictures
    parts = {patch.part for patch in found.patches} - {"whole"} or {"whole"}
    finest = [patch for patch in found.patches if patch.part in parts]
    assert {patch.box[0] % 1 for patch in finest} == {0}
    for patch in spread(finest, 4):
        left, top, right, bottom = map(round, patch.box)
        corners = [(left, top), (right - 1, top), (left, bottom - 1), (right - 1, bottom - 1)]
        for x, y in corners:
            pixel = (x, y, x + 1, y + 1)
            share = moves(name, before, read(name, [changed(image, pixel)]))
            moved = {position for position, far in enumerate(share) if far > 1e-4}
            claims = {each.position for each in finest if overlaps(each, pixel)}
            coarse = {each.position for each in found.patches} - {each.position for each in finest}
            assert claims
            assert patch.position in claims
            assert moved - coarse == claims


@pytest.mark.few(12)
@pytest.mark.parametrize(
    ("name", "size"),
    swept(
        SPREAD,
        [(name, SIZES[i % len(SIZES)]) for i, name in enumerate(DISTINCT)] + PADDED,
    ),
)
def test_pixels_inside_of_a_box_move_the_tokens_that_claim_them(name, size):
    """Of two pictures the first changes: the second, and what is far away, stays as it was."""
    image, other = picture(*size), picture(64, 48, seed=1)
    before = read(name, [image, other])
    found, second = before.pictures
    assert found.image.size == size
    n_strict = 0
    for part in dict.fromkeys(patch.part for patch in found.patches):
        for patch in spread(patches_of(found.patches, part), 3):
            left, top, right, bottom = patch.box
            width, height = right - left, bottom - top
            box = (
                floor(left + width / 3),
                floor(top + height / 3),
                max(ceil(right - width / 3), floor(left + width / 3) + 1),
                max(ceil(bottom - height / 3), floor(top + height / 3) + 1),
            )
            share = moves(name, before, read(name, [changed(image, box), other]))
            moved = {position for position, far in enumerate(share) if far > 1e-3}
            near = {each.position for each in found.patches if overlaps(each, box, reach(each))}
            assert moved <= near
            assert not moved & {each.position for each in second.patches}
            assert patch.position in moved
            in_part = patches_of(found.patches, part)
            farthest = max(in_part, key=lambda each: share[each.position])
            assert overlaps(farthest, box)
            if sum(overlaps(each, box) for each in in_part) == 1:
                assert farthest == patch
                n_strict += 1
    assert n_strict >= min(3, len(found.patches))


def reach(patch: Patch) -> float:
    """How far beyond its box a token may see, in pixels of the original.

    Filters that resize a picture reach 3 pixels of the larger of both pictures (Lanczos), a picture is
    resized up to twice, and a token covers 8 pixels of what a model reads, or 16.
    """
    return 2 * 3 * max(1.0, max(size_in(patch)) / 8)
