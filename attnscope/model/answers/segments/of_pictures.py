"""Find the segments of a prompt with pictures, after a processor has written image tokens into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.spelling import spelled
from attnscope.model.answers.pictures.families import placeholders_of, with_placeholders
from attnscope.model.answers.pictures.read import check_family, encode, with_marks
from attnscope.model.answers.pictures.videos import open_video
from attnscope.model.answers.prompt import Prompt, Segment, spans_of
from attnscope.model.answers.segments.of_text import (
    encode_with_ranges,
    notices_without_tokens,
    owners_of_text,
    segments_of,
)
from attnscope.model.run.load import load_processor
from attnscope.model.run.pictures import open_picture

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint


def read_pictures_and_text(
    checkpoint: Checkpoint,
    config: Any,
    pictures: Sequence[Any],
    text: str,
    segments: Any = None,
    *,
    grid: str | None = None,
    videos: Sequence[Any] = (),
    fps: float | None = None,
) -> Prompt:
    """Read pictures and a text, with a segment for each picture and those of the text.

    Segments are named as in `of_text.read_text`; what a chat template writes around the text is the
    segment `template`. The text has a placeholder for each picture and video where it belongs, or none.
    """

    def write(processor: Any) -> Written:
        name, n_video = checkpoint.name, len(videos)
        whole, notices = with_placeholders(name, processor, config, text, len(pictures), n_video)
        owners = ["template"] * len(whole)
        if whole.count(text) == 1:
            first = whole.index(text)
            owners[first : first + len(text)] = owners_of_text(text, segments)
        elif segments is not None:
            raise OptionError(
                f"the text occurs {whole.count(text)} times in the prompt that the chat template of"
                f" {name} makes of it, so its segments are not known.",
                hint="a longer text",
            )
        return whole, owners, notices

    return read_pictures(checkpoint, config, pictures, videos, write, grid=grid, fps=fps)


Written = tuple[str, list[str], list[str]]
"""A text with placeholders; the name of the segment of each of its characters; and notices."""


def read_pictures(
    checkpoint: Checkpoint,
    config: Any,
    pictures: Sequence[Any],
    videos: Sequence[Any],
    write: Callable[[Any], Written],
    *,
    grid: str | None = None,
    fps: float | None = None,
) -> Prompt:
    """Read pictures and videos, and the text that a function writes with their placeholders."""
    name = checkpoint.name
    check_family(name, config, grid, videos)
    opened, read = [open_picture(each) for each in pictures], [open_video(each, fps) for each in videos]
    processor = load_processor(checkpoint)
    text, owners, notices = write(processor)
    prompt = encode(processor, config, text, opened, read, grid=grid, name=name)
    join(prompt, processor, config, name, text, owners)
    prompt.notices += notices
    return prompt


def join(prompt: Prompt, processor: Any, config: Any, name: str, text: str, owners: list[str]) -> None:
    """Add to the segments of pictures those of the text around them.

    A processor writes many tokens in place of a placeholder, and may add some at the beginning and the
    end. The characters between placeholders stay as they are, which is how they are found. All that is
    written in place of a video's, such as the time stamps of frames, belongs to the video.

    The text is that before the processor wrote image tokens; each of its characters has an owner, the
    name of its segment.
    """
    written = prompt.spelled
    marks = re.compile("|".join(map(re.escape, placeholders_of(processor))))
    borders = [(0, 0), *(found.span() for found in marks.finditer(text)), (len(text), len(text))]
    kept = [(one[1], other[0]) for one, other in pairwise(borders)]
    places = _places([text[first:end] for first, end in kept], written, name)
    ids = prompt.inputs["input_ids"][0].tolist()
    for special in (True, False):
        result, ranges = encode_with_ranges(processor.tokenizer, written, name, special=special)
        if list(result["input_ids"]) == ids:
            break
    else:
        raise ModelError(
            f"the processor of {name} makes other tokens than its tokenizer, so segments are not known."
        )
    of_spelled = ["template"] * len(written)
    for (first, end), (begin, stop) in zip(kept, places, strict=True):
        of_spelled[begin:stop] = owners[first:end]
    end = places[0][1]
    for segment, (begin, stop) in zip(prompt.segments, places[1:], strict=True):
        if begin == stop:  # with no text between two placeholders, that place is not known
            begin = stop = ranges[segment.positions[-1]][1]
        if segment.name.startswith("video"):
            of_spelled[end:begin] = [segment.name] * (begin - end)
        end = stop
    found, without = segments_of(of_spelled, ranges, "template")
    positions = {segment.name: segment.positions for segment in found}
    prompt.segments = [
        Segment(
            each.name, (with_marks(prompt.tokens, [*each.positions, *positions[each.name]], config),)
        )
        if each.name.startswith("video") and each.name in positions
        else each
        for each in prompt.segments
    ]
    pictured = {i for segment in prompt.segments for i in segment.positions}
    for segment in found:
        if rest := [i for i in segment.positions if i not in pictured]:
            prompt.segments.append(Segment(segment.name, spans_of(rest)))
    prompt.segments.sort(key=lambda segment: segment.spans[0])
    prompt.notices += notices_without_tokens(without)


def _places(parts: list[str], written: str, name: str) -> list[tuple[int, int]]:
    """Return where the parts of a text stand in a longer one, with something between each two."""
    lazy, greedy = (
        re.fullmatch(
            f"(.*{mode})" + f"(.+{mode})".join(f"({re.escape(part)})" for part in parts) + f"(.*{mode})",
            written,
            re.DOTALL,
        )
        for mode in ("?", "")
    )
    numbers = range(2, 2 * len(parts) + 1, 2)
    places = [] if lazy is None else [lazy.span(number) for number in numbers]
    others = [] if greedy is None else [greedy.span(number) for number in numbers]
    clear = all(one == other or one[0] == one[1] for one, other in zip(places, others, strict=True))
    if not places or not clear:
        where = "at several places" if places else "not"
        raise ModelError(
            f"the text of the prompt is {where} found again in what the processor of {name} makes of"
            " it, so its segments are not known.",
            hint=f"no {spelled('segments')} and no {spelled('messages')}" if places else None,
        )
    return places
