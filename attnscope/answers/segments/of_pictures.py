"""Find the segments of a prompt with pictures, after a processor has written image tokens into it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attnscope.answers.pictures.placeholders import placeholders_of, with_placeholders
from attnscope.answers.pictures.read import check_family, encode, with_marks
from attnscope.answers.prompt import Prompt, Segment, spans_of
from attnscope.answers.segments.of_text import notices_without_tokens, owners_of_text
from attnscope.answers.segments.of_tokens import encode_with_ranges, segments_of
from attnscope.errors import ModelError, OptionError
from attnscope.models.load import load_processor
from attnscope.models.tokenize import open_picture

if TYPE_CHECKING:
    from attnscope.checkpoints.checkpoint import Checkpoint


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
    segment `template`.

    Args:
        checkpoint, config: the model.
        pictures, grid, videos: as in `pictures.read.encode`.
        fps: as in `videos.open_video`.
        text: the text, with a placeholder for each picture and video where it belongs, or with none.
        segments: as in `read_definitions`; characters are those of the text.

    Raises:
        FileError, OptionError, ModelError: as `encode`, `with_placeholders`, `load_processor`,
            `find_stretches` and `join`.
    """
    from attnscope.answers.pictures.videos import open_video

    check_family(checkpoint.name, config, grid, videos)
    opened, read = [open_picture(each) for each in pictures], [open_video(each, fps) for each in videos]
    processor, name = load_processor(checkpoint), checkpoint.name
    whole, notices = with_placeholders(name, processor, config, text, len(opened), len(read))
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
    prompt = encode(processor, config, whole, opened, read, grid=grid, name=name)
    join(prompt, processor, config, name, whole, owners)
    prompt.notices += notices
    return prompt


def join(prompt: Prompt, processor: Any, config: Any, name: str, text: str, owners: list[str]) -> None:
    """Add to the segments of pictures those of the text around them.

    A processor writes many tokens in place of a placeholder, and may add some at the beginning and the
    end. The characters between placeholders stay as they are, which is how they are found. All that is
    written in place of a video's, such as the time stamps of frames, belongs to the video.

    Args:
        prompt: the prompt, as `encode` returns it.
        processor: the model's processor.
        config: its configuration.
        name: the model's name, for errors.
        text: the text before the processor wrote image tokens.
        owners: the name of the segment of each of its characters.

    Raises:
        ModelError: the characters between placeholders are not found, or not at a single place.
    """
    spelled = prompt.spelled
    marks = re.compile("|".join(map(re.escape, placeholders_of(processor))))
    borders = [(0, 0), *(found.span() for found in marks.finditer(text)), (len(text), len(text))]
    kept = [(one[1], other[0]) for one, other in pairwise(borders)]
    places = _places([text[first:end] for first, end in kept], spelled, name)
    ids = prompt.inputs["input_ids"][0].tolist()
    for special in (True, False):
        result, ranges = encode_with_ranges(processor.tokenizer, spelled, name, special=special)
        if list(result["input_ids"]) == ids:
            break
    else:
        raise ModelError(
            f"the processor of {name} makes other tokens than its tokenizer, so segments are not known."
        )
    of_spelled = ["template"] * len(spelled)
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
    written = {segment.name: segment.positions for segment in found}
    prompt.segments = [
        Segment(each.name, (with_marks(prompt.tokens, [*each.positions, *written[each.name]], config),))
        if each.name.startswith("video") and each.name in written
        else each
        for each in prompt.segments
    ]
    pictured = {i for segment in prompt.segments for i in segment.positions}
    for segment in found:
        if spans := _without(segment, pictured):
            prompt.segments.append(Segment(segment.name, spans))
    prompt.segments.sort(key=lambda segment: segment.spans[0])
    prompt.notices += notices_without_tokens(without)


def _places(parts: list[str], spelled: str, name: str) -> list[tuple[int, int]]:
    """Return where the parts of a text stand in a longer one, with something between each two.

    Raises:
        ModelError: they do not, or not at a single place.
    """
    lazy, greedy = (
        re.fullmatch(
            f"(.*{mode})" + f"(.+{mode})".join(f"({re.escape(part)})" for part in parts) + f"(.*{mode})",
            spelled,
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
            hint="no --segments and no --messages" if places else None,
        )
    return places


def _without(segment: Segment, positions: set[int]) -> tuple[tuple[int, int], ...]:
    """Return the spans of a segment without some positions."""
    return spans_of([i for i in segment.positions if i not in positions])
