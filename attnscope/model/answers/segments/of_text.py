"""Read a plain prompt with segments that the user defines, and turn ranges of characters into tokens."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError
from attnscope.model.answers.prompt import Prompt, Segment, spans_of
from attnscope.model.answers.segments.definitions import find_stretches, read_definitions
from attnscope.model.run.load import load_tokenizer
from attnscope.model.run.tokenize import encoded, pieces_of
from attnscope.model.run.tokenize import read_text as tokenize_text

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint


def read_text(
    checkpoint: Checkpoint,
    config: Any,
    text: str,
    segments: Any = None,
    *,
    name: str = "--text",
    tokenizer: Any = None,
    truncate: bool = False,
) -> Prompt:
    """Tokenize a text, and find the segments in it.

    Text outside of all segments is the segment `text`; the tokens that the tokenizer adds are `special`.
    A token on a border belongs to the segment of most of its characters, the first of two with equally
    many.

    Args:
        segments: as in `read_definitions`; None: the whole text is one segment.
    """
    tokenizer = tokenizer or load_tokenizer(checkpoint)
    reading = tokenize_text(checkpoint, config, text, name=name, truncate=truncate, tokenizer=tokenizer)
    ids = reading.inputs["input_ids"][0].tolist()
    owners = owners_of_text(text, segments)
    result, ranges = encode_with_ranges(tokenizer, text, checkpoint.name, special=True)
    if list(result["input_ids"])[: len(ids)] != ids:  # tokens that follow a truncated text
        n_last = sum(result["special_tokens_mask"][len(ids) - 1 :])
        ranges = ranges[: len(ids) - n_last] + [(0, 0)] * n_last
    found, without = segments_of(owners, ranges[: len(ids)], "special")
    if len(ids) != sum(each.n_token for each in found):
        raise ModelError(f"the tokenizer of {checkpoint.name} gives other tokens the second time.")
    notices = reading.notices + notices_without_tokens(without)
    return Prompt(reading.inputs, reading.source, found, tokenizer=tokenizer, notices=notices)


def owners_of_text(text: str, segments: Any) -> list[str]:
    """Return the name of the segment of each character of a plain text; raise as `find_stretches`."""
    owners = ["text"] * len(text)
    if segments is not None:
        for part in find_stretches(read_definitions(segments), [text], "the text"):
            owners[part.first : part.end] = [part.name] * (part.end - part.first)
    return owners


def notices_without_tokens(names: list[str]) -> list[str]:
    """Return a notice for each segment that has no token of its own."""
    return [
        f"{name} has no token: it was cut off, or is less than half of each of its tokens."
        for name in names
        if name not in ("text", "template")
    ]


def encode_with_ranges(
    tokenizer: Any, text: str, name: str, *, special: bool
) -> tuple[Any, list[tuple[int, int]]]:
    """Tokenize a text, and find first and end (exclusive) of the characters of each token.

    Special tokens have no characters. Tokens that have the bytes of one character between them have that
    character each.
    """
    options: dict[str, Any] = {"add_special_tokens": special, "return_special_tokens_mask": True}
    if getattr(tokenizer, "is_fast", False):
        result = encoded(tokenizer, {"text": text}, return_offsets_mapping=True, **options)
        return result, [(first, end) for first, end in result.pop("offset_mapping")]
    result = encoded(tokenizer, {"text": text}, **options)
    added = result["special_tokens_mask"] if special else [0] * len(result["input_ids"])
    pieces = pieces_of(tokenizer, result["input_ids"])
    spelled = b"".join(piece for piece, is_added in zip(pieces, added, strict=True) if not is_added)
    blank = len(spelled) - len(text.encode())  # sentencepiece puts a blank before a text
    if spelled != b" " * blank + text.encode():
        raise ModelError(
            f"the tokenizer of {name} does not say which characters a token has, and its tokens do not"
            " spell the text: where segments begin is not known.",
            hint="a tokenizer with a tokenizer.json",
        )
    character = [i for i, letter in enumerate(text) for _ in letter.encode()]
    ranges, at = [], -blank
    for piece, is_added in zip(pieces, added, strict=True):
        end = at + (0 if is_added else len(piece))
        inside = character[max(at, 0) : max(end, 0)]
        ranges.append((inside[0], inside[-1] + 1) if inside else (0, 0))
        at = end
    return result, ranges


def segments_of(
    owners: list[str], ranges: list[tuple[int, int]], without: str
) -> tuple[list[Segment], list[str]]:
    """Divide tokens into segments: a token belongs to the segment of most of its characters.

    Of two with equally many, it belongs to the one that comes first in the token; tokens without
    characters are of the segment `without`. Return the segments, in the order of their first positions;
    and the names of those that have characters, but no token.
    """
    names = []
    for first, end in ranges:
        if first >= end:
            names.append(without)
        else:
            inside = owners[first:end]
            names.append(inside[0] if len(set(inside)) == 1 else Counter(inside).most_common(1)[0][0])
    positions: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        positions.setdefault(name, []).append(position)
    segments = [Segment(name, spans_of(own)) for name, own in positions.items()]
    return segments, [name for name in dict.fromkeys(owners) if name not in positions]
