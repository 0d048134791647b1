"""Models that cut a picture into tiles, and see the whole, too: Idefics3, SmolVLM, InternVL."""

from __future__ import annotations

from attnscope.answers.pictures.image_tokens import ImageToken, Size, grid_of_tokens
from attnscope.answers.pictures.processed import Processed


def idefics3(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in Idefics3 and SmolVLM: a run for each tile, then the whole.

    The picture is stretched to a multiple of a tile in both directions, and nothing is padded.

    Source: Laurençon et al. 2024, "Building and better understanding vision-language models", section
    3.1; transformers' `resize_for_vision_encoder` and `split_images`.
    """
    rows, columns = (
        [int(n) for each in of.images.returned[name] for n in each][index] for name in ("rows", "cols")
    )
    return _tiles(rows, columns, _side_of_idefics3(of), of.sizes[index])


def idefics3_video(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a video in SmolVLM: a run for each frame, which is squeezed to a square."""
    size, n_frame = of.clips[index]
    if len(of.clips) != 1 or of.sizes:
        raise of.refused("of several videos, or pictures and a video, it reads one alone", hint="one")
    return _frames(size, n_frame, _side_of_idefics3(of))


def internvl(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in InternVL: tiles row by row, then the whole, in one run.

    The picture is stretched to the arrangement of tiles whose ratio is nearest to its own.

    Source: Chen et al. 2024, "How Far Are We to GPT-4V?", section 3.3, "Dynamic High-Resolution".
    """
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    n_tile = int(of.images.returned["num_patches"][index])
    size, side = of.sizes[index], _side_of_internvl(of)
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
    return [[token for run in _tiles(rows, columns, side, size) for token in run]]


def internvl_video(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a video in InternVL: a run for each frame, which is squeezed to a square."""
    size, n_frame = of.clips[index]
    return _frames(size, n_frame, _side_of_internvl(of))


def _side_of_idefics3(of: Processed) -> int:
    """Return how many tokens stand along a side of a tile."""
    mask = of.inputs.get("pixel_attention_mask")
    if mask is not None and not bool(mask.bool().all()):
        raise of.refused("its processor pads tiles")
    return of.pixels.shape[-1] // of.config.vision_config.patch_size // of.config.scale_factor


def _side_of_internvl(of: Processed) -> int:
    """Return how many tokens stand along a side of a tile."""
    patch = of.config.vision_config.patch_size
    patch = patch[0] if isinstance(patch, list | tuple) else patch
    return int(of.pixels.shape[-1] // patch * of.config.downsample_ratio)


def _tiles(rows: int, columns: int, side: int, size: Size) -> list[list[ImageToken]]:
    """Return a grid for each tile, row by row, and one for the whole picture.

    Args:
        rows, columns: how many tiles there are; 0: the whole alone.
        side: the tokens along each side of a tile.
        size: the picture's.
    """
    width, height = size
    runs = [
        grid_of_tokens(
            side,
            side,
            (
                width * column / columns,
                height * row / rows,
                width * (column + 1) / columns,
                height * (row + 1) / rows,
            ),
            size,
            f"tile {row + 1}, {column + 1}",
        )
        for row in range(rows)
        for column in range(columns)
    ]
    return [*runs, grid_of_tokens(side, side, (0.0, 0.0, float(width), float(height)), size)]


def _frames(size: Size, n_frame: int, side: int) -> list[list[ImageToken]]:
    """Return a grid over each frame of a video."""
    area = (0.0, 0.0, float(size[0]), float(size[1]))
    return [grid_of_tokens(side, side, area, size, frame=frame) for frame in range(n_frame)]
