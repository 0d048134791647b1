"""Qwen-VL, GLM-4V and Gemma 4: a grid of the picture's own ratio; a video is several of them."""

from __future__ import annotations

from attnscope.answers.pictures.image_tokens import ImageToken, Size, grid_of_tokens
from attnscope.answers.pictures.processed import Processed, ProcessorPart


def qwen(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in a Qwen-VL: its patches, merged two by two in both directions.

    The picture is resized, without a crop, to multiples of the merged patches.

    Source: Wang et al. 2024, "Qwen2-VL", "Naive Dynamic Resolution".
    """
    return _steps(of, "image_grid_thw", index, of.sizes[index], of.images)


def gemma4(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in Gemma 4: means of squares of patches, in its own ratio.

    Source: transformers' `get_aspect_ratio_preserving_size` and `Gemma4VisionPooler`.
    """
    columns, rows = (int(last) + 1 for last in of.inputs["image_position_ids"][index].amax(0))
    merge = of.config.vision_config.pooling_kernel_size
    return [_merged(of, of.images.setting("pooling_kernel_size"), merge, rows, columns, of.sizes[index])]


def qwen_video(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a video in Qwen2-VL and Qwen2.5-VL: a grid for each two frames."""
    return [[token for step in _video_steps(of, index) for token in step]]


def qwen3_video(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a video in Qwen3-VL: a grid for each two frames, behind a time stamp."""
    return _video_steps(of, index)


def _video_steps(of: Processed, index: int) -> list[list[ImageToken]]:
    size, n_frame = of.clips[index]
    steps = _steps(of, "video_grid_thw", index, size, of.videos)
    per_step = of.config.vision_config.temporal_patch_size
    if len(steps) != -(-n_frame // per_step):
        raise of.refused(f"{n_frame} frames of a video make {len(steps)} grids")
    return steps


def _steps(
    of: Processed, name: str, index: int, size: Size, part: ProcessorPart
) -> list[list[ImageToken]]:
    """Return a grid of tokens for each step in time; a picture has one.

    Args:
        of: what the processor made.
        name: the input that holds the grids of patches, `n 3`: steps in time, rows, columns.
        index: that of the picture or the video.
        size: its width and height.
        part: the part of the processor that read it.
    """
    merge = of.config.vision_config.spatial_merge_size
    n_step, rows, columns = (int(n) for n in of.inputs[name][index])
    return [
        _merged(of, part.setting("merge_size"), merge, rows, columns, size, step * _per_step(of, name))
        for step in range(n_step)
    ]


def _merged(
    of: Processed, merged: int, merge: int, rows: int, columns: int, size: Size, frame: int = 0
) -> list[ImageToken]:
    """Return the tokens of a grid of patches that are merged.

    Args:
        of: what the processor made.
        merged, merge: how many patches, in both directions, are one token in the processor, and in the
            model.
        rows, columns: those of patches.
        size: width and height of the picture or the video.
        frame: that of the tokens.
    """
    if merged != merge or rows % merge or columns % merge:
        raise of.refused(
            f"{rows}×{columns} patches, merged by {merged} in its processor, are merged by {merge} in"
            " the model"
        )
    area = (0.0, 0.0, float(size[0]), float(size[1]))
    return grid_of_tokens(rows // merge, columns // merge, area, size, frame=frame)


def _per_step(of: Processed, name: str) -> int:
    """Return how many frames of a video one step in time reads."""
    return of.config.vision_config.temporal_patch_size if name.startswith("video") else 1
