"""Patches that do not fill a tile: what lies behind the last of them is seen by no token of the tile."""

from __future__ import annotations

from copy import copy

from answers.families import loaded, picture
from answers.pictures.pixels import changed, moves

from attnscope.answers.pictures.read import encode

TILE = 38
"""Pixels, of which patches of 8 fill 32; in SmolVLM, patches of 14 fill 378 of 384."""


def test_pixels_behind_the_last_patch_of_a_tile_move_no_token_of_the_tile():
    model, processor = loaded("idefics3")
    other = copy(processor)
    other.image_processor = type(processor.image_processor)(
        size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}
    )
    image = picture(2 * TILE, TILE)

    def read(picture):
        return encode(other, model.config, "<image>what is?", [picture])

    before = read(image)
    [found] = before.pictures
    tiles = [patch for patch in found.patches if patch.part.startswith("tile")]
    assert {patch.box[2] for patch in tiles} == {16, 32, TILE + 16, TILE + 32}
    assert max(patch.box[3] for patch in tiles) == 32
    whole = {patch.position for patch in found.patches if patch.part == "whole"}
    for left, seen in ((31, 2), (32, 0)):  # a column of pixels of the upper left tile, 0 to 31 high
        far = moves("idefics3", before, read(changed(image, (left, 0, left + 1, 32))))
        moved = {position for position, share in enumerate(far) if share > 1e-4} - whole
        claims = {each.position for each in tiles if each.box[0] <= left < each.box[2]}
        assert moved == claims
        assert len(claims) == seen
