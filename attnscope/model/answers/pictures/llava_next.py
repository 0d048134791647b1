"""LLaVA-NeXT, LLaVA-OneVision: a grid over the whole picture, and one over its tiles without padding."""

from __future__ import annotations

from math import ceil, sqrt

from attnscope.model.answers.pictures.image_tokens import ImageToken, grid_of_tokens, within
from attnscope.model.answers.pictures.processed import Processed

Span = tuple[int, int]
"""The first of the rows of patches that a row of tokens reads, and the end (exclusive); or columns."""


def llava_next(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in LLaVA-NeXT.

    The whole is squeezed to a square. The picture is also resized to the best of several resolutions,
    padded evenly on both sides, and cut into tiles; rows and columns of the grid of all tiles that hold
    nothing but padding are dropped, and a token ends each row.

    Source: Liu et al. 2024, "LLaVA-NeXT", "Dynamic High Resolution"; transformers'
    `pack_image_features` and `unpad_image`, whose rounding is repeated here.
    """
    return _whole_and_tiles(of, index, None)


def llava_onevision(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in LLaVA-OneVision: as in LLaVA-NeXT, but not more than the limit.

    A grid of many tiles is made smaller by bilinear interpolation, in which a token reads up to two
    patches in each direction.

    Source: Li et al. 2024, "LLaVA-OneVision", "Higher AnyRes"; transformers'
    `pack_image_features`.
    """
    name = of.config.vision_aspect_ratio
    if not name.startswith("anyres_max_") or name != of.processor.vision_aspect_ratio:
        raise of.refused(
            f"vision_aspect_ratio is {of.processor.vision_aspect_ratio} in its processor, and {name} in"
            " the model"
        )
    return _whole_and_tiles(of, index, int(name.removeprefix("anyres_max_")))


def llava_onevision_video(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a video in LLaVA-OneVision: a grid over each frame, half as fine, and an end.

    Source: as `llava_onevision`; transformers' `apply_pooling`.
    """
    vision, (size, n_frame) = of.config.vision_config, of.clips[index]
    side = vision.image_size // vision.patch_size
    if tuple(of.inputs["pixel_values_videos"].shape[-2:]) != (vision.image_size, vision.image_size):
        raise of.refused(f"its frames are not of {vision.image_size}×{vision.image_size} pixels")
    spans = interpolated(side, ceil(side / 2))
    x_scale, y_scale = (length * vision.patch_size / vision.image_size for length in size)
    tokens = [
        ImageToken(
            f"{row + 1}, {column + 1}",
            within((left * x_scale, top * y_scale, right * x_scale, bottom * y_scale), size),
            frame=frame,
        )
        for frame in range(n_frame)
        for row, (top, bottom) in enumerate(spans)
        for column, (left, right) in enumerate(spans)
    ]
    return [[*tokens, ImageToken("end of video", None, frame=n_frame - 1)]]


def interpolated(n: int, n_out: int) -> list[Span]:
    """Return which of n patches each of fewer tokens reads, as torch interpolates bilinearly.

    >>> interpolated(3, 2)
    [(0, 2), (1, 3)]
    """
    centres = [max((i + 0.5) * n / n_out - 0.5, 0.0) for i in range(n_out)]
    return [(int(x), min(ceil(x - 1e-6) + 1, n)) for x in centres]


def _whole_and_tiles(of: Processed, index: int, most_tiles: int | None) -> list[list[ImageToken]]:
    """Return the tokens of a picture, and of its tiles: as many as patches, up to so many tiles."""
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
    tokens = grid_of_tokens(side, side, size, (0.0, 0.0, width * covered, height * covered))
    n_row, n_column = rows - 2 * skipped_rows, columns - 2 * skipped_columns
    ratio = 1.0 if most_tiles is None else sqrt(n_row * n_column / (most_tiles * side**2))
    is_interpolated = ratio > 1.1
    row_spans, column_spans = (
        interpolated(n, int(n // ratio)) if is_interpolated else [(i, i + 1) for i in range(n)]
        for n in (n_row, n_column)
    )

    def edge(nth: int) -> int:
        """Return where a row or column of patches begins, in pixels of all tiles."""
        return nth // side * tile + nth % side * patch

    for row, (first_row, end_row) in enumerate(row_spans, 1):
        top = edge(skipped_rows + first_row) - padding[0]
        bottom = edge(skipped_rows + end_row - 1) + patch - padding[0]
        for column, (first_column, end_column) in enumerate(column_spans, 1):
            left = edge(skipped_columns + first_column) - padding[1]
            right = edge(skipped_columns + end_column - 1) + patch - padding[1]
            box = (left * x_scale, top * y_scale, right * x_scale, bottom * y_scale)
            part, label = "tiles", f"{row}, {column}"
            if not is_interpolated:
                in_tile = [
                    divmod(n, side) for n in (skipped_rows + row - 1, skipped_columns + column - 1)
                ]
                (tile_row, patch_row), (tile_column, patch_column) = in_tile
                part = f"tile {tile_row + 1}, {tile_column + 1}"
                label = f"{patch_row + 1}, {patch_column + 1}"
            tokens.append(ImageToken(label, within(box, size), part))
        part = "tiles" if is_interpolated else f"tile {(skipped_rows + row - 1) // side + 1}"
        tokens.append(ImageToken("end of row", None, part))
    return [tokens]


def _skipped(width: int, height: int, rows: int, columns: int) -> tuple[int, int]:
    """Return how many rows and columns of the grid of all tiles `unpad_image` drops on each side."""
    if width / height > columns / rows:
        return (rows - int(round(height * (columns / width), 7))) // 2, 0
    return 0, (columns - int(round(width * (rows / height), 7))) // 2
