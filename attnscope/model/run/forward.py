"""Run a model, or the part of it that the inputs need; and provide a decoder's input."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.spelling import spelled
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.layers import has_towers
from attnscope.model.run.load import as_model_error
from attnscope.model.run.tokenize import Reading, max_tokens, tokens_of

if TYPE_CHECKING:
    import torch


class ModelInputs(Protocol):
    """The inputs of a model: one text or several."""

    @property
    def inputs(self) -> dict[str, Any]:
        """The model's arguments, on its device."""

    @property
    def target(self) -> object:
        """The input of the decoder in an encoder-decoder model; empty or None: it does not run."""


def run(model: Any, reading: ModelInputs, *, logits: bool = True, **options: Any) -> Any:
    """Run a model, or the part of it that the inputs need, and return its output.

    Args:
        logits: whether to compute logits: for a long text, they are the largest tensor.
    """
    import torch

    inputs = reading.inputs | options
    call = model
    if "pixel_values" in inputs and hasattr(model, "get_image_features"):
        call = model.get_image_features
    elif has_towers(model.config) and hasattr(model, "get_text_features"):
        call = model.get_text_features
    elif model.config.is_encoder_decoder and not reading.target:
        call = model.get_encoder()
    elif not logits:
        call = model.base_model
    with torch.no_grad():
        return call(**inputs, return_dict=True)


def main_output(output: Any) -> torch.Tensor:
    """Return a model's logits, or else its last hidden states."""
    names = [name for name in ("logits", "last_hidden_state", "pooler_output") if name in output]
    return output[names[0]] if names else next(iter(output.values()))


# A decoder's input: a target text, or the tokens that it generates.


def give_target(checkpoint: Checkpoint, model: Any, reading: Reading) -> None:
    """Set the decoder's inputs to the target's labels, shifted right as in training."""
    import torch

    with as_model_error(checkpoint):
        read = shifted(model, reading.labels)
    reading.inputs["decoder_input_ids"] = torch.tensor([read], device=model.device)
    reading.target = tokens_of(reading.tokenizer, read)


def shifted(model: Any, labels: list[int]) -> list[int]:
    """Shift labels right: return the start token, followed by all labels but the last."""
    import torch

    start: Any = getattr(model.config, "decoder_start_token_id", None)
    known = getattr(model.config.get_text_config(decoder=True), "vocab_size", 2**31)
    if start is not None and not (type(start) is int and 0 <= start < known):
        raise _no_start(
            model, f"has decoder_start_token_id {start!r}, which is not one of its {known:,} tokens"
        )
    shifts = hasattr(model, "prepare_decoder_input_ids_from_labels")
    if not labels or not shifts:
        if start is None:
            raise _no_start(model)
        return [int(start), *labels[:-1]]
    batch = torch.tensor([labels], device=model.device)
    try:
        return model.prepare_decoder_input_ids_from_labels(labels=batch)[0].tolist()
    except (AttributeError, TypeError, ValueError) as error:  # mBART and others need no such token
        if start is not None:
            raise
        raise _no_start(model) from error


def _no_start(model: Any, fault: str = "has no decoder_start_token_id") -> ModelError:
    """Return the error for a model whose config.json does not give the decoder's start token."""
    return ModelError(
        f"the config.json of {model.name_or_path or model.config.model_type} {fault}, so the start"
        " token of its decoder is unknown.",
        hint='"decoder_start_token_id": N in it; T5 starts with its padding token, 0',
    )


def generate_tokens(checkpoint: Checkpoint, model: Any, reading: Reading, n: int) -> str:
    """Generate up to `n` tokens greedily, and add them to the model's inputs.

    The repetition penalty and suppressed tokens of its generation_config.json are applied.

    Args:
        n: the number of tokens; fewer, if the text ends earlier.

    Returns:
        The generated text.
    """
    import torch

    ids = reading.inputs["input_ids"]
    most = max_tokens(model.config)
    before = 1 if model.config.is_encoder_decoder else ids.shape[1]
    if most is not None and before + n > most:
        raise OptionError(
            f"{spelled('generate', n)} after {before} token{'s' * (before > 1)} makes {before + n},"
            f" and the model takes {most}.",
            hint=spelled(generate=most - before) if most > before else "a shorter text",
        )
    settings = model.generation_config
    if (
        model.config.is_encoder_decoder
        and settings.decoder_start_token_id is None is settings.bos_token_id
    ):
        raise _no_start(model, "has neither decoder_start_token_id nor bos_token_id")
    with torch.no_grad(), as_model_error(checkpoint):
        written = model.generate(**reading.inputs, max_new_tokens=n, do_sample=False, num_beams=1)
    tokenizer = reading.tokenizer
    if model.config.is_encoder_decoder:
        reading.inputs["decoder_input_ids"] = written
        start, *rest = written[0].tolist()
        reading.target = tokens_of(tokenizer, [start]) + tokens_of(tokenizer, rest, generated=True)
        return _decoded(tokenizer, rest, skip_special_tokens=True)
    new = written[0, ids.shape[1] :].tolist()
    reading.inputs["input_ids"] = written
    for name in set(reading.inputs) & {"attention_mask", "token_type_ids"}:  # as `generate` extends them
        mask = reading.inputs[name]
        more = mask[:, -1:].expand(-1, len(new))
        reading.inputs[name] = torch.cat(
            [mask, torch.ones_like(more) if name == "attention_mask" else more], 1
        )
    whole = tokens_of(tokenizer, written[0].tolist())  # a character may begin before and end in them
    read = [replace(token, text=each.text) for token, each in zip(reading.source, whole, strict=False)]
    generated = [replace(each, generated=True) for each in whole[len(read) :]]
    reading.source = read + generated
    return _decoded(tokenizer, new)


def _decoded(tokenizer: Any, ids: list[int], **options: Any) -> str:
    """Decode generated ids to text; without a tokenizer, list the ids."""
    return " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids, **options)
