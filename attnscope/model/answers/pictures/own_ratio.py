"""Qwen-VL, GLM-4V, Gemma 4, Pixtral: a grid of the picture's own ratio; a video is several of them."""

from __future__ import annotations

from attnscope.model.answers.pictures.image_tokens import ImageToken, Size, grid_of_tokens
from attnscope.model.answers.pictures.processed import Processed, ProcessorPart


def qwen(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in a Qwen-VL: its patches, merged two by two in both directions.

    The picture is resized, without a crop, to multiples of the merged patches.

    Source: Wang et al. 2024, "Qwen2-VL", "Naive Dynamic Resolution".
    """
    return _steps(of, "image_grid_thw", index, of.sizes[index], of.images)


def qwen_video(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a video in Qwen2-VL and Qwen2.5-VL: a grid for each two frames."""
    return [[token for step in qwen3_video(of, index) for token in step]]


def qwen3_video(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a video in Qwen3-VL: a grid for each two frames, behind a time stamp."""
    size, n_frame = of.clips[index]
    per_step = of.config.vision_config.temporal_patch_size
    steps = _steps(of, "video_grid_thw", index, size, of.videos, per_step)
    if len(steps) != -(-n_frame // per_step):
        raise of.refused(f"{n_frame} frames of a video make {len(steps)} grids")
    return steps


def gemma4(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in Gemma 4: means of squares of patches, in its own ratio.

    Source: transformers' `get_aspect_ratio_preserving_size` and `Gemma4VisionPooler`.
    """
    columns, rows = (int(last) + 1 for last in of.inputs["image_position_ids"][index].amax(0))
    merge = of.config.vision_config.pooling_kernel_size
    return [_merged(of, of.images.setting("pooling_kernel_size"), merge, rows, columns, of.sizes[index])]


def pixtral(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in Pixtral and Mistral 3: a run for each row of its grid.

    The picture is resized, without a crop, to multiples of a patch, or of merged patches. A token ends
    each row.

    Source: Agrawal et al. 2024, "Pixtral 12B".
    """
    height, width = (int(side) for side in of.inputs["image_sizes"][index])
    if of.images.setting("do_center_crop"):
        raise of.refused("its processor crops pictures")
    patch = of.config.vision_config.patch_size * getattr(of.config, "spatial_merge_size", 1)
    if height % patch or width % patch:
        raise of.refused(f"{width}×{height} pixels do not divide into patches of {patch}")
    rows, columns = height // patch, width // patch
    tokens = grid_of_tokens(rows, columns, of.sizes[index])
    return [tokens[row * columns : (row + 1) * columns] for row in range(rows)]


def _steps(
    of: Processed, name: str, index: int, size: Size, part: ProcessorPart, per_step: int = 1
) -> list[list[ImageToken]]:
    """Return a grid of tokens for each step in time, which reads some frames; a picture has one.

    An input of that name has the grids of patches, `n 3`: steps in time, rows, columns.
    """
    merge = of.config.vision_config.spatial_merge_size
    n_step, rows, columns = (int(n) for n in of.inputs[name][index])
    return [
        _merged(of, part.setting("merge_size"), merge, rows, columns, size, step * per_step)
        for step in range(n_step)
    ]


def _merged(
    of: Processed, merged: int, merge: int, rows: int, columns: int, size: Size, frame: int = 0
) -> list[ImageToken]:
    """Return the tokens of a grid of patches, of which some in both directions are one token.

    How many, the processor (`merged`) and the model (`merge`) have to agree on.
    """
    if merged != merge or rows % merge or columns % merge:
        raise of.refused(
            f"{rows}×{columns} patches, merged by {merged} in its processor, are merged by {merge} in"
            " the model"
        )
    return grid_of_tokens(rows // merge, columns // merge, size, frame=frame)
