"""Read a plain prompt with segments that the user defines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.answers.prompt import Prompt
from attnscope.answers.segments.definitions import find_stretches, read_definitions
from attnscope.answers.segments.of_tokens import encode_with_ranges, segments_of
from attnscope.errors import ModelError
from attnscope.models.load import load_tokenizer
from attnscope.models.tokenize import read_text as tokenize_text

if TYPE_CHECKING:
    from attnscope.checkpoints.checkpoint import Checkpoint


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
        checkpoint: the model.
        config: its configuration.
        text: the prompt.
        segments: as in `read_definitions`; None: the whole text is one segment.
        name: its name in error messages.
        tokenizer: the model's tokenizer, if it is loaded.
        truncate: whether to truncate a text that is too long instead of raising an error.

    Raises:
        OptionError: the text is empty or too long, or a segment is not in it.
        ModelError: the model has no tokenizer, or it does not say which characters a token has.
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
