"""Pixtral and Mistral 3: a grid of the picture's own ratio, with a token at the end of each row."""

from __future__ import annotations

from attnscope.answers.pictures.image_tokens import ImageToken, grid_of_tokens
from attnscope.answers.pictures.processed import Processed


def pixtral(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in Pixtral and Mistral 3: a run for each row of its grid.

    The picture is resized, without a crop, to multiples of a patch, or of merged patches.

    Source: Agrawal et al. 2024, "Pixtral 12B".
    """
    height, width = (int(side) for side in of.inputs["image_sizes"][index])
    if of.images.setting("do_center_crop"):
        raise of.refused("its processor crops pictures")
    patch = of.config.vision_config.patch_size * getattr(of.config, "spatial_merge_size", 1)
    if height % patch or width % patch:
        raise of.refused(f"{width}×{height} pixels do not divide into patches of {patch}")
    rows, columns = height // patch, width // patch
    size = of.sizes[index]
    tokens = grid_of_tokens(rows, columns, (0.0, 0.0, float(size[0]), float(size[1])), size)
    return [tokens[row * columns : (row + 1) * columns] for row in range(rows)]
