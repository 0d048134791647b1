"""Models that cut a picture into tiles, and see the whole, too: Idefics3, InternVL, LLaVA-NeXT."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import TYPE_CHECKING

from attnscope.model.answers.pictures.grids import ImageToken, Interval, grid_of_tokens, tokens_of_cells
from attnscope.model.answers.pictures.processed import Processed, Size

if TYPE_CHECKING:
    from attnscope.model.answers.prompt import Box


def idefics3(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in Idefics3 and SmolVLM: a run for each tile, then the whole.

    The picture is stretched to a multiple of a tile in both directions, and nothing is padded.

    Source: Laurençon et al. 2024, "Building and better understanding vision-language models";
    transformers' `resize_for_vision_encoder` and `split_images`.
    """
    rows, columns = (
        [int(n) for each in of.images.returned[name] for n in each][index] for name in ("rows", "cols")
    )
    return _tiles(rows, columns, _grid_of_idefics3(of), of.sizes[index])


def idefics3_video(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a video in SmolVLM: a run for each frame, which is squeezed to a square."""
    size, n_frame = of.clips[index]
    if len(of.clips) != 1 or of.sizes:
        raise of.refused("of several videos, or pictures and a video, it reads one alone", hint="one")
    return _frames(size, n_frame, _grid_of_idefics3(of))


def internvl(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in InternVL: tiles row by row, then the whole, in one run.

    The picture is stretched to the arrangement of tiles whose ratio is nearest to its own.

    Source: Chen et al. 2024, "How Far Are We to GPT-4V?", "Dynamic High-Resolution".
    """
    return [[token for run in _chosen_tiles(of, index, _grid_of_internvl(of)) for token in run]]


def aya_vision(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in Aya Vision: a run for each of InternVL's tiles, then the whole.

    Source: Dash et al. 2025, "Aya Vision"; transformers' `AyaVisionProcessor`.
    """
    grid = _grid(of, of.config.vision_config.patch_size, of.config.downsample_factor)
    return _chosen_tiles(of, index, grid)


def _chosen_tiles(of: Processed, index: int, grid: TileGrid) -> list[list[ImageToken]]:
    """Return a run for each tile of the arrangement that InternVL's processor chooses, and the whole."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    n_tile, size = int(of.images.returned["num_patches"][index]), of.sizes[index]
    rows = columns = 0
    if n_tile > 1:
        tile = tuple(of.pixels.shape[-2:])
        fewest, most = (of.images.setting(f"{name}_patches") for name in ("min", "max"))
        columns, rows = get_optimal_tiled_canvas((size[1], size[0]), tile, fewest, most)
    if n_tile != rows * columns + 1:
        raise of.refused(
            f"a picture of {size[0]}×{size[1]} is cut into {rows}×{columns} tiles and the whole, but"
            f" its processor made {n_tile}"
        )
    return _tiles(rows, columns, grid, size)


def internvl_video(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a video in InternVL: a run for each frame, which is squeezed to a square."""
    size, n_frame = of.clips[index]
    return _frames(size, n_frame, _grid_of_internvl(of))


@dataclass(frozen=True)
class TileGrid:
    """The grid of tokens over one tile, or over the whole picture in its stead."""

    side: int  #: how many tokens stand along each side
    covered: float  #: the share of each side that they cover: 378 of 384 pixels, with patches of 14

    def tokens(self, area: Box, size: Size, part: str = "whole", frame: int = 0) -> list[ImageToken]:
        """Return the tokens of a tile that shows an area of the original picture."""
        left, top, right, bottom = area
        right, bottom = left + (right - left) * self.covered, top + (bottom - top) * self.covered
        return grid_of_tokens(self.side, self.side, size, (left, top, right, bottom), part, frame)


def _grid_of_idefics3(of: Processed) -> TileGrid:
    mask = of.inputs.get("pixel_attention_mask")
    if mask is not None and not bool(mask.bool().all()):
        raise of.refused("its processor pads tiles")
    return _grid(of, of.config.vision_config.patch_size, of.config.scale_factor)


def _grid_of_internvl(of: Processed) -> TileGrid:
    patch = of.config.vision_config.patch_size
    patch = patch[0] if isinstance(patch, list | tuple) else patch
    return _grid(of, patch, round(1 / of.config.downsample_ratio))


def _grid(of: Processed, patch: int, merged: int) -> TileGrid:
    """Return the grid over a tile, whose patches are merged in both directions."""
    height, width = of.pixels.shape[-2:]
    if height != width or height // patch % merged:
        raise of.refused(
            f"tiles of {width}×{height} pixels do not divide into patches of {patch}×{merged} pixels"
        )
    return TileGrid(height // patch // merged, height // patch * patch / height)


def _tiles(rows: int, columns: int, grid: TileGrid, size: Size) -> list[list[ImageToken]]:
    """Return a grid for each tile, row by row, if there are some, and one for the whole picture."""
    tiles = grid_of_tokens(rows, columns, size) if rows else []
    runs = [grid.tokens(tile.box, size, f"tile {tile.label}") for tile in tiles if tile.box]
    return [*runs, grid.tokens((0.0, 0.0, *size), size)]


def _frames(size: Size, n_frame: int, grid: TileGrid) -> list[list[ImageToken]]:
    """Return a grid over each frame of a video."""
    return [grid.tokens((0.0, 0.0, *size), size, frame=frame) for frame in range(n_frame)]


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
    xs, ys = ([(first * scale, end * scale) for first, end in spans] for scale in (x_scale, y_scale))
    tokens = [token for i in range(n_frame) for token in tokens_of_cells(ys, xs, size, frame=i)]
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

    def intervals(spans: list[Span], skipped: int, padding: int, scale: float) -> list[Interval]:
        """Return where rows or columns of tokens are, in pixels of the original."""
        return [
            (
                (edge(skipped + first) - padding) * scale,
                (edge(skipped + end - 1) + patch - padding) * scale,
            )
            for first, end in spans
        ]

    ys = intervals(row_spans, skipped_rows, padding[0], y_scale)
    xs = intervals(column_spans, skipped_columns, padding[1], x_scale)
    cells = tokens_of_cells(ys, xs, size, "tiles")
    for row in range(len(ys)):
        of_row, part = cells[row * len(xs) : (row + 1) * len(xs)], "tiles"
        if not is_interpolated:
            tile_row, patch_row = divmod(skipped_rows + row, side)
            part = f"tile {tile_row + 1}"
            for column, cell in enumerate(of_row):
                tile_column, patch_column = divmod(skipped_columns + column, side)
                label = f"{patch_row + 1}, {patch_column + 1}"
                of_row[column] = replace(cell, label=label, part=f"{part}, {tile_column + 1}")
        tokens += [*of_row, ImageToken("end of row", None, part)]
    return [tokens]


def _skipped(width: int, height: int, rows: int, columns: int) -> tuple[int, int]:
    """Return how many rows and columns of the grid of all tiles `unpad_image` drops on each side."""
    if width / height > columns / rows:
        return (rows - int(round(height * (columns / width), 7))) // 2, 0
    return 0, (columns - int(round(width * (rows / height), 7))) // 2
