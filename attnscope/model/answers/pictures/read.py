"""Turn a text with pictures and videos into a prompt in which every image token has its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.spelling import spelled
from attnscope.base.units import counted
from attnscope.model.answers.pictures.families import (
    FAMILIES,
    NO_PATCHES,
    PictureFamily,
    check_placeholders,
    order_of,
    picture_family,
)
from attnscope.model.answers.pictures.grids import ImageToken, by_hand, lost_share
from attnscope.model.answers.pictures.processed import Processed, processed
from attnscope.model.answers.pictures.videos import Video
from attnscope.model.answers.prompt import Patch, PatchedPicture, Prompt, Segment, spans_of
from attnscope.model.run.tokenize import max_tokens, tokens_of
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    from PIL.Image import Image


def encode(
    processor: Any,
    config: Any,
    text: str,
    pictures: Sequence[Image],
    videos: Sequence[Video] = (),
    *,
    grid: str | None = None,
    name: str | None = None,
) -> Prompt:
    """Encode a text that has its placeholders, such as a rendered chat, with its pictures.

    The prompt has a segment for each picture, with the tokens that begin and end it and its rows; and
    for each image token the rectangle of the original picture that it covers. A grid such as `24x24` is
    that of each picture's tokens, for a family whose geometry is not known.
    """
    name = name or str(getattr(config, "_name_or_path", "") or config.model_type)
    check_placeholders(name, processor, text, len(pictures), len(videos))
    of = processed(name, processor, config, text, pictures, videos)
    ids = of.inputs["input_ids"][0].tolist()
    if (limit := max_tokens(config)) is not None and len(ids) > limit:
        raise OptionError(
            f"the prompt is {len(ids)} tokens long, but {name} takes at most {limit}.",
            hint=f"{'a video of fewer frames' if videos else 'a smaller picture'}, or a shorter text",
        )
    tokens = tokens_of(processor.tokenizer, ids)
    prompt = Prompt(of.inputs, tokens, tokenizer=processor.tokenizer, spelled=of.text)
    of_family = picture_family(config) or PictureFamily(_of_grid(grid))
    for visual in _visuals(of, of_family, order_of(processor, text), pictures, videos, ids):
        _add(prompt, visual, config)
    metadata = of.videos.returned.get("video_metadata", [])
    for number, (video, each) in enumerate(zip(videos, metadata, strict=True), 1):
        if video.fps is None and each.fps is not None:
            prompt.notices.append(
                f"video {number} does not say how many frames a second has: its processor takes"
                f" {each.fps:g}."
            )
    return prompt


@dataclass
class Visual:
    """A picture or a video, and where its tokens are."""

    name: str  #: `picture 1`, `video 1`
    frames: list[Image]  #: the picture, or the frames of the video that the model reads
    numbers: list[int]  #: their numbers in the video, from 1
    runs: list[list[ImageToken]]  #: its tokens, as runs without other tokens inside
    image_id: int  #: the id of its tokens
    positions: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[ImageToken]:
        """All its tokens."""
        return [token for run in self.runs for token in run]


def check_family(name: str, config: Any, grid: str | None, videos: Sequence[Any]) -> None:
    """Raise an error unless the geometry of a model's image tokens is known, or named by the user."""
    if not hasattr(config, "vision_config"):
        inside = [part for part, each in vars(config).items() if hasattr(each, "vision_config")]
        raise ModelError(
            f"{name} ({config.model_type}) reads pictures in a model inside it ({inside[0]}), which"
            " attnscope does not take out of it."
            if inside
            else f"{name} ({config.model_type}) does not read pictures beside a text.",
            hint="a model that does, such as llava-hf/llava-1.5-7b-hf",
        )
    if (why := NO_PATCHES.get(config.model_type)) is not None:
        raise ModelError(
            f"no image token of {name} ({config.model_type}) stands for a part of a picture: {why}."
        )
    of_family = picture_family(config)
    if of_family is not None and grid is not None:
        raise OptionError(
            f"{spelled('grid')} is not needed: the image tokens of {name} ({config.model_type}) are"
            " known.",
            hint=f"no {spelled('grid')}",
        )
    if of_family is None and grid is None:
        raise ModelError(
            f"which pixels each image token of {name} ({config.model_type}) covers is not known:"
            f" attnscope knows {', '.join(FAMILIES)}.",
            hint=f"{spelled(grid='ROWSxCOLUMNS')}, if its image tokens form one grid over the picture",
        )
    if videos and (of_family is None or of_family.video is None):
        readers = ", ".join(each for each, known in FAMILIES.items() if known.video)
        raise ModelError(
            f"{name} ({config.model_type}) reads no videos that attnscope knows: {readers} do.",
            hint="frames of it as pictures",
        )


def _of_grid(grid: str | None) -> Callable[[Processed, int], list[list[ImageToken]]]:
    """Return the tokens of a picture as the option `--grid` describes them."""
    found = re.fullmatch(r"\s*([1-9]\d{0,3})\s*[x×,]\s*([1-9]\d{0,3})\s*", grid or "")
    if found is None:
        raise OptionError(
            f"{spelled('grid')} is {grid!r}, but must be rows and columns.", hint=spelled(grid="24x24")
        )
    rows, columns = int(found[1]), int(found[2])
    return lambda of, index: by_hand(of, index, rows, columns)


def _visuals(
    of: Processed,
    of_family: PictureFamily,
    order: list[str],
    pictures: Sequence[Image],
    videos: Sequence[Video],
    ids: list[int],
) -> list[Visual]:
    """Return the pictures and videos in the order of the text, each with its tokens and positions."""
    numbers = {"picture": 0, "video": 0}
    visuals = []
    for kind in order:
        index = numbers[kind]
        numbers[kind] += 1
        if kind == "picture":
            runs, frames, shown = of_family.picture(of, index), [pictures[index]], [1]
        else:
            assert of_family.video is not None
            runs, video = of_family.video(of, index), videos[index]
            frames = [video.frames[i] for i in video.shown]
            shown = [video.numbers[i] for i in video.shown]
        visuals.append(Visual(f"{kind} {index + 1}", frames, shown, runs, _image_id(of, kind)))
    left = {
        each.image_id: [i for i, number in enumerate(ids) if number == each.image_id] for each in visuals
    }
    for image_id, positions in left.items():
        n = sum(len(each.tokens) for each in visuals if each.image_id == image_id)
        if len(positions) != n:
            there = counted(len(positions), "image token")
            raise of.refused(f"the prompt has {there}, but {n} by their geometry")
    for each in visuals:
        positions, n = left[each.image_id], len(each.tokens)
        each.positions, positions[:n] = positions[:n], []
        lengths = [end - first for first, end in spans_of(each.positions)]
        if lengths != [len(run) for run in each.runs]:
            few = ", ".join(map(str, lengths[:4])) + ", …" * (len(lengths) > 4)
            raise of.refused(
                f"{each.name} should have {counted(len(each.runs), 'run')} of {len(each.runs[0])} image"
                f" tokens, but the prompt has runs of {few}"
            )
    return visuals


def _image_id(of: Processed, kind: str) -> int:
    """Return the id of the tokens that a model replaces with features of pictures or of videos."""
    names = ["image_token_id", "image_token_index"]
    if kind == "video":
        names.insert(0, "video_token_id")
    for owner in (of.config, of.processor):
        for name in names:
            if isinstance(number := getattr(owner, name, None), int):
                return number
    raise of.refused("its config.json has no image_token_id")


def _add(prompt: Prompt, visual: Visual, config: Any) -> None:
    """Add the segment, the patches and the labels of a picture or a video to a prompt."""
    is_video = visual.name.startswith("video")
    for token, position in zip(visual.tokens, visual.positions, strict=True):
        part = "" if token.part == "whole" else f", {token.part}"
        frame = f", frame {visual.numbers[token.frame]}" if is_video else ""
        label = f"{visual.name}{frame}{part}: {token.label}"
        prompt.tokens[position] = Token(label, special=token.box is None)
    whole = with_marks(prompt.tokens, visual.positions, config)
    prompt.segments.append(Segment(visual.name, (whole,)))
    for index in sorted({token.frame for token in visual.tokens}):
        patches = tuple(
            Patch(position, token.box, token.part)
            for token, position in zip(visual.tokens, visual.positions, strict=True)
            if token.frame == index and token.box is not None
        )
        image = visual.frames[index]
        name = f"{visual.name}, frame {visual.numbers[index]}" if is_video else visual.name
        lost = lost_share([patch.box for patch in patches], image.size)
        prompt.pictures.append(PatchedPicture(name, image, patches, lost))


def with_marks(tokens: list[Token], positions: Sequence[int], config: Any) -> tuple[int, int]:
    """Return first and end of a picture or video, with the tokens that open and close it."""
    first, end = min(positions), max(positions) + 1
    if (of_family := picture_family(config)) is None:
        return first, end
    for pattern in of_family.opening:
        if first > 0 and re.fullmatch(pattern, tokens[first - 1].text):
            first -= 1
    for pattern in of_family.closing:
        if end < len(tokens) and re.fullmatch(pattern, tokens[end].text):
            end += 1
    return first, end
