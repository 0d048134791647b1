"""Build a model's inputs: from a text, a file, an image, or token ids exactly as they are given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.load import load_tokenizer, tokenizer_of
from attnscope.model.run.options import ReadOptions
from attnscope.model.run.tokenize import (
    Reading,
    batch_of,
    max_tokens,
    notices_of_cut,
    notices_of_unknown,
    read_target,
    tokens_of,
)

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint
    from attnscope.model.run.tokenize import Reading


def read_inputs(inputs: ReadOptions, checkpoint: Checkpoint, config: Any) -> Reading:
    """Build the inputs of a model that the options name."""
    from attnscope.model.run.text_file import text_of_file
    from attnscope.model.run.tokenize import check_reads, max_tokens, read_image, read_text

    check_reads(checkpoint, config, "text" if inputs.image is None else "image")
    if inputs.image is not None:
        images = inputs.image if isinstance(inputs.image, list) else [inputs.image]
        if len(images) != 1:
            raise OptionError(
                f"a vision model reads one picture, and here are {len(images)}.",
                hint=f"{spelled(image=['A.png', 'B.png'], text='…')}, for a model that answers",
            )
        return read_image(checkpoint, config, images[0])
    if inputs.target is not None and not config.is_encoder_decoder:
        raise OptionError(
            f"{spelled('target')} is for encoder-decoder models, and {checkpoint.name}"
            f" ({config.model_type}) is not one.",
            hint=spelled(text="…", pair="…"),
        )
    options: dict[str, Any] = {"target": inputs.target, "truncate": inputs.truncate}
    if inputs.ids is not None or inputs.tokens is not None:
        from attnscope.model.run.read_inputs import read_ids

        return read_ids(checkpoint, config, inputs.ids, inputs.tokens, **options)
    text, name = inputs.text or "", None
    if inputs.file is not None:
        text = text_of_file(Path(inputs.file), max_tokens(config), truncate=inputs.truncate)
        name = spelled("file", inputs.file)
    return read_text(checkpoint, config, text, name=name, pair=inputs.pair, **options)


# Tokens and token ids.


def read_ids(
    checkpoint: Checkpoint,
    config: Any,
    ids: Any,
    tokens: str | Sequence[str] | None = None,
    *,
    option: str = "ids",
    target: str | None = None,
    truncate: bool = False,
) -> Reading:
    """Build a model's inputs from token ids, to which no special tokens are added.

    Args:
        checkpoint: the model; its tokenizer, if it has one, decodes the ids.
        option: the option that has the ids.
    """
    name = spelled("tokens" if ids is None else option)
    numbers = find_tokens(checkpoint, tokens or "") if ids is None else parse_ids(ids, option)
    check_ids(checkpoint, config, numbers, name)
    tokenizer = tokenizer_of(checkpoint)
    limit = max_tokens(config)
    notices, kept = notices_of_cut(name, len(numbers), limit, truncate), numbers[:limit]
    notices += notices_of_ids(tokenizer, kept, name)
    inputs = {"input_ids": batch_of(kept), "attention_mask": batch_of([1] * len(kept))}
    reading = Reading(inputs, tokens_of(tokenizer, kept), tokenizer=tokenizer, notices=notices)
    if target is not None:
        tokenizer = tokenizer or load_tokenizer(checkpoint)  # raises an error if there is none
        reading.labels, notices = read_target(tokenizer, config, target, truncate)
        reading.notices += notices
    return reading


def ids_of(checkpoint: Checkpoint, ids: Any, tokens: str | Sequence[str] | None) -> list[int]:
    """Return the token ids that `ids` or `tokens` specifies; raise as `parse_ids` and `find_tokens`."""
    return parse_ids(ids) if ids is not None else find_tokens(checkpoint, tokens or "")


def parse_ids(ids: Any, option: str = "ids") -> list[int]:
    """Return token ids: of a sequence of them, or a text that separates them by commas.

    >>> parse_ids("101, 2023,102"), parse_ids([101, 102])
    ([101, 2023, 102], [101, 102])
    """
    if not isinstance(ids, str):
        numbers = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        [numbers] = numbers if len(numbers) == 1 and isinstance(numbers[0], list) else [numbers]
        ids = ",".join(map(str, numbers))
    parts = ids.replace(",", " ").split()
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None or not parts:
        found = "is empty" if wrong is None else f"has {shortened(wrong)!r}, which is not a token id"
        raise OptionError(f"{spelled(option)} {found}.", hint=spelled(**{option: [101, 2023, 102]}))
    return [int(part[:20]) for part in parts]  # longer ones are no ids either


def find_tokens(checkpoint: Checkpoint, tokens: str | Sequence[str]) -> list[int]:
    """Return the ids of `--tokens`: entries of the vocabulary, in a text separated by spaces."""
    names = tokens.split() if isinstance(tokens, str) else list(tokens)
    if not names:
        raise OptionError(f"{spelled('tokens')} is empty.", hint=spelled(tokens="A B C"))
    vocabulary = load_tokenizer(checkpoint).get_vocab()
    for name in names:
        if name not in vocabulary:
            likely = [f"Ġ{name}", f"▁{name}", f"##{name}", name.lower(), name.upper()]
            near = next((other for other in likely if other in vocabulary), None)
            raise OptionError(
                f"{spelled('tokens')}: {shortened(name)!r} is not in the vocabulary of"
                f" {checkpoint.name}.",
                hint=f"{near}, which is"
                if near
                else f"{spelled(text='…')}, which its tokenizer splits into tokens",
            )
    return [vocabulary[name] for name in names]


def check_ids(checkpoint: Checkpoint, config: Any, ids: list[int], name: str) -> None:
    """Raise an OptionError if an id is not in the model's vocabulary."""
    n_token = getattr(config.get_text_config(), "vocab_size", None)
    if isinstance(n_token, int) and max(ids) >= n_token:
        raise OptionError(
            f"{name}: there is no token {max(ids)}: {checkpoint.name} has {n_token}, counted from 0."
        )


def notices_of_ids(tokenizer: Any, ids: list[int], name: str) -> list[str]:
    """Return notices about ids that are read as they are."""
    if tokenizer is None:
        return [f"{name} has ids without texts: the model has no tokenizer."]
    added = tokenizer("")["input_ids"]
    missing = [token.text for token in tokens_of(tokenizer, [n for n in added if n not in ids])]
    notices = notices_of_unknown(tokenizer, ids, name)
    if missing:
        notices.append(
            f"{name} is used as is, without the {' and '.join(missing)} that the tokenizer adds to"
            " a text."
        )
    return notices
