"""Models whose image tokens form one grid over the picture, as LLaVA's and Gemma 3's; `--grid`."""

from __future__ import annotations

from math import ceil, isqrt
from typing import TYPE_CHECKING, Any

from attnscope.model.answers.pictures.image_tokens import ImageToken, Size, grid_of_tokens, within
from attnscope.model.answers.pictures.measured import shows
from attnscope.model.answers.pictures.processed import Processed

if TYPE_CHECKING:
    from attnscope.model.answers.prompt import Box


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
    return [_within_area(of, side // patch, side // patch, patch, area, size, "whole")]


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
    height, width = of.pixels.shape[-2:]
    area = _shown_area(of, index, width, height)
    return [grid_of_tokens(rows, columns, of.sizes[index], area)]


def _grid(of: Processed, index: int, rows: int, columns: int, patch: int) -> list[ImageToken]:
    """Return a grid over a picture as the processor resized, padded and cropped it.

    A token covers a patch, in pixels that the model reads; what is right of the grid or below is not
    read.
    """
    height, width = of.pixels.shape[-2:]
    area = _shown_area(of, index, width, height)
    return _within_area(of, rows, columns, patch, area, of.sizes[index], "whole")


def _within_area(
    of: Processed, rows: int, columns: int, patch: int, area: Box, size: Size, part: str
) -> list[ImageToken]:
    height, width = of.pixels.shape[-2:]
    left, top, right, bottom = area
    right = left + (right - left) * columns * patch / width
    bottom = top + (bottom - top) * rows * patch / height
    return grid_of_tokens(rows, columns, size, (left, top, right, bottom), part)


def _shown_area(of: Processed, index: int, width: int, height: int) -> Box:
    """Return the area of the original picture that the model reads."""
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
