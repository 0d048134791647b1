"""Call a model's processor, keep what its parts returned, and measure what they show of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, first_line, is_out_of_memory

if TYPE_CHECKING:
    import numpy as np

    from attnscope.model.answers.prompt import Box


Size = tuple[int, int]  #: Width and height of a picture in pixels


@dataclass
class ProcessorPart:
    """A part of a processor, which reads pictures or videos; it can be called like that part."""

    part: Any
    read: tuple[Any, ...] = ()  #: what it was called with beside these
    returned: dict[str, Any] = field(default_factory=dict)  #: what it returned
    arguments: dict[str, Any] = field(default_factory=dict)  #: the settings that it was called with

    def __call__(self, *inputs: Any, **arguments: Any) -> Any:
        """Call the part."""
        features = self.part(*inputs, **arguments)
        self.read, self.returned, self.arguments = inputs, dict(features), arguments
        return features

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the part."""
        return getattr(self.__dict__["part"], name)

    def setting(self, name: str) -> Any:
        """Return a setting as it was in the call; None if there is none."""
        value = self.arguments.get(name)
        return getattr(self.part, name, None) if value is None else value


@dataclass
class Processed:
    """What a processor made of a text with pictures and videos."""

    model: str
    config: Any
    processor: Any
    inputs: dict[str, Any]
    text: str  #: the text that was tokenized, with as many image tokens as each picture has
    #: images, videos: the processor's parts, after the call
    images: ProcessorPart
    videos: ProcessorPart
    sizes: list[Size]
    #: for each video, the size and the number of its frames that the model reads
    clips: list[tuple[Size, int]]

    @property
    def pixels(self) -> Any:
        """What the model reads of the pictures, `… height width`."""
        pixels = self.inputs.get("pixel_values")
        if pixels is None or not hasattr(pixels, "dim"):
            raise self.refused("its processor makes no pixel_values of one size")
        return pixels

    def refused(self, why: str, hint: str | None = None) -> ModelError:
        """Return the error for pictures whose tokens are not known to cover anything."""
        return ModelError(
            f"which pixels the image tokens of {self.model} ({self.config.model_type}) cover is not"
            f" known: {why}.",
            hint=hint,
        )


def processed(
    model: str, processor: Any, config: Any, text: str, pictures: Sequence[Any], videos: Sequence[Any]
) -> Processed:
    """Call a processor."""
    import numpy as np

    called = copy(processor)
    images, frames = (
        ProcessorPart(getattr(processor, f"{kind}_processor", None)) for kind in ("image", "video")
    )
    called.tokenizer = tokenizer = ProcessorPart(processor.tokenizer)
    arguments: dict[str, Any] = {"text": text, "return_tensors": "pt"}
    if pictures:
        called.image_processor = images
        arguments["images"] = list(pictures)
    if videos:
        called.video_processor = frames
        arguments["videos"] = [np.stack([np.asarray(each) for each in video.frames]) for video in videos]
        arguments["video_metadata"] = [video.metadata() for video in videos]
        arguments["return_metadata"] = True
    bos = getattr(processor.tokenizer, "bos_token", None)
    if bos and text.startswith(bos):  # a chat template has added it
        arguments["add_special_tokens"] = False
    try:
        inputs = dict(called(**arguments))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(
            f"the processor of {model} cannot read this prompt: {first_line(error).rstrip('.')}."
        ) from error
    for name in ("labels", "video_metadata"):
        inputs.pop(name, None)
    clips = []
    for video, metadata in zip(videos, frames.returned.get("video_metadata", ()), strict=True):
        indices = metadata.frames_indices
        video.shown = list(range(len(video.frames)) if indices is None else map(int, indices))
        clips.append((video.frames[0].size, len(video.shown)))
    sizes = [picture.size for picture in pictures]
    tokenized = tokenizer.read[0] if tokenizer.read else tokenizer.arguments.get("text", "")
    expanded = tokenized if isinstance(tokenized, str) else "".join(tokenized)
    return Processed(model, config, processor, inputs, expanded, images, frames, sizes, clips)


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

    For each pixel that the model reads, they are where in the original it is from, and rise along the
    last axis; `seen` are those from the picture. Of the span, in pixels of the original, the model reads
    `n_shown`; two neighbouring colours are a `step` apart there.
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
