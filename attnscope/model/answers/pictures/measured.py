"""Measure which area of a picture an image processor shows, with pictures of known colours.

A processor may do more than its settings say. So it is called with a black picture, a white one, and
one whose red rises from left to right and whose green rises from top to bottom: the colours that come
out tell where each pixel is from, whatever they were normalised with; and where black and white come
out alike, it pads. The colours rise within the area that is to be checked, so that a narrow one has as
many of them as a wide one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.model.answers.pictures.image_tokens import Size
from attnscope.model.answers.pictures.processed import ProcessorPart

if TYPE_CHECKING:
    import numpy as np

    from attnscope.model.answers.prompt import Box

CLOSE = 0.75  #: how far the borders of two areas may be apart, in pixels that the model reads

FEW = 2.0
"""So few pixels of the original have no line of colours: they are compared by their middle alone."""

COLOURS = 255


def shows(part: ProcessorPart, size: Size, area: Box, shown: Size) -> bool:
    """Check whether a processor shows an area of a picture, and shifts and scales it evenly.

    The area, in pixels of the picture, reaches beyond its borders where it is padded; `shown` is the
    size of what the model reads of it.
    """
    import numpy as np
    from PIL import Image

    width, height = size
    (left, right), (top, bottom) = _rise(area[0], area[2], width), _rise(area[1], area[3], height)
    ramps = np.full((height, width, 3), 255, dtype=np.uint8)
    ramps[..., 0] = _colours(left, right, width)
    ramps[..., 1] = _colours(top, bottom, height)[:, None]
    pictures = [Image.new("RGB", size), Image.new("RGB", size, "white"), Image.fromarray(ramps)]
    black, white, coloured = (_pixels(part, each) for each in pictures)
    with np.errstate(all="ignore"):  # of settings that make pixels infinite, none is seen
        spread = white - black
        seen = np.abs(spread) > np.abs(spread).max() / 2
        shares = np.divide(coloured - black, spread, out=np.zeros_like(coloured), where=seen)
    across, down = left + shares[0] * (right - left), top + shares[1].T * (bottom - top)
    return _agrees(across, seen[0], (area[0], area[2]), shown[0], (right - left) / COLOURS) and _agrees(
        down, seen[1].T, (area[1], area[3]), shown[1], (bottom - top) / COLOURS
    )


def _rise(first: float, last: float, length: int) -> tuple[float, float]:
    """Return where colours begin and end to rise: a little around an area, whose borders filters see."""
    first, last = max(first, 0.0), min(last, float(length))
    around = 1 + (last - first) / 10
    return first - around, last + around


def _colours(first: float, last: float, length: int) -> np.ndarray:
    """Return the colour of each pixel along an axis."""
    import numpy as np

    shares = (np.arange(length) + 0.5 - first) / (last - first)
    return (COLOURS * shares.clip(0, 1)).round()


def _pixels(part: ProcessorPart, picture: Any) -> Any:
    """Return what the processor makes of a picture, `3 height width`."""
    pixels = part.part([picture], **part.arguments)["pixel_values"][0]
    return pixels.double().numpy()


def _agrees(
    positions: np.ndarray, seen: np.ndarray, span: tuple[float, float], n_shown: int, step: float
) -> bool:
    """Check whether positions along an axis are on the line from the first to the last of a span.

    Args:
        positions: for each pixel that the model reads, where in the original it is from; along the last
            axis, they rise.
        seen: which of these pixels are from the picture.
        span: where they should be from, in pixels of the original, of which the model reads `n_shown`.
        step: how far two neighbouring colours are apart in the original.
    """
    import numpy as np

    inside: np.ndarray = np.asarray(seen.any(0))
    if not inside.any():
        return False
    n, pixel = len(inside), (span[1] - span[0]) / n_shown
    centres = np.arange(n) + 0.5
    means = (positions * seen).sum(0)[inside] / seen.sum(0)[inside]
    if means.max() - means.min() < FEW:
        expected = span[0] + (span[1] - span[0]) * centres[inside].mean() / n
        return bool(span[1] - span[0] < 2 * FEW and abs(means.mean() - expected) <= 1)
    few = max(1, len(means) // 8)  # at the borders, filters see the border alone
    if len(means) <= 2 * few + 1:
        return False
    slope, start = np.polyfit(centres[inside][few:-few], means[few:-few], 1)
    apart = np.abs(start + slope * centres[inside] - means).max()
    if slope <= 0 or apart > 2 * max(slope, 1.0, step):
        return False
    borders = (start, start + slope * n)
    return all(abs(a - b) <= CLOSE * max(pixel, 1.0) for a, b in zip(span, borders, strict=True))
