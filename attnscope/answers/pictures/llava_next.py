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
    from transformers.image_processing_utils import get_patch_output_size, select_best_resolution

    vision, size = of.config.vision_config, of.sizes[index]
    width, height = size
    stated = [int(side) for side in of.inputs["image_sizes"][index]]
    if stated != [height, width]:
        raise of.refused(f"image_sizes has {stated[1]}×{stated[0]} for a picture of {width}×{height}")
    side = vision.image_size // vision.patch_size
    best = select_best_resolution((height, width), of.config.image_grid_pinpoints)
    if of.images.setting("image_grid_pinpoints") != of.config.image_grid_pinpoints:
        raise of.refused("image_grid_pinpoints of its processor differ from those of its config.json")
    rows, columns = (edge // vision.image_size * side for edge in best)
    import numpy as np

    blank = np.broadcast_to(np.uint8(0), (3, height, width))
    resized = get_patch_output_size(blank, best, "channels_first")  # height, width
    padding = [(whole - part) // 2 for whole, part in zip(best, resized, strict=True)]
    skipped_rows, skipped_columns = _skipped(width, height, rows, columns)
    x_scale, y_scale = width / resized[1], height / resized[0]
    whole = (0.0, 0.0, float(width), float(height))
    tokens = grid_of_tokens(side, side, whole, size)
    patch = vision.patch_size
    for row in range(skipped_rows, rows - skipped_rows):
        for column in range(skipped_columns, columns - skipped_columns):
            left, top = column * patch - padding[1], row * patch - padding[0]
            box = (
                left * x_scale,
                top * y_scale,
                (left + patch) * x_scale,
                (top + patch) * y_scale,
            )
            tile = f"tile {row // side + 1}, {column // side + 1}"
            label = f"{row % side + 1}, {column % side + 1}"
            tokens.append(ImageToken(label, within(box, size), tile))
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
