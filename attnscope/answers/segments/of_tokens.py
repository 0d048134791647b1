"""Turn ranges of characters into segments of tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attnscope.answers.prompt import Segment
from attnscope.errors import ModelError
from attnscope.models.token_pieces import pieces_of
from attnscope.models.tokenize import encoded


def encode_with_ranges(
    tokenizer: Any, text: str, name: str, *, special: bool
) -> tuple[Any, list[tuple[int, int]]]:
    """Tokenize a text, and find the characters of each token.

    Args:
        tokenizer: the model's.
        text: the text.
        name: the model's, for errors.
        special: whether the tokenizer adds special tokens, which have no characters.

    Returns:
        The tokenizer's result, and for each token first and end (exclusive) of its characters. Tokens
        that have the bytes of one character between them have that character each.

    Raises:
        ModelError: the tokenizer does not say, and its tokens do not spell the text.
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

    Of two with equally many, it belongs to the one that comes first in the token.

    Args:
        owners: the name of each character's segment.
        ranges: the characters of each token.
        without: the segment of tokens without characters.

    Returns:
        The segments, in the order of their first positions; and the names of those that have characters,
        but no token.
    """
    names = []
    for first, end in ranges:
        if first >= end:
            names.append(without)
        else:
            inside = owners[first:end]
            names.append(inside[0] if len(set(inside)) == 1 else Counter(inside).most_common(1)[0][0])
    spans: dict[str, list[tuple[int, int]]] = {}
    for position, name in enumerate(names):
        of_name = spans.setdefault(name, [])
        if of_name and of_name[-1][1] == position:
            of_name[-1] = (of_name[-1][0], position + 1)
        else:
            of_name.append((position, position + 1))
    segments = [Segment(name, tuple(of_name)) for name, of_name in spans.items()]
    return segments, [name for name in dict.fromkeys(owners) if name not in spans]
