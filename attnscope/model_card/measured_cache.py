"""What the cache of a model of transformers really holds after it has read some tokens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def held_bytes(model: Any, n_tokens: int, n_source: int) -> list[int]:
    """Return the bytes that each layer of a model's cache holds after some tokens.

    Layers of cross-attention follow all others.

    Args:
        model: of transformers, small.
        n_tokens: the tokens that it reads.
        n_source: the tokens that it attends to beside; 0: none.

    Raises:
        ValueError: it keeps no layers.
    """
    import torch

    inputs = _inputs(model, n_tokens, n_source)
    with torch.no_grad():
        output = model(**inputs, use_cache=True)
    if (states := output.get("state")) is not None:  # of RWKV: the last axis has all layers
        return [sum(each[..., layer].nbytes for each in states) for layer in range(states[0].shape[-1])]
    cache: Any = (
        output.get("past_key_values") or output.get("cache_params") or inputs.get("past_key_values")
    )
    if (states := getattr(cache, "rnn_state", None)) is not None:  # of xLSTM
        return [sum(each.nbytes for each in states[layer]) for layer in sorted(states)]
    is_pair = hasattr(cache, "self_attention_cache")
    stacks = [cache.self_attention_cache, cache.cross_attention_cache] if is_pair else [cache]
    if not hasattr(stacks[0], "layers"):
        raise ValueError("it keeps no layers of keys and values")
    sizes = [size for stack in stacks for size in _sizes_of_layers(stack)]
    for name, module in model.named_modules():  # of RecurrentGemma: in the modules themselves
        if name.endswith("temporal_block") and hasattr(module, "conv1d_state"):
            states = (module.conv1d_state, module.rg_lru.recurrent_states)
            sizes[int(name.split(".")[-2])] += sum(each.nbytes for each in states)
    return sizes


def _inputs(model: Any, n_tokens: int, n_source: int) -> dict[str, Any]:
    """Return the tokens that a model reads, and of what it attends to beside, vectors of zeros."""
    import torch
    from transformers import DynamicCache
    from transformers.modeling_outputs import BaseModelOutput

    ids = torch.arange(n_tokens)[None] % 60 + 1
    text = model.config.get_text_config(decoder=True)
    source = torch.zeros(1, n_source, text.hidden_size, dtype=model.dtype)
    names = inspect.signature(model.forward).parameters
    if "decoder_input_ids" in names:
        encoded = BaseModelOutput(source)
        for name in ("router_logits", "attention_mask"):  # of encoders with experts, of speech
            setattr(encoded, name, None)
        return {"encoder_outputs": encoded, "decoder_input_ids": ids}
    if model.config.model_type == "recurrent_gemma":  # which fills a cache, but does not return it
        return {"input_ids": ids, "past_key_values": DynamicCache(config=model.config)}
    if model.config.model_type.startswith("musicgen"):  # whose tokens have a row for each codebook
        ids = ids.repeat(model.config.num_codebooks, 1)
    if "cross_attention_states" in names:
        return {"input_ids": ids, "cross_attention_states": source}
    return {"input_ids": ids} | ({"encoder_hidden_states": source} if n_source else {})


def _sizes_of_layers(cache: Any) -> list[int]:
    """Return the bytes of each layer of a cache."""
    sizes = [sum(each.nbytes for each in _tensors(layer)) for layer in cache.layers]
    states = getattr(cache, "linear_cache", [])  # of MiniMax, beside layers that stay empty
    sizes += [0] * (len(states) - len(sizes))
    for index, state in enumerate(states):
        sizes[index] += getattr(state, "nbytes", 0)
    return sizes


def _tensors(layer: Any) -> Iterator[Any]:
    """Yield the numbers of a layer of a cache: those of text or of its state, no positions."""
    import torch

    seen = set()  # K and V may be one tensor
    for value in vars(layer).values():
        values = value.values() if isinstance(value, dict) else value
        for each in values if isinstance(value, dict | list | tuple) else [value]:
            is_tensor = isinstance(each, torch.Tensor) and each.dim() > 1 and each.is_floating_point()
            if is_tensor and id(each) not in seen:
                seen.add(id(each))
                yield each
