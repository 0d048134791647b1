"""LLaVA-NeXT: a grid over the whole picture, then one over its tiles without their padding."""

from __future__ import annotations

from attnscope.answers.pictures.image_tokens import ImageToken, grid_of_tokens, within
from attnscope.answers.pictures.processed import Processed


def llava_next(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in LLaVA-NeXT.

    The whole is squeezed to a square. The picture is also resized to the best of several resolutions,
    padded evenly on both sides, and cut into tiles; rows and columns of the grid of all tiles that hold
    nothing but padding are dropped, and a token ends each row.

    Source: Liu et al. 2024, "LLaVA-NeXT", section "Dynamic High Resolution"; transformers'
    `pack_image_features` and `unpad_image`, whose rounding is repeated here.
    """
    import numpy as np
    from transformers.image_processing_utils import get_patch_output_size, select_best_resolution

    vision, size = of.config.vision_config, of.sizes[index]
    tile, patch = vision.image_size, vision.patch_size
    width, height = size
    stated = [int(side) for side in of.inputs["image_sizes"][index]]
    if stated != [height, width]:
        raise of.refused(f"image_sizes has {stated[1]}×{stated[0]} for a picture of {width}×{height}")
    if of.images.setting("image_grid_pinpoints") != of.config.image_grid_pinpoints:
        raise of.refused("image_grid_pinpoints of its processor differ from those of its config.json")
    if tuple(of.pixels.shape[-2:]) != (tile, tile):
        raise of.refused(f"its tiles are {tuple(of.pixels.shape[-2:])}, not of {tile} pixels")
    best = select_best_resolution((height, width), of.config.image_grid_pinpoints)  # height, width
    blank = np.broadcast_to(np.uint8(0), (3, height, width))
    resized = get_patch_output_size(blank, best, "channels_first")
    padding = [(whole - part) // 2 for whole, part in zip(best, resized, strict=True)]
    x_scale, y_scale = width / resized[1], height / resized[0]
    side = tile // patch
    rows, columns = (edge // tile * side for edge in best)
    skipped_rows, skipped_columns = _skipped(width, height, rows, columns)
    covered = side * patch / tile
    tokens = grid_of_tokens(side, side, (0.0, 0.0, width * covered, height * covered), size)
    for row in range(skipped_rows, rows - skipped_rows):
        top = row // side * tile + row % side * patch - padding[0]
        for column in range(skipped_columns, columns - skipped_columns):
            left = column // side * tile + column % side * patch - padding[1]
            box = (
                left * x_scale,
                top * y_scale,
                (left + patch) * x_scale,
                (top + patch) * y_scale,
            )
            part = f"tile {row // side + 1}, {column // side + 1}"
            label = f"{row % side + 1}, {column % side + 1}"
            tokens.append(ImageToken(label, within(box, size), part))
        tokens.append(ImageToken("end of row", None, f"tile {row // side + 1}"))
    return [tokens]


def _skipped(width: int, height: int, rows: int, columns: int) -> tuple[int, int]:
    """Return how many rows and columns are dropped on each side, as `unpad_image` drops them.

    Args:
        width, height: the picture's.
        rows, columns: those of the grid of all tiles, with padding.
    """
    if width / height > columns / rows:
        return (rows - int(round(height * (columns / width), 7))) // 2, 0
    return 0, (columns - int(round(width * (rows / height), 7))) // 2
