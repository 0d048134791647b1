"""What a model reads before it writes: tokens, segments of them, and pictures behind some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    from PIL.Image import Image

    Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Segment:
    """A named part of a sequence.

    Attributes:
        name: `system`, `user 2`, `document 3`, `picture 1`, `answer`; no two segments have one name.
        spans: its positions, as ranges with first and end (exclusive), in ascending order. Segments of
            one prompt do not overlap.
    """

    name: str
    spans: tuple[tuple[int, int], ...]

    @property
    def n_token(self) -> int:
        """The number of its tokens."""
        return sum(end - first for first, end in self.spans)

    @property
    def positions(self) -> list[int]:
        """The positions of its tokens."""
        return [i for first, end in self.spans for i in range(first, end)]


def spans_of(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending positions as ranges with first and end (exclusive).

    >>> spans_of([0, 1, 2, 5])
    ((0, 3), (5, 6))
    """
    there = set(positions)
    firsts = [i for i in positions if i - 1 not in there]
    ends = [i + 1 for i in positions if i + 1 not in there]
    return tuple(zip(firsts, ends, strict=True))


def with_sink(segments: Sequence[Segment]) -> list[Segment]:
    """Return segments with the first token, which many heads read, as one of its own."""
    rest = [replace(each, spans=spans_of([i for i in each.positions if i])) for each in segments]
    return [Segment("sink", ((0, 1),)), *(each for each in rest if each.n_token)]


@dataclass(frozen=True)
class Patch:
    """A token that stands for a part of a picture.

    Attributes:
        position: its position in the sequence.
        box: left, top, right and bottom in pixels of the original picture, within its borders. A token
            that covers nothing but padding is not a patch.
        part: which copy of the picture it belongs to: `whole`, `tile 2, 1` (row and column, from 1).
    """

    position: int
    box: Box
    part: str = "whole"


@dataclass(frozen=True)
class PatchedPicture:
    """A picture in a prompt, and the tokens that stand for its parts.

    Attributes:
        name: `picture 1`; of a video, `video 1, frame 3`.
        image: the original picture, RGB, before the processor changed it.
        patches: in the order of their positions.
        lost: the share of the original's pixels that no patch covers, such as those cropped away.
    """

    name: str
    image: Image = field(repr=False)
    patches: tuple[Patch, ...] = field(repr=False)
    lost: float = 0.0


@dataclass
class Prompt:
    """What a model reads before it writes."""

    #: the model's arguments by name, one sequence: `input_ids`, `1 n_token`; `pixel_values` and the like
    inputs: dict[str, Any]
    tokens: list[Token]  #: the tokens of `input_ids`
    segments: list[Segment] = field(default_factory=list)  #: in the order of their first positions
    pictures: list[PatchedPicture] = field(default_factory=list)
    #: the ids of a given answer, such as one that an engine wrote; None: the model writes one
    answer: list[int] | None = None
    tokenizer: Any = None
    #: with pictures, the text that was tokenized, in which each image token is spelled
    spelled: str = field(default="", repr=False)
    notices: list[str] = field(default_factory=list)
