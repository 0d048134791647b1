"""Models that cut a picture into tiles, and see the whole, too: Idefics3, SmolVLM, InternVL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.model.answers.pictures.image_tokens import ImageToken, Size, grid_of_tokens
from attnscope.model.answers.pictures.processed import Processed

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
    width, height = size
    runs = []
    for row in range(rows):
        for column in range(columns):
            left, top = width * column / columns, height * row / rows
            right, bottom = width * (column + 1) / columns, height * (row + 1) / rows
            tile = f"tile {row + 1}, {column + 1}"
            runs.append(grid.tokens((left, top, right, bottom), size, tile))
    return [*runs, grid.tokens((0.0, 0.0, width, height), size)]


def _frames(size: Size, n_frame: int, grid: TileGrid) -> list[list[ImageToken]]:
    """Return a grid over each frame of a video."""
    return [grid.tokens((0.0, 0.0, *size), size, frame=frame) for frame in range(n_frame)]
