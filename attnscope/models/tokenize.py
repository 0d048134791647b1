"""Build a model's inputs: tokens of texts, patches of images."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from attnscope.checkpoints.checkpoint import Checkpoint
from attnscope.checkpoints.layouts import check_attends
from attnscope.errors import (
    FileError,
    ModelError,
    OptionError,
    class_name,
    first_line,
    is_out_of_memory,
)
from attnscope.families.table import family_of
from attnscope.models.byte_tokens import bytes_of, characters_of
from attnscope.models.load import as_model_error, class_of, load_image_processor, load_tokenizer
from attnscope.models.tokens import Picture, Token
from attnscope.process.files import refuse_pipe
from attnscope.text import shortened
from attnscope.units import counted

AUDIO_INPUTS = {"input_features", "input_values"}
"""The main inputs of audio models."""


OTHER_INPUTS = {
    "pixel_values": "a picture",
    "pixel_values_videos": "videos",
    "task_inputs": "a task",
    "past_values": "time series (past_values)",
    "states": "states, actions and returns",
    "state": "pictures, a text and the state of a robot",
    "audio_mel": "audio",
}
"""What other main inputs of models are."""


@dataclass
class Reading:
    """A model's inputs, and the tokens at their positions.

    Attributes:
        inputs: the model's arguments by name: `input_ids` and the like, `n_batch n_Q`;
            `pixel_values`, `n_batch n_channel height width`. One sequence, or one image.
        source: the tokens of the only sequence, or of the encoder's. For an image, they are known only
            when the model runs, since it adds some of its own.
        target: the tokens of the decoder in an encoder-decoder model.
        labels: the token ids of the target text.
        tokenizer: the tokenizer of a text.
        picture: the image; its `first` is not known yet.
        most_added: the most tokens that the model may put before the patches.
        others: for numbers of tokens that are not those and the patches: what they are, in words.
        notices: further sentences for the reader.
    """

    inputs: dict[str, Any]
    source: list[Token] = field(default_factory=list)
    target: list[Token] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    tokenizer: Any = None
    picture: Picture | None = None
    most_added: int = 0
    others: dict[int, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def to(self, device: str) -> None:
        """Move the inputs to the device that the model is on."""
        self.inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}


def check_text(option: str, text: str, *, empty: str, hint: str | None = None) -> None:
    """Check that a text can be tokenized.

    Args:
        option: its name in error messages.
        text: the text.
        empty: the consequence of an empty text, for the error.
        hint: the hint for an empty text.

    Raises:
        OptionError: it is empty, or holds bytes that are not UTF-8 (surrogates, in Python).
    """
    if not text.strip():
        raise OptionError(f"{option} is empty: {empty}.", hint=hint)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise OptionError(f"{option} contains bytes that are not UTF-8.", hint=f'{option} "$(iconv …)"')


def read_text(
    checkpoint: Checkpoint,
    config: Any,
    text: str,
    *,
    name: str = "--text",
    pair: str | None = None,
    target: str | None = None,
    truncate: bool = False,
    tokenizer: Any = None,
) -> Reading:
    """Tokenize a text, or a pair of texts, and a decoder's target.

    Args:
        checkpoint: the model whose tokenizer is used.
        config: the model's configuration.
        text: the input of the model, or of its encoder.
        name: its name in error messages.
        pair: the second text of a pair.
        target: the text for the decoder of an encoder-decoder model.
        truncate: whether to truncate a text that is too long instead of raising an error.
        tokenizer: the model's tokenizer, if it is loaded.

    Raises:
        OptionError: a text is empty or too long.
        ModelError: the model has no tokenizer.
    """
    for option, value in ((name, text), ("--pair", pair), ("--target", target)):
        if value is not None:
            hint = "a file with a text in it" if option.startswith("--file") else f'{option} "…"'
            check_text(option, value, empty="there is nothing to show", hint=hint)
    tokenizer = tokenizer or load_tokenizer(checkpoint)
    texts = (text,) if pair is None else (text, pair)
    both = name if pair is None else f"{name} with --pair"
    encoding, notices = _encode(tokenizer, texts, both, max_tokens(config), truncate)
    names = [name for name in tokenizer.model_input_names if name in encoding]
    inputs = {name: batch_of(encoding[name]) for name in names}
    reading = Reading(inputs, tokenizer=tokenizer, notices=notices)
    reading.source = _tokens_of_encoding(tokenizer, encoding, text)
    if all(encoding["special_tokens_mask"]):
        raise OptionError(f"{name} has no tokens in {checkpoint.name}.", hint="another text")
    reading.notices += notices_of_unknown(tokenizer, encoding["input_ids"], both)
    if target is not None:
        reading.labels, notices = read_target(tokenizer, config, target, truncate)
        reading.notices += notices
    return reading


def notices_of_unknown(tokenizer: Any, ids: list[int], name: str) -> list[str]:
    """Return a notice with the share of unknown tokens, if there are any.

    Args:
        tokenizer: the model's; if its unknown token also ends texts, as GPT-2's does, none is counted.
        ids: the token ids.
        name: the name of the text in the notice.
    """
    count, n_token = count_unknown(tokenizer, ids)
    return [notice_of_unknown(tokenizer, count, n_token, name)] if count else []


def count_unknown(tokenizer: Any, ids: list[int]) -> tuple[int, int]:
    """Return the number of unknown tokens, and of all tokens except special ones."""
    unknown = tokenizer.unk_token_id
    others = {getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "cls", "sep")}
    if unknown is None or unknown in others:
        return 0, 0
    special = set(tokenizer.all_special_ids) - {unknown}
    return ids.count(unknown), sum(number not in special for number in ids)


def notice_of_unknown(tokenizer: Any, count: int, n_token: int, name: str) -> str:
    """Return a notice with the number and share of unknown tokens."""
    are = "is" if count == 1 else "are"
    return (
        f"{count:,} of {counted(n_token, 'token')} in {name} ({count / n_token:.0%}) {are}"
        f" {tokenizer.unk_token}: not in the model's vocabulary."
    )


def read_target(tokenizer: Any, config: Any, target: str, truncate: bool) -> tuple[list[int], list[str]]:
    """Return the token ids of a decoder's target, and notices about them."""
    encoding, notices = _encode(tokenizer, (target,), "--target", max_tokens(config), truncate)
    ids = encoding["input_ids"]
    return ids, notices + notices_of_unknown(tokenizer, ids, "--target")


def check_reads(checkpoint: Checkpoint, config: Any, what: str) -> None:
    """Raise a ModelError unless a model takes this input, `text` or `image`, and has attention."""
    check_attends(config.model_type, checkpoint.name)
    with as_model_error(checkpoint):
        main_input = class_of(config).main_input_name
    if main_input in list(AUDIO_INPUTS):
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) takes audio, but attnscope gives models"
            " texts and pictures.",
            hint=f"attnscope model {checkpoint.name}, which shows its weights",
        )
    what_else = _other_input(config, main_input)
    if what_else is not None:
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) reads {what_else}, but attnscope gives models"
            " texts and pictures."
        )
    towers = hasattr(config, "vision_config")
    if (main_input == "pixel_values") != (what == "image") and not towers:
        kind, other = ("text", "--image FILE") if what == "text" else ("pictures", '--text "…"')
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) does not read {kind}.",
            hint=other,
        )


def _other_input(config: Any, main_input: str | list[str]) -> str | None:
    """Name what a model reads beside texts and pictures; None if those are enough."""
    if needs := family_of(config.model_type).needs:
        return needs
    if isinstance(main_input, list):  # OneFormer's
        return " and ".join(OTHER_INPUTS.get(each, each) for each in main_input)
    has_frames = any(getattr(config, name, None) for name in ("num_frames", "frames_per_clip"))
    if main_input == "pixel_values" and has_frames:
        return OTHER_INPUTS["pixel_values_videos"]
    if main_input in ("input_ids", "pixel_values"):
        return None
    return OTHER_INPUTS.get(main_input, main_input)


def first_position(config: Any) -> int:
    """Return the position id of the first token: in some families, the one after that of padding."""
    of_text = config.get_text_config()
    return (
        (of_text.pad_token_id or 0) + 1 if family_of(of_text.model_type).positions_after_padding else 0
    )


def max_tokens(config: Any) -> int | None:
    """Return the most tokens that a model takes; None if only memory limits it."""
    of_text = config.get_text_config()
    positions = getattr(of_text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    return positions - first_position(config)


def tokens_of(tokenizer: Any, ids: list[int], **attributes: Any) -> list[Token]:
    """Return tokens as text, a leading space included.

    If the bytes of a character are split across tokens, the last of them shows it, and all of them have
    a mark: see `byte_tokens.characters_of`.

    Args:
        tokenizer: the tokenizer; None: a token's text is its id.
        ids: the token ids, in the order of the text.
        attributes: the attributes of all tokens, such as `generated=True`.
    """
    if tokenizer is None:
        return [Token(f"<{number}>", **attributes) for number in ids]
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id, tokenizer.mask_token_id}
    known = list(dict.fromkeys(ids))  # of a long text, far fewer than it has tokens
    pieces = tokenizer.convert_ids_to_tokens(known)
    texts = {
        number: piece_of(tokenizer, number, piece, number in special)
        for number, piece in zip(known, pieces, strict=True)
    }
    shown: list[str] = []
    for in_bytes, run in groupby(ids, key=lambda number: isinstance(texts[number], bytes)):
        parts: list[Any] = [texts[number] for number in run]
        shown += characters_of(parts) if in_bytes else parts
    return [
        Token(text, special=number in special, **attributes)
        for number, text in zip(ids, shown, strict=True)
    ]


def read_image(checkpoint: Checkpoint, config: Any, picture: Any) -> Reading:
    """Read an image, cropped and resized for the model: `pixel_values`, `1 3 height width`.

    Args:
        checkpoint: the model; its image processor crops and resizes.
        config: the model's configuration.
        picture: a file, or an image of pillow.

    Raises:
        FileError: there is no such file, or it is not an image.
        ModelError: the model has no image processor, or does not divide images into patches.
    """
    import numpy as np

    image = open_picture(picture)
    from PIL import Image

    processor = load_image_processor(checkpoint)
    with as_model_error(checkpoint):
        pixels = processor(images=image, return_tensors="pt").get("pixel_values")
    patch = _patch_size(config)
    if pixels is None or pixels.dim() != 4 or patch is None:
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) does not cut a picture into a single grid of"
            f" patches, which --image needs: {_why_no_grid(config, pixels)}."
        )
    array = pixels[0].float().permute(1, 2, 0).numpy()
    if getattr(processor, "do_normalize", False):
        with as_model_error(checkpoint, "preprocessor_config.json"):
            of_image = (processor.image_std, processor.image_mean)
            spread, mean = (np.asarray(each, dtype=np.float64) for each in of_image)
            array = array * spread + mean
    if not np.isfinite(array).all():
        raise ModelError(
            f"the preprocessor_config.json of {checkpoint.name} makes pictures that are not finite:"
            f" image_mean is {_short(processor.image_mean)}, image_std {_short(processor.image_std)}."
        )
    shown = Image.fromarray((array.clip(0, 1) * 255).round().astype("uint8"))
    png = BytesIO()
    shown.save(png, format="PNG")
    rows, columns = pixels.shape[2] // patch[0], pixels.shape[3] // patch[1]
    patch_grid = Picture(rows, columns, 0, png.getvalue())
    registers = getattr(_of_vision(config), "num_register_tokens", 0)
    return Reading(
        {"pixel_values": pixels},
        picture=patch_grid,
        most_added=2 + registers,
        others=other_tokens(_of_vision(config), rows * columns),
    )


def other_tokens(of_vision: Any, n_patch: int) -> dict[int, str]:
    """Map each number of tokens that the patches do not explain to what explains it.

    Args:
        of_vision: the configuration of the part that reads pictures.
        n_patch: the number of patches.
    """
    found = {}
    size, n_detection = (
        getattr(of_vision, name, None) for name in ("window_size", "num_detection_tokens")
    )
    if type(size) is int:  # Swin's
        found[size**2] = f"it attends within windows of {size} × {size} patches"
    if type(n_detection) is int:  # of YOLOS, behind [CLS] and the patches
        found[1 + n_patch + n_detection] = f"{n_detection} tokens of detections follow the patches"
    return found


def _why_no_grid(config: Any, pixels: Any) -> str:
    """Explain where a model's tokens come from, if not from a grid of patches."""
    of_vision = _of_vision(config)
    if pixels is not None and pixels.dim() != 4:
        axes = "×".join(map(str, pixels.shape))
        return f"its image processor makes pixel_values of {axes}, not of one picture"
    if isinstance(getattr(of_vision, "patch_sizes", None), list | tuple):
        return "each of its stages has a grid of its own"
    if getattr(of_vision, "backbone_config", None) is not None:
        return "a backbone makes its tokens"
    return "its config.json gives no patch_size"


def open_picture(picture: Any) -> Any:
    """Open a picture as it is meant to be seen: in RGB, turned as its camera was held.

    Args:
        picture: a file, or an image of pillow.

    Raises:
        FileError: there is no such file, or it is not a picture.
        OptionError: it is neither a file nor an image.
        ModelError: pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ModelError(
            "pillow, which reads pictures, is not installed.",
            hint="pip install 'attnscope[image]'",
        ) from error
    if isinstance(picture, Image.Image):
        return ImageOps.exif_transpose(picture).convert("RGB")
    if not isinstance(picture, (str, Path)):
        raise OptionError(
            f"a picture is a file or an image of pillow, but this is a {class_name(picture)}.",
            hint="PIL.Image.fromarray(…)",
        )
    path = picture
    refuse_pipe(path)
    try:
        with Image.open(path) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except Image.DecompressionBombError as error:
        raise FileError(f"{path} is too large: {first_line(error).rstrip('.')}.") from error
    except UnidentifiedImageError as error:
        raise FileError(
            f"{path} is not a picture that pillow can read.", hint="a .png or .jpg file"
        ) from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or first_line(error)}.") from error
    except Exception as error:  # for a damaged image, pillow raises half a dozen types
        if is_out_of_memory(error):
            raise
        raise FileError(f"{path} is a damaged picture: {first_line(error).rstrip('.')}.") from error


def _short(setting: Any) -> str:
    return shortened(repr(setting), 80)


def patches(
    picture: Picture, n: int, most_added: int, others: dict[int, str] | None = None
) -> list[Token]:
    """Return the tokens of an image: those that the model adds, and the patches row by row.

    Args:
        picture: the image, for its rows and columns.
        n: the number of the model's tokens.
        most_added: the most tokens before the patches: `[CLS]`, one for distillation, registers.
        others: as in `Reading`; None: nothing is known.

    Raises:
        ModelError: there are fewer tokens than patches, which the model merges; or too many, which may
            come after the patches.
    """
    first = n - picture.rows * picture.columns
    if not 0 <= first <= most_added:
        known = (others or {}).get(n)
        why = "" if known is None else f", as {known}"
        raise ModelError(
            f"the model makes {n} tokens from {picture.rows} × {picture.columns} patches{why}: --image"
            " supports models in which each patch is a token, after a few others."
        )
    added = [Token("[CLS]" if i == 0 else f"[{i}]", special=True) for i in range(first)]
    return added + [
        Token(f"{row},{column}") for row in range(picture.rows) for column in range(picture.columns)
    ]


def encoded(tokenizer: Any, texts: dict[str, Any], **options: Any) -> Any:
    """Encode texts with a tokenizer; raise a ModelError if it fails.

    Args:
        tokenizer: the model's tokenizer.
        texts: the texts by the names of the tokenizer's arguments.
        options: further arguments of the tokenizer.
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
    """Encode a text or a pair within the model's limit; return a notice if it was truncated.

    Args:
        tokenizer: the model's tokenizer.
        texts: one text or two.
        option: their name in messages; a `--target` is encoded as the decoder's text.
        limit: the model's limit in tokens; None: no limit.
        truncate: whether they may be truncated to it.
    """
    names = ("text_target",) if option == "--target" else ("text", "text_pair")
    arguments = dict(zip(names, texts, strict=False))
    encoding = encoded(tokenizer, arguments, return_special_tokens_mask=True)
    notices = notices_of_cut(option, len(encoding["input_ids"]), limit, truncate)
    if notices:
        options = {"return_special_tokens_mask": True, "truncation": True, "max_length": limit}
        encoding = tokenizer(**arguments, **options)
    return encoding, notices


def notices_of_cut(option: str, n: int, limit: int | None, truncate: bool) -> list[str]:
    """Return a notice if `n` tokens are truncated to the model's limit.

    Raises:
        OptionError: there are more than the model takes, and they may not be truncated.
    """
    if limit is None or n <= limit:
        return []
    if not truncate:
        raise OptionError(
            f"{option} is {n} tokens long, but the model takes at most {limit}.", hint="--truncate"
        )
    return [f"{option} was truncated from {n} tokens to {limit}."]


def _tokens_of_encoding(tokenizer: Any, encoding: Any, first: str) -> list[Token]:
    """Return tokens with their segments; a special token belongs to the text before it.

    Args:
        tokenizer, encoding: the tokenizer and its result.
        first: the first text.
    """
    ids, special_mask = encoding["input_ids"], encoding["special_tokens_mask"]
    if encoding.is_fast:
        segments = encoding.sequence_ids(0)
    else:  # tokenizers in pure Python do not give the text that a token is from
        n_first = len(tokenizer(first, add_special_tokens=False)["input_ids"])
        counts = accumulate(1 - added for added in special_mask)
        segments = [
            None if added else int(nth > n_first)
            for added, nth in zip(special_mask, counts, strict=True)
        ]
    tokens, segment = [], 0
    for token, of_text, special in zip(tokens_of(tokenizer, ids), segments, special_mask, strict=True):
        segment = segment if of_text is None else of_text
        tokens.append(Token(token.text, segment=segment, special=bool(special) or token.special))
    return tokens


def piece_of(tokenizer: Any, number: int, piece: str | None, special: bool) -> str | bytes:
    """Decode one token; return its bytes if they are not complete characters."""
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
    """Return the configuration of the vision model."""
    return getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config


def _patch_size(config: Any) -> tuple[int, int] | None:
    """Return height and width of a patch in pixels, if the configuration gives them."""
    size = getattr(_of_vision(config), "patch_size", None)
    if isinstance(size, int):
        return size, size
    return (size[0], size[1]) if isinstance(size, list | tuple) and len(size) == 2 else None
