"""Compare the formula of a cache with transformers' own: build the model small, run it, and count bytes.

The small model has the same kinds of layers, and as many heads of queries for each head of keys; its
widths are small, and its weights random.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from math import prod
from typing import Any

from attnscope.base.errors import ModelError, first_line
from attnscope.base.process.verbosity import silent_transformers
from attnscope.base.spelling import spelled
from attnscope.model.card.anatomy import LayerAnatomy, ModelAnatomy
from attnscope.model.card.cache_dtype import BYTES
from attnscope.model.card.from_config import anatomy_of, check_described
from attnscope.model.card.meta_model import headers_without_values
from attnscope.model.card.parameters import count_parameters
from attnscope.model.card.result import CacheCheck, ParameterCheck
from attnscope.model.card.tensor_parts import place_of
from attnscope.model.card.tiny_config import WINDOW, class_and_config, small_model
from attnscope.model.families.model_types import with_known_types
from attnscope.model.files.config import Config, computed_kinds

MOST_PARAMETERS = 10**8
"""The most parameters of the small model."""

N_SOURCE = 5
"""The number of tokens of the encoder."""

N_READ = 1024
"""The number of tokens for which whole models are compared."""

LENGTHS = (WINDOW - 2, WINDOW, WINDOW + 3)
"""Numbers of tokens below, at and above the window of the small model."""


def verify_cache(config: Config) -> list[CacheCheck]:
    """Compare the bytes that each layer keeps with transformers' own cache, in bfloat16 if it runs.

    Returns:
        A check for each kind of layer and each length.
    """
    import torch

    check_described(config)
    with silent_transformers():
        model_class, small = small_model(config)
    anatomy = anatomy_of(decoder_fields(small, config))
    layers = (*anatomy.layers, *anatomy.cross)
    try:
        with silent_transformers(), torch.device("meta"):
            model = model_class._from_config(small)
        n_parameter = sum(each.numel() for each in model.parameters())
        if n_parameter > MOST_PARAMETERS:
            raise ValueError(f"its small model has {n_parameter:,} parameters")
        reads_source = any(each.cache.per_source_token for each in layers)
        with silent_transformers():
            dtype, held = _measured(model_class, small, N_SOURCE if reads_source else 0)
    except Exception as error:  # what a model of any class may raise
        raise ModelError(
            f"transformers cannot run {small.model_type} small:"
            f" {type(error).__name__}: {first_line(error)}",
            hint=f"the formula, without {spelled(verify=True)}",
        ) from error
    checks = []
    for n, found in held.items():
        if len(found) == 2 * len(layers) and not sum(found[len(layers) :]):
            found = found[: len(layers)]  # of a decoder that attends to no encoder
        if len(found) != len(layers):
            raise ModelError(
                f"transformers' cache of {small.model_type} has {len(found)} layers, and the model"
                f" {len(layers)}.",
                hint=f"the formula, without {spelled(verify=True)}",
            )
        for kind in dict.fromkeys(each.kind for each in layers):
            own = [index for index, each in enumerate(layers) if each.kind == kind]
            formula = sum(layers[index].cache.dynamic.nbytes(n, BYTES[dtype], N_SOURCE) for index in own)
            checks.append(CacheCheck(kind, n, formula, sum(found[index] for index in own), dtype))
    return checks


def verify_reading(config: Config, anatomy: ModelAnatomy) -> list[CacheCheck]:
    """Compare what was read with what transformers reads, in the model's own size.

    Returns:
        A check for each kind of layer that takes other bytes; none if all agree.
    """
    with silent_transformers():
        try:
            complete = class_and_config(config)[1]
        except Exception:  # the small model's error says why
            return []
        theirs = anatomy_of(decoder_fields(complete, config))

    def by_kind(layers: tuple[LayerAnatomy, ...]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for each in layers:
            n_bytes = each.cache.nbytes(N_READ, BYTES["bfloat16"], N_SOURCE)
            sizes[each.kind] = sizes.get(each.kind, 0) + n_bytes
        return sizes

    ours, others = (by_kind((*each.layers, *each.cross)) for each in (anatomy, theirs))
    return [
        CacheCheck(f"{kind}, whole", N_READ, ours.get(kind, 0), others.get(kind, 0), "bfloat16")
        for kind in dict.fromkeys((*ours, *others))
        if ours.get(kind, 0) != others.get(kind, 0)
    ]


def verify_parameters(config: Config) -> list[ParameterCheck]:
    """Compare the parameters that config.json says with those of transformers' model of that size.

    It is built on the meta device, so it takes no memory.
    """
    typed = with_known_types(config).config
    formula = count_parameters(typed, anatomy_of(typed))
    sizes = {each.name: prod(each.shape) for each in headers_without_values(config).tensors}
    attention = sum(size for name, size in sizes.items() if place_of(name).in_attention)
    return [
        ParameterCheck("attention", formula.n_attention, attention),
        ParameterCheck("all", formula.n_parameter, sum(sizes.values())),
    ]


def decoder_fields(small: Any, config: Config) -> Config:
    """Return the fields of a small configuration; of a decoder with cross-attention, they say so."""
    fields: Config = small.to_dict() | computed_kinds(small)
    return fields | {"is_encoder_decoder": config.get("is_encoder_decoder", small.is_encoder_decoder)}


def _measured(model_class: Any, config: Any, n_source: int) -> tuple[str, dict[int, list[int]]]:
    """Return the dtype of a model with random weights, and what its layers hold at each length.

    Some classes compute in float32 whatever the dtype is, and do not run in bfloat16.
    """
    import torch

    torch.manual_seed(0)
    try:
        model = model_class._from_config(config, dtype=torch.bfloat16).eval()
        return "bfloat16", {n: _held_bytes(model, n, n_source) for n in LENGTHS}
    except RuntimeError as error:
        if "dtype" not in str(error):
            raise
        model = model_class._from_config(config, dtype=torch.float32).eval()
        return "float32", {n: _held_bytes(model, n, n_source) for n in LENGTHS}


def _held_bytes(model: Any, n_tokens: int, n_source: int) -> list[int]:
    """Return the bytes that each layer of a model's cache holds after some tokens.

    Layers of cross-attention follow all others.

    Args:
        n_source: the tokens that it attends to beside; 0: none.
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
