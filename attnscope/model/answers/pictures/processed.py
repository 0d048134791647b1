"""Call a model's processor, and keep what its parts for pictures and for videos returned.

A processor drops some of that again, such as the numbers of rows and columns of tiles. Its parts may
also be called with settings other than their own, which are kept too.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from attnscope.base.errors import ModelError, first_line, is_out_of_memory
from attnscope.model.answers.pictures.image_tokens import Size


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
