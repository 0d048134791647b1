"""Build a model's inputs: tokens of texts, patches of images."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate, groupby
from typing import Any

from attnscope.base.errors import ModelError, OptionError, first_line, is_out_of_memory
from attnscope.base.spelling import either, quoted, spelled
from attnscope.base.text import shortened
from attnscope.base.units import counted
from attnscope.model.families.table import family_of
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.layouts import check_attends
from attnscope.model.run.byte_tokens import bytes_of, characters_of
from attnscope.model.run.load import as_model_error, class_of, load_image_processor, load_tokenizer
from attnscope.model.run.pictures import open_picture
from attnscope.model.run.tokens import Picture, Token

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
    """A model's inputs, and the tokens at their positions."""

    #: the model's arguments by name: `input_ids` and the like, `n_batch n_Q`; `pixel_values`, `n_batch
    #: n_channel height width`. One sequence, or one image.
    inputs: dict[str, Any]
    #: the tokens of the only sequence, or of the encoder's. For an image, they are known only when the
    #: model runs, since it adds some of its own.
    source: list[Token] = field(default_factory=list)
    #: the tokens of the decoder in an encoder-decoder model.
    target: list[Token] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    tokenizer: Any = None
    #: the image; its `first` is not known yet.
    picture: Picture | None = None
    #: the most tokens that the model may put before the patches.
    most_added: int = 0
    #: for numbers of tokens that are not those and the patches: what they are, in words.
    others: dict[int, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def to(self, device: str) -> None:
        """Move the inputs to the device that the model is on."""
        self.inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}


def check_text(option: str, text: str, *, empty: str, hint: str | None = None) -> None:
    """Check that a text can be tokenized."""
    if not text.strip():
        raise OptionError(f"{option} is empty: {empty}.", hint=hint)
    if any("\ud800" <= character <= "\udfff" for character in text):
        how = either(command_line=f'{option} "$(iconv …)"', python="a text that is valid Unicode")
        raise OptionError(f"{option} contains bytes that are not UTF-8.", hint=how)


def read_text(
    checkpoint: Checkpoint,
    config: Any,
    text: str,
    *,
    option: str = "text",
    name: str | None = None,
    pair: str | None = None,
    target: str | None = None,
    truncate: bool = False,
    tokenizer: Any = None,
) -> Reading:
    """Tokenize a text, or a pair of texts, and a decoder's target.

    Args:
        option: the option that has the text.
        name: the name of the text in messages; None: that of its option.
    """
    hint = "a file with a text in it" if name else spelled(**{option: "…"})
    name = name or spelled(option)
    check_text(name, text, empty="there is nothing to show", hint=hint)
    for other, value in {"pair": pair, "target": target}.items():
        if value is not None:
            hint = spelled(**{other: "…"})
            check_text(spelled(other), value, empty="there is nothing to show", hint=hint)
    tokenizer = tokenizer or load_tokenizer(checkpoint)
    texts = (text,) if pair is None else (text, pair)
    both = name if pair is None else f"{name} with {spelled('pair')}"
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
    encoding, notices = _encode(
        tokenizer, (target,), spelled("target"), max_tokens(config), truncate, as_target=True
    )
    ids = encoding["input_ids"]
    return ids, notices + notices_of_unknown(tokenizer, ids, spelled("target"))


def check_reads(checkpoint: Checkpoint, config: Any, what: str) -> None:
    """Raise a ModelError unless a model takes this input, `text` or `image`, and has attention."""
    check_attends(config.model_type, checkpoint.name)
    with as_model_error(checkpoint):
        main_input = class_of(config).main_input_name
    if main_input in list(AUDIO_INPUTS):
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) takes audio, but attnscope gives models"
            " texts and pictures.",
            hint=f"attnscope model {quoted(checkpoint.name)}, which shows its weights",
        )
    what_else = _other_input(config, main_input)
    if what_else is not None:
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) reads {what_else}, but attnscope gives models"
            " texts and pictures."
        )
    towers = hasattr(config, "vision_config")
    if (main_input == "pixel_values") != (what == "image") and not towers:
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) does not read"
            f" {'text' if what == 'text' else 'pictures'}.",
            hint=spelled(image="FILE") if what == "text" else spelled(text="…"),
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
    texts = _pieces(tokenizer, ids, special)
    shown: list[str] = []
    for in_bytes, run in groupby(ids, key=lambda number: isinstance(texts[number], bytes)):
        parts: list[Any] = [texts[number] for number in run]
        shown += characters_of(parts) if in_bytes else parts
    return [
        Token(text, special=number in special, **attributes)
        for number, text in zip(ids, shown, strict=True)
    ]


def _pieces(tokenizer: Any, ids: list[int], special: set[int]) -> dict[int, str | bytes]:
    """Return what each id stands for, by itself: of a long text, there are far fewer than tokens."""
    known = list(dict.fromkeys(ids))
    pieces = tokenizer.convert_ids_to_tokens(known)
    return {
        number: piece_of(tokenizer, number, piece, number in special)
        for number, piece in zip(known, pieces, strict=True)
    }


def pieces_of(tokenizer: Any, ids: list[int]) -> list[bytes]:
    """Return the bytes that each token stands for; special tokens are as they are spelled.

    Joined, they are the text, except that sentencepiece and others put a blank before it.
    """
    texts = _pieces(tokenizer, ids, set(tokenizer.all_special_ids))
    return [each if isinstance(each, bytes) else each.encode() for each in map(texts.__getitem__, ids)]


def read_image(checkpoint: Checkpoint, config: Any, picture: Any) -> Reading:
    """Read an image, cropped and resized for the model: `pixel_values`, `1 3 height width`.

    SigLIP 2 takes its patches instead, `1 n_patch features`, with the size of their grid.

    Args:
        checkpoint: the model; its image processor crops and resizes.
    """
    import numpy as np

    image = open_picture(picture)
    from PIL import Image

    processor = load_image_processor(checkpoint)
    with as_model_error(checkpoint), np.errstate(all="ignore"):  # checked below
        processed = processor(images=image, return_tensors="pt")
    patch = _patch_size(config)
    inputs, pixels = _inputs_and_pixels(processed, patch)
    if pixels is None or pixels.dim() != 4 or patch is None:
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) does not cut a picture into a single grid of"
            f" patches, which {spelled('image')} needs: {_why_no_grid(config, pixels)}."
        )
    array = pixels[0].float().permute(1, 2, 0).numpy()
    if getattr(processor, "do_normalize", False):
        with as_model_error(checkpoint, "preprocessor_config.json"), np.errstate(all="ignore"):
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
        inputs,
        picture=patch_grid,
        most_added=2 + registers,
        others=other_tokens(_of_vision(config), rows * columns),
    )


def _inputs_and_pixels(processed: Any, patch: tuple[int, int] | None) -> tuple[dict[str, Any], Any]:
    """Return the inputs of a model, and its picture, `1 3 height width`, or what its processor made.

    Args:
        patch: the height and the width of a patch in pixels; None: they are not known.
    """
    pixels, shapes = (processed.get(name) for name in ("pixel_values", "spatial_shapes"))
    inputs = {"pixel_values": pixels}
    if patch is None or pixels is None or pixels.dim() != 3 or shapes is None or len(shapes) != 1:
        return inputs, pixels
    rows, columns = shapes[0].tolist()
    if pixels.shape[2] != 3 * patch[0] * patch[1]:
        return inputs, pixels
    pixels = pixels[:, : rows * columns]  # without the padding behind them, which no query sees
    mask = processed["pixel_attention_mask"][:, : rows * columns]
    inputs = {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": shapes}
    of_patches = pixels.reshape(rows, columns, patch[0], patch[1], 3)
    whole = of_patches.permute(4, 0, 2, 1, 3).reshape(1, 3, rows * patch[0], columns * patch[1])
    return inputs, whole


def other_tokens(of_vision: Any, n_patch: int) -> dict[int, str]:
    """Map each number of tokens that the patches do not explain to what explains it.

    Args:
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


def _short(setting: Any) -> str:
    return shortened(repr(setting), 80)


def patches(
    picture: Picture, n: int, most_added: int, others: dict[int, str] | None = None
) -> list[Token]:
    """Return the tokens of an image: those that the model adds, and the patches row by row.

    Args:
        others: as in `Reading`; None: nothing is known.
    """
    first = n - picture.rows * picture.columns
    if not 0 <= first <= most_added:
        known = (others or {}).get(n)
        why = "" if known is None else f", as {known}"
        raise ModelError(
            f"the model makes {n} tokens from {picture.rows} × {picture.columns} patches{why}:"
            f" {spelled('image')} supports models in which each patch is a token, after a few"
            " others."
        )
    added = [Token("[CLS]" if i == 0 else f"[{i}]", special=True) for i in range(first)]
    return added + [
        Token(f"{row},{column}") for row in range(picture.rows) for column in range(picture.columns)
    ]


def encoded(tokenizer: Any, texts: dict[str, Any], **options: Any) -> Any:
    """Encode texts with a tokenizer; raise a ModelError if it fails."""
    try:
        return tokenizer(**texts, **options)
    except Exception as error:  # tokenizers raises a bare Exception
        if is_out_of_memory(error):
            raise
        raise ModelError(f"the model's tokenizer cannot read this text: {first_line(error)}.") from error


def _encode(
    tokenizer: Any,
    texts: tuple[str, ...],
    option: str,
    limit: int | None,
    truncate: bool,
    *,
    as_target: bool = False,
) -> tuple[Any, list[str]]:
    """Encode a text or a pair within the model's limit; return a notice if it was truncated.

    Args:
        option: their name in messages.
        limit: the model's limit in tokens; None: no limit.
        as_target: whether it is the decoder's text.
    """
    names = ("text_target",) if as_target else ("text", "text_pair")
    arguments = dict(zip(names, texts, strict=False))
    encoding = encoded(tokenizer, arguments, return_special_tokens_mask=True)
    notices = notices_of_cut(option, len(encoding["input_ids"]), limit, truncate)
    if notices:
        options = {"return_special_tokens_mask": True, "truncation": True, "max_length": limit}
        encoding = tokenizer(**arguments, **options)
    return encoding, notices


def notices_of_cut(
    option: str, n: int, limit: int | None, truncate: bool, hint: str | None = None
) -> list[str]:
    """Return a notice if `n` tokens are truncated to the model's limit; `hint` is that of the error."""
    if limit is None or n <= limit:
        return []
    if not truncate:
        raise OptionError(
            f"{option} is {n} tokens long, but the model takes at most {limit}.",
            hint=hint or spelled(truncate=True),
        )
    return [f"{option} was truncated from {n} tokens to {limit}."]


def _tokens_of_encoding(tokenizer: Any, encoding: Any, first: str) -> list[Token]:
    """Return tokens with their segments; a special token belongs to the text before it."""
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
