"""Make a model's inputs: texts as tokens, pictures as patches."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from attnscope.checkpoints.find import Checkpoint
from attnscope.checkpoints.layouts import check_attends
from attnscope.errors import FileError, ModelError, OptionError, first_line, is_out_of_memory
from attnscope.models.running.byte_tokens import bytes_of, characters_of
from attnscope.models.running.load import (
    class_of,
    load_image_processor,
    load_tokenizer,
    told_as_the_models_fault,
)
from attnscope.results.maps import Picture, Token
from attnscope.text import shortened
from attnscope.units import counted

PAD_FIRST = {
    *("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text"),
    *("longformer", "mpnet", "xmod", "ibert", "esm", "luke", "markuplm", "layoutlmv3", "led_text"),
}
"""Families whose positions begin after the padding's, and so leave rows of their tables idle."""

HEARS = {"input_features", "input_values"}
"""The main inputs of models that listen."""


@dataclass
class Reading:
    """A model's inputs, and what its positions are.

    Attributes:
        inputs: what the model is called with, by name: `input_ids` and its like, `n_batch n_Q`;
            `pixel_values`, `n_batch n_channel height width`. One sequence, or one picture.
        source: the tokens of its only sequence, or of its encoder's. Of a picture, they are known
            when the model runs: it adds some of its own.
        target: the tokens of its decoder, if it has an encoder too.
        labels: the ids of the text that its decoder is to read.
        tokenizer: what made the tokens, of a text.
        picture: what it looks at; `first` is not known yet.
        most_added: how many tokens the model may put before a picture's.
        notices: what else a reader should know: sentences.
    """

    inputs: dict[str, Any]
    source: list[Token] = field(default_factory=list)
    target: list[Token] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    tokenizer: Any = None
    picture: Picture | None = None
    most_added: int = 0
    notices: list[str] = field(default_factory=list)

    def to(self, device: str) -> None:
        """Move the inputs to the device that the model is on."""
        self.inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}


def read_text(
    checkpoint: Checkpoint,
    config: Any,
    text: str,
    *,
    named: str = "--text",
    pair: str | None = None,
    target: str | None = None,
    truncate: bool = False,
) -> Reading:
    """Tokenize a text, or a pair of texts, and what a decoder is to read.

    Args:
        checkpoint: the model whose tokenizer is used.
        config: the model's.
        text: what the model, or its encoder, reads.
        named: what it is called in errors.
        pair: the second text of a pair.
        target: what a decoder beside an encoder reads.
        truncate: whether a text that is too long is cut rather than refused.

    Raises:
        OptionError: a text is empty or too long.
        ModelError: the model has no tokenizer.
    """
    for option, given in ((named, text), ("--pair", pair), ("--target", target)):
        if given is None:
            continue
        if not given.strip():
            hint = "a file with a text in it" if option.startswith("--file") else f'{option} "…"'
            raise OptionError(f"{option} is empty: there is nothing to look at.", hint=hint)
        if any("\ud800" <= character <= "\udfff" for character in given):  # how Python holds them
            raise OptionError(f"{option} holds bytes that are no UTF-8.", hint=f'{option} "$(iconv …)"')
    tokenizer = load_tokenizer(checkpoint)
    texts = (text,) if pair is None else (text, pair)
    both = named if pair is None else f"{named} with --pair"
    encoding, notices = _encode(tokenizer, texts, both, room(config), truncate)
    names = [name for name in tokenizer.model_input_names if name in encoding]
    inputs = {name: batch_of(encoding[name]) for name in names}
    reading = Reading(inputs, tokenizer=tokenizer, notices=notices)
    reading.source = _tokens_of_encoding(tokenizer, encoding, text)
    if all(encoding["special_tokens_mask"]):
        raise OptionError(f"{named} has no tokens in {checkpoint.name}.", hint="another text")
    reading.notices += unknown_tokens(tokenizer, encoding["input_ids"], both)
    if target is not None:
        reading.labels, notices = read_target(tokenizer, config, target, truncate)
        reading.notices += notices
    return reading


def unknown_tokens(tokenizer: Any, ids: list[int], named: str) -> list[str]:
    """Return a notice if a vocabulary does not have some of a text's tokens, with their share.

    Args:
        tokenizer: the model's; where its unknown token ends texts too, as GPT-2's does, none is known.
        ids: the tokens.
        named: what they are called.
    """
    count, n_token = count_unknown(tokenizer, ids)
    return [told_unknown(tokenizer, count, n_token, named)] if count else []


def count_unknown(tokenizer: Any, ids: list[int]) -> tuple[int, int]:
    """How many tokens are unknown, and among how many: special ones, which no text has, do not count."""
    unknown = tokenizer.unk_token_id
    others = {getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "cls", "sep")}
    if unknown is None or unknown in others:
        return 0, 0
    special = set(tokenizer.all_special_ids) - {unknown}
    return ids.count(unknown), sum(number not in special for number in ids)


def told_unknown(tokenizer: Any, count: int, n_token: int, named: str) -> str:
    """A notice of unknown tokens, with their share."""
    are = "is" if count == 1 else "are"
    return (
        f"{count:,} of {counted(n_token, 'token')} in {named} ({count / n_token:.0%}) {are}"
        f" {tokenizer.unk_token}: not in the model's vocabulary."
    )


def read_target(tokenizer: Any, config: Any, target: str, truncate: bool) -> tuple[list[int], list[str]]:
    """The ids of what a decoder is to read, and notices about them."""
    encoding, notices = _encode(tokenizer, (target,), "--target", room(config), truncate)
    ids = encoding["input_ids"]
    return ids, notices + unknown_tokens(tokenizer, ids, "--target")


def check_reads(checkpoint: Checkpoint, config: Any, what: str) -> None:
    """Raise a ModelError unless a model reads `text`, or looks at an `image`, and attends."""
    check_attends(config.model_type, checkpoint.name)
    with told_as_the_models_fault(checkpoint):
        takes = class_of(config).main_input_name
    if takes in HEARS:
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) listens to sound, and attnscope gives models texts"
            " and pictures.",
            hint=f"attnscope model {checkpoint.name}, which shows its weights",
        )
    towers = hasattr(config, "vision_config")
    if (takes == "pixel_values") != (what == "image") and not towers:
        given, other = ("text", "--image FILE") if what == "text" else ("pictures", '--text "…"')
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) does not read {given}.",
            hint=other,
        )


def room(config: Any) -> int | None:
    """How many tokens a model takes; None where nothing but memory limits it."""
    of_text = config.get_text_config()
    positions = getattr(of_text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    if of_text.model_type in PAD_FIRST:
        return positions - (of_text.pad_token_id or 0) - 1
    return positions


def tokens_of(tokenizer: Any, ids: list[int], **said: Any) -> list[Token]:
    """Return tokens as text, a leading space included.

    Where the bytes of a character are divided among tokens, the last of them shows it, and all of them
    bear a mark: see `byte_tokens.characters_of`.

    Args:
        tokenizer: what knows the ids; None: a token's text is its number.
        ids: the tokens' numbers, in the order of the text.
        said: what is true of all of them, such as `generated=True`.
    """
    if tokenizer is None:
        return [Token(f"<{number}>", **said) for number in ids]
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id, tokenizer.mask_token_id}
    known = list(dict.fromkeys(ids))  # of a long text, far fewer than it has tokens
    pieces = tokenizer.convert_ids_to_tokens(known)
    texts = {
        number: _text(tokenizer, number, piece, number in special)
        for number, piece in zip(known, pieces, strict=True)
    }
    shown: list[str] = []
    for in_bytes, run in groupby(ids, key=lambda number: isinstance(texts[number], bytes)):
        own: list[Any] = [texts[number] for number in run]
        shown += characters_of(own) if in_bytes else own
    return [
        Token(text, special=number in special, **said) for number, text in zip(ids, shown, strict=True)
    ]


def read_image(checkpoint: Checkpoint, config: Any, picture: Any) -> Reading:
    """Read a picture, cut and scaled as the model wants it: `pixel_values`, `1 3 height width`.

    Args:
        checkpoint: the model; its image processor cuts and scales.
        config: the model's.
        picture: a file, or an image of pillow.

    Raises:
        FileError: there is no such file, or it is no picture.
        ModelError: the model has no image processor, or does not cut pictures into patches.
    """
    import numpy as np

    try:
        from PIL import Image
    except ImportError as error:
        raise ModelError(
            "pictures are read with pillow, which is not installed.",
            hint="pip install 'attnscope[image]'",
        ) from error
    image = _opened(picture) if isinstance(picture, (str, Path)) else picture.convert("RGB")
    processor = load_image_processor(checkpoint)
    with told_as_the_models_fault(checkpoint):
        pixels = processor(images=image, return_tensors="pt").get("pixel_values")
    patch = _patch_size(config)
    if pixels is None or pixels.dim() != 4 or patch is None:
        raise ModelError(
            f"{checkpoint.name} does not cut a picture into one grid of patches, which --image shows."
        )
    array = pixels[0].float().permute(1, 2, 0).numpy()
    if getattr(processor, "do_normalize", False):
        with told_as_the_models_fault(checkpoint, "preprocessor_config.json"):
            of_image = (processor.image_std, processor.image_mean)
            spread, mean = (np.asarray(each, dtype=np.float64) for each in of_image)
            array = array * spread + mean
    if not np.isfinite(array).all():
        raise ModelError(
            f"the preprocessor_config.json of {checkpoint.name} makes a picture of what is not finite:"
            f" image_mean is {_short(processor.image_mean)}, image_std {_short(processor.image_std)}."
        )
    seen = Image.fromarray((array.clip(0, 1) * 255).round().astype("uint8"))
    png = BytesIO()
    seen.save(png, format="PNG")
    rows, columns = pixels.shape[2] // patch[0], pixels.shape[3] // patch[1]
    seen_as = Picture(rows, columns, 0, png.getvalue())
    registers = getattr(_of_vision(config), "num_register_tokens", 0)
    return Reading({"pixel_values": pixels}, picture=seen_as, most_added=2 + registers)


def _opened(path: str | Path) -> Any:
    """The picture of a file; a FileError if it is none."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            return opened.convert("RGB")
    except Image.DecompressionBombError as error:
        raise FileError(f"{path} is too large: {first_line(error).rstrip('.')}.") from error
    except UnidentifiedImageError as error:
        raise FileError(
            f"{path} is no picture that pillow can read.", hint="a .png or .jpg file"
        ) from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or first_line(error)}.") from error
    except Exception as error:  # of a damaged picture pillow raises half a dozen kinds
        if is_out_of_memory(error):
            raise
        raise FileError(f"{path} is a damaged picture: {first_line(error).rstrip('.')}.") from error


def _short(setting: Any) -> str:
    return shortened(repr(setting), 80)


def patches(picture: Picture, n: int, most_added: int) -> list[Token]:
    """The tokens of a picture: those that the model adds, and the patches as one reads them.

    Args:
        picture: how many rows and columns it has.
        n: how many tokens the model made of it.
        most_added: how many may stand before the patches: `[CLS]`, one for distillation, registers.

    Raises:
        ModelError: there are fewer tokens than patches, which the model merges; or more, which may
            stand behind them.
    """
    first = n - picture.rows * picture.columns
    if not 0 <= first <= most_added:
        raise ModelError(
            f"the model makes {n} tokens of {picture.rows} × {picture.columns} patches:"
            " --image shows models in which each patch is a token, with few others before them."
        )
    added = [Token("[CLS]" if i == 0 else f"[{i}]", special=True) for i in range(first)]
    return added + [
        Token(f"{row},{column}") for row in range(picture.rows) for column in range(picture.columns)
    ]


def encoded(tokenizer: Any, texts: dict[str, Any], **options: Any) -> Any:
    """What a tokenizer makes of texts; a ModelError if it cannot read them.

    Args:
        tokenizer: the model's.
        texts: by the names that it takes them under.
        options: what else it takes.
    """
    try:
        return tokenizer(**texts, **options)
    except Exception as error:  # tokenizers raises a bare Exception
        if is_out_of_memory(error):
            raise
        raise ModelError(f"the model's tokenizer cannot read this text: {first_line(error)}.") from error


def _encode(
    tokenizer: Any, texts: tuple[str, ...], option: str, limit: int | None, truncate: bool
) -> tuple[Any, list[str]]:
    """The tokens of a text or a pair, no more than the model takes; and whether some were cut off.

    Args:
        tokenizer: the model's.
        texts: one or two.
        option: what they are called; a `--target` is cut as the decoder reads it.
        limit: how many tokens the model takes.
        truncate: whether they may be cut to that.
    """
    names = ("text_target",) if option == "--target" else ("text", "text_pair")
    given = dict(zip(names, texts, strict=False))
    encoding = encoded(tokenizer, given, return_special_tokens_mask=True)
    n = len(encoding["input_ids"])
    if limit is None or n <= limit:
        return encoding, []
    if not truncate:
        raise OptionError(
            f"{option} is {n} tokens long, and the model takes {limit}.", hint="--truncate"
        )
    cut = tokenizer(**given, return_special_tokens_mask=True, truncation=True, max_length=limit)
    return cut, [f"{option} was cut from {n} tokens to {limit}."]


def _tokens_of_encoding(tokenizer: Any, encoding: Any, first: str) -> list[Token]:
    """Tokens with their segments; what the tokenizer added belongs to the text before it.

    Args:
        tokenizer, encoding: what cut the text, and into what.
        first: the first text.
    """
    ids, special_mask = encoding["input_ids"], encoding["special_tokens_mask"]
    if encoding.is_fast:
        segments = encoding.sequence_ids(0)
    else:  # those of Python alone do not say which text a token is from
        n_first = len(tokenizer(first, add_special_tokens=False)["input_ids"])
        own = accumulate(1 - added for added in special_mask)
        segments = [
            None if added else int(nth > n_first) for added, nth in zip(special_mask, own, strict=True)
        ]
    tokens, segment = [], 0
    for token, of_text, special in zip(tokens_of(tokenizer, ids), segments, special_mask, strict=True):
        segment = segment if of_text is None else of_text
        tokens.append(Token(token.text, segment=segment, special=bool(special) or token.special))
    return tokens


def _text(tokenizer: Any, number: int, piece: str | None, special: bool) -> str | bytes:
    """One token's text, as it decodes; its bytes where these are not whole characters."""
    if piece is None:  # the model has more ids than its tokenizer
        return f"<{number}>"
    if special or piece.startswith("##"):
        return piece
    if "▁" in piece:  # sentencepiece's space, which decoding a lone token drops
        return piece.replace("▁", " ")
    text = tokenizer.decode([number])
    if text and "\ufffd" not in text:
        return text
    if not text and len(piece) == 1 and "\x80" <= piece <= "\xff":  # ByT5: a token is a byte
        return piece.encode("latin-1")
    return bytes_of(piece) or piece


def batch_of(numbers: list[int]) -> Any:
    import torch

    return torch.tensor([numbers])


def _of_vision(config: Any) -> Any:
    """The configuration of what sees."""
    return getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config


def _patch_size(config: Any) -> tuple[int, int] | None:
    """Height and width of a patch in pixels."""
    size = getattr(_of_vision(config), "patch_size", None)
    if isinstance(size, int):
        return size, size
    return (size[0], size[1]) if isinstance(size, list | tuple) and len(size) == 2 else None
