"""What a model's configuration and classes promise for each of its layers."""

from __future__ import annotations

from typing import Any

from attnscope.auditing.expected import ExpectedMask
from attnscope.model.run.layers import field_of

OTHER_KINDS = ("linear_attention", "conv", "mamba", "recurrent", "moe", "sparse", "hybrid")
"""Kinds of layers, in `layer_types`, that are not softmax attention over all or some positions."""


WINDOWS = ("sliding", "window", "chunk")
"""Words in the kinds of layers that see only some positions."""


def causality(model: Any) -> tuple[bool | None, str]:
    """Decide whether a model is causal, with what says so; None if nothing does.

    For an encoder-decoder model, this is about its decoder.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    config, name = model.config, type(model).__name__
    text = (
        config.get_text_config(decoder=True) if config.is_encoder_decoder else config.get_text_config()
    )
    if config.is_encoder_decoder:
        return True, f"{name} has an encoder and a decoder"
    if getattr(text, "attn_type", None) == "bi":
        return False, "attn_type='bi' in the configuration"
    if getattr(text, "is_decoder", False):
        return True, "is_decoder=True in the configuration"
    if isinstance(stated := getattr(text, "is_causal", None), bool):
        return stated, f"is_causal={stated} in the configuration"
    if getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        return False, "use_bidirectional_attention in the configuration"
    if getattr(text, "causal", None) is True:  # XLM's
        return True, "causal=True in the configuration"
    listed = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if listed and type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        source = f"transformers lists {text.model_type} as a causal language model"
        return True, "; ".join(filter(None, [source, image_blocks(config)]))
    flags = {
        module.is_causal
        for module in model.modules()
        if isinstance(getattr(module, "is_causal", None), bool) and "ttention" in type(module).__name__
    }
    if flags == {True}:
        return True, "is_causal=True in every attention module"
    if flags == {False} or type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        said = "is_causal=False in every attention module" if flags else "is_decoder=False"
        return False, said
    return None, f"nothing in {name} or its configuration says whether it is causal"


def image_blocks(config: Any) -> str:
    """Return in words that a text does not test the promise for tokens of images; or nothing."""
    if getattr(config.get_text_config(), "use_bidirectional_attention", None) != "vision":
        return ""
    return "use_bidirectional_attention='vision': tokens of an image see each other, which is not tested"


def mask_of_config(config: Any, layer: int | None, causal: bool) -> ExpectedMask | None:
    """Read from a configuration the mask that a layer should have; None if its kind has no such mask."""
    if unread_window(config) is not None:
        return None
    full = ExpectedMask("full attention", causal)
    kinds = getattr(config, "layer_types", None)
    window = field_of(config, "sliding_window", layer)
    if isinstance(kinds, list) and kinds and layer is not None and layer < len(kinds):
        kind = str(kinds[layer])
        if any(other in kind for other in OTHER_KINDS):
            return None
        if kind == "sliding_attention":
            if not isinstance(window, int):
                return None
            return _sliding(window, causal, f"layer_types[{layer}]={kind!r}")
        if kind == "chunked_attention":
            chunk = field_of(config, "attention_chunk_size", layer)
            return ExpectedMask(f"attention_chunk_size={chunk}", causal, chunk=chunk)
        return full if kind == "full_attention" else None
    if isinstance(kinds := getattr(config, "attention_layers", None), list) and layer is not None:
        if kinds[layer] == "local":  # GPT-Neo's
            return ExpectedMask(f"window_size={config.window_size}", causal, window=config.window_size)
        return full
    if isinstance(window, int) and getattr(config, "use_sliding_window", True):
        return _sliding(window, causal, "all layers")
    return full


def _sliding(window: int, causal: bool, where: str) -> ExpectedMask:
    """Return the mask of a sliding window.

    In both directions, its width is a convention of each family: the keys on both sides together, those
    on each side, or these with the query's own.
    """
    source = f"sliding_window={window}, {where}"
    if causal:
        return ExpectedMask(source, True, window=window)
    return ExpectedMask(source, False, window=window + 1, least=(window + 1) // 2)


UNREAD = (
    "attention_window",  # Longformer, LED
    "attention_window_size",  # RecurrentGemma
    "local_radius",  # LongT5
    "local_attn_chunk_length",  # Reformer
    "sliding_window_size",  # Inkling
    "stagger_local_blocks",  # PEGASUS-X
)
"""Fields of configurations that promise a window in a way that is not read here."""


def unread_window(config: Any) -> str | None:
    """Find a field of a configuration that promises a window of unknown width, or None."""
    for name in UNREAD:
        if value := getattr(config, name, None):
            return f"{name}={value}"
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird's
        return "attention_type='block_sparse'"
    return None
