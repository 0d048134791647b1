"""Measure which area of a picture an image processor shows, with pictures of known colours.

A processor may do more than its settings say. So it is called with a black picture, a white one, and
one whose red rises from left to right and whose green rises from top to bottom: the colours that come
out tell where each pixel is from, whatever they were normalised with; and where black and white come
out alike, it pads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.answers.pictures.image_tokens import Size
from attnscope.answers.pictures.processed import ProcessorPart

if TYPE_CHECKING:
    from attnscope.answers.prompt import Box

CLOSE = 0.75
"""How far the borders of two areas may be apart, in pixels that the model reads."""


def measured_area(part: ProcessorPart, size: Size) -> Box | None:
    """Measure the area that a processor shows of a picture of a size.

    Args:
        part: the image processor, which makes one picture of one.
        size: width and height of the picture.

    Returns:
        The area in pixels of the picture, which reaches beyond its borders where it is padded; None if
        the processor does not shift and scale it evenly.
    """
    import numpy as np
    from PIL import Image

    width, height = size
    ramps = np.full((height, width, 3), 255, dtype=np.uint8)
    ramps[..., 0] = (255 * (np.arange(width) + 0.5) / width).round()
    ramps[..., 1] = (255 * (np.arange(height) + 0.5) / height).round()[:, None]
    colours = [Image.new("RGB", size), Image.new("RGB", size, "white"), Image.fromarray(ramps)]
    black, white, shown = (_pixels(part, each) for each in colours)
    spread = white - black
    seen = np.abs(spread) > np.abs(spread).max() / 2
    positions = np.divide(shown - black, spread, out=np.zeros_like(shown), where=seen)
    left, right = _line(positions[0], seen[0], width) or (None, None)
    top, bottom = _line(positions[1].T, seen[1].T, height) or (None, None)
    if left is None or right is None or top is None or bottom is None:
        return None
    return (left, top, right, bottom)


def agree(area: Box, measured: Box | None, shown: Size) -> bool:
    """Check whether an area is the measured one.

    Args:
        area, measured: the two areas.
        shown: width and height of what the model reads of them.
    """
    if measured is None:
        return False
    pixel = ((area[2] - area[0]) / shown[0], (area[3] - area[1]) / shown[1]) * 2
    return all(
        abs(a - b) <= CLOSE * max(side, 1.0) for a, b, side in zip(area, measured, pixel, strict=True)
    )


def _pixels(part: ProcessorPart, picture: Any) -> Any:
    """Return what the processor makes of a picture, `3 height width`."""
    pixels = part.part([picture], **part.arguments)["pixel_values"][0]
    return pixels.double().numpy()


def _line(positions: Any, seen: Any, length: int) -> tuple[float, float] | None:
    """Return where a line through positions begins and ends; None if they are not on a line.

    Args:
        positions: for each pixel, how far along the picture it is from, from 0 to 1; along the last
            axis, they rise.
        seen: which pixels are from the picture.
        length: that of the picture along this axis, in pixels.
    """
    import numpy as np

    inside = seen.any(0)
    if inside.sum() < 4:
        return None
    n = len(inside)
    centres = np.arange(n) + 0.5
    means = (positions * seen).sum(0)[inside] / seen.sum(0)[inside]
    few = max(1, len(means) // 8)  # at the borders, filters see the border alone
    slope, start = np.polyfit(centres[inside][few:-few], means[few:-few], 1)
    apart = np.abs(start + slope * centres[inside] - means).max()
    if slope <= 0 or apart > 2 * max(slope, 1 / length):
        return None
    return float(start * length), float((start + slope * n) * length)
