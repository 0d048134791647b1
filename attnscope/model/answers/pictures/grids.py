"""Models whose image tokens form one grid over a picture: LLaVA, Gemma, Qwen-VL, Pixtral; `--grid`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isqrt
from typing import TYPE_CHECKING, Any

from attnscope.model.answers.pictures.processed import Processed, ProcessorPart, Size, shows

if TYPE_CHECKING:
    from attnscope.model.answers.prompt import Box


Interval = tuple[float, float]


@dataclass(frozen=True)
class ImageToken:
    """One token that a model puts features of a picture into."""

    label: str  #: what it is called: row and column of its grid, from 1: `3, 5`; or `end of row`
    #: the pixels of the original picture that it covers; None: none, since it ends a row, or covers
    #: padding
    box: Box | None
    part: str = "whole"  #: the copy of the picture that it belongs to, as in `Patch`
    frame: int = 0  #: the index of the frame of a video


def grid_of_tokens(
    rows: int, columns: int, size: Size, area: Box | None = None, part: str = "whole", frame: int = 0
) -> list[ImageToken]:
    """Divide an area, by default the picture, evenly among the tokens of a grid, row by row.

    Where a picture is padded, its area, in pixels of the original, reaches beyond its borders.
    """
    left, top, right, bottom = area or (0.0, 0.0, float(size[0]), float(size[1]))
    xs = [left + (right - left) * column / columns for column in range(columns + 1)]
    ys = [top + (bottom - top) * row / rows for row in range(rows + 1)]
    return tokens_of_cells([*pairwise(ys)], [*pairwise(xs)], size, part, frame)


def tokens_of_cells(
    ys: Sequence[Interval], xs: Sequence[Interval], size: Size, part: str = "whole", frame: int = 0
) -> list[ImageToken]:
    """Return a token for each row and column, row by row, where both are intervals in pixels."""
    return [
        ImageToken(f"{row}, {column}", within((left, top, right, bottom), size), part, frame)
        for row, (top, bottom) in enumerate(ys, 1)
        for column, (left, right) in enumerate(xs, 1)
    ]


LEAST = 1e-6  #: Boxes narrower than this, in pixels, are nothing but rounding


def within(box: Box, size: Size) -> Box | None:
    """Return the part of a box that lies within a picture; None if none does."""
    left, top, right, bottom = box
    left, top = max(left, 0.0), max(top, 0.0)
    right, bottom = min(right, float(size[0])), min(bottom, float(size[1]))
    return (left, top, right, bottom) if min(right - left, bottom - top) > LEAST else None


def lost_share(boxes: Iterable[Box], size: Size) -> float:
    """Return the share of a picture that none of some boxes covers, which may overlap."""
    import numpy as np

    array = np.array(list(boxes), dtype=np.float64).reshape(-1, 4)
    xs = np.unique(array[:, [0, 2]].round(6))
    ys = np.unique(array[:, [1, 3]].round(6))
    covered = np.zeros((max(len(ys) - 1, 0), max(len(xs) - 1, 0)), dtype=bool)
    first_x, first_y, last_x, last_y = (
        np.searchsorted(edges, array[:, side].round(6))
        for side, edges in ((0, xs), (1, ys), (2, xs), (3, ys))
    )
    for x0, y0, x1, y1 in zip(first_x, first_y, last_x, last_y, strict=True):
        covered[y0:y1, x0:x1] = True
    area = float(np.diff(ys) @ covered @ np.diff(xs)) if covered.size else 0.0
    share = 1 - area / (size[0] * size[1])
    return share if share > LEAST else 0.0


def llava(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in LLaVA: a grid over its centre, since the rest is cropped away.

    Source: Liu et al. 2023, "Visual Instruction Tuning": the features of CLIP's patches, projected one
    by one.
    """
    height, width = of.pixels.shape[-2:]
    vision = of.config.vision_config
    patch = vision.patch_size
    grid = _grid(of, index, height // patch, width // patch, patch)
    all_of_clip = getattr(of.config, "vision_feature_select_strategy", None) == "full"
    if all_of_clip and vision.model_type == "clip_vision_model":
        return [[ImageToken("[CLS]", None), *grid]]
    return [grid]


def deepseek_vl(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in DeepSeek-VL and Janus: a grid over a padded square.

    The longer side is resized, and the shorter one is padded evenly on both sides.

    Source: transformers' `DeepseekVLImageProcessor`, whose rounding is repeated here.
    """
    side, size = of.pixels.shape[-1], of.sizes[index]
    spans = []
    for length in size:
        resized = max(round(length * (side / max(size))), of.images.setting("min_size"))
        first, scale = -((side - resized) // 2), length / resized
        spans.append((first * scale, (first + side) * scale))
    (left, right), (top, bottom) = spans
    area = _checked(of, index, (left, top, right, bottom), (side, side))
    patch = of.config.vision_config.patch_size
    return [_within_area(of, side // patch, side // patch, patch, area, size)]


def gemma3(of: Processed, index: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in Gemma 3: a grid over the whole, then one over each crop.

    The whole is squeezed to a square, its patches are averaged. A long picture is divided along its
    longer side if the processor pans and scans.

    Source: Gemma Team 2025, "Gemma 3 Technical Report"; transformers' `pan_and_scan`.
    """
    vision = of.config.vision_config
    side = isqrt(of.config.mm_tokens_per_image)
    pooled = of.pixels.shape[-1] // vision.patch_size // side * vision.patch_size
    numbers = [int(n) for n in of.images.returned["num_crops"]]
    if len(of.pixels) != len(numbers) + sum(numbers):
        raise of.refused(
            f"{len(numbers)} pictures with {sum(numbers)} crops are {len(of.pixels)} pixel_values"
        )
    runs = [_grid(of, index, side, side, pooled)]
    width, height = of.sizes[index]
    for n in range(numbers[index]):
        step = ceil(max(width, height) / numbers[index])
        wide = width >= height
        crop = (n * step, 0, n * step + step, height) if wide else (0, n * step, width, n * step + step)
        shown = within(crop, (width, height))
        assert shown is not None
        part = f"crop {n + 1}"
        runs.append(_within_area(of, side, side, pooled, shown, (width, height), part))
    return runs


def by_hand(of: Processed, index: int, rows: int, columns: int) -> list[list[ImageToken]]:
    """Return the tokens of a picture in a grid that the user names, over what the processor shows."""
    if len(of.pixels) != len(of.sizes) or of.pixels.dim() != 4:
        raise of.refused(
            f"of {len(of.sizes)} pictures, its processor makes pixel_values of {tuple(of.pixels.shape)}"
        )
    return [grid_of_tokens(rows, columns, of.sizes[index], _shown_area(of, index))]


def _grid(of: Processed, index: int, rows: int, columns: int, patch: int) -> list[ImageToken]:
    """Return a grid over a picture as the processor resized, padded and cropped it.

    A token covers a patch, in pixels that the model reads; what is right of the grid or below is not
    read.
    """
    return _within_area(of, rows, columns, patch, _shown_area(of, index), of.sizes[index])


def _within_area(
    of: Processed, rows: int, columns: int, patch: int, area: Box, size: Size, part: str = "whole"
) -> list[ImageToken]:
    height, width = of.pixels.shape[-2:]
    left, top, right, bottom = area
    right = left + (right - left) * columns * patch / width
    bottom = top + (bottom - top) * rows * patch / height
    return grid_of_tokens(rows, columns, size, (left, top, right, bottom), part)


def _shown_area(of: Processed, index: int) -> Box:
    """Return the area of the original picture that the model reads."""
    height, width = of.pixels.shape[-2:]
    original = of.sizes[index]
    padded, left, top = original, 0.0, 0.0
    if of.images.setting("do_pad") and hasattr(of.images.part, "pad_to_square"):
        side = max(original)
        padded = (side, side)
        left, top = -float((side - original[0]) // 2), -float((side - original[1]) // 2)
    resized = padded
    if of.images.setting("do_resize"):
        resized = _resized(of.images.setting("size"), padded)
    x_scale, y_scale = padded[0] / resized[0], padded[1] / resized[1]
    shown = resized
    if of.images.setting("do_center_crop"):
        crop = of.images.setting("crop_size")
        shown = (_of(crop, "width"), _of(crop, "height"))
    if shown != (width, height) or shown[0] > resized[0] or shown[1] > resized[1]:
        raise of.refused(
            f"the settings of its image processor make a picture of {shown[0]}×{shown[1]} pixels from"
            f" {resized[0]}×{resized[1]}, but the model reads {width}×{height}"
        )
    left += (resized[0] - shown[0]) // 2 * x_scale
    top += (resized[1] - shown[1]) // 2 * y_scale
    area = (left, top, left + shown[0] * x_scale, top + shown[1] * y_scale)
    return _checked(of, index, area, shown)


def _checked(of: Processed, index: int, area: Box, shown: Size) -> Box:
    """Return an area of a picture; raise a ModelError unless the processor is measured to show it."""
    if not shows(of.images, of.sizes[index], area, shown):
        raise of.refused("its image processor does something else than its settings say")
    return area


def _resized(size: Any, original: Size) -> Size:
    """Return the width and height that a picture is resized to."""
    import numpy as np
    from transformers.image_transforms import get_resize_output_image_size, get_size_with_aspect_ratio

    shortest, longest = _of(size, "shortest_edge"), _of(size, "longest_edge")
    width, height = original
    if shortest and longest:
        height, width = get_size_with_aspect_ratio((height, width), shortest, longest)
    elif shortest:
        blank = np.broadcast_to(np.uint8(0), (height, width, 3))
        height, width = get_resize_output_image_size(
            blank, shortest, default_to_square=False, input_data_format="channels_last"
        )
    elif _of(size, "height") and _of(size, "width"):
        width, height = _of(size, "width"), _of(size, "height")
    return width, height


def _of(setting: Any, name: str) -> Any:
    """Return a side of a setting for sizes, a dict or an object of transformers; None if it has none."""
    return setting.get(name) if isinstance(setting, dict) else getattr(setting, name, None)


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
