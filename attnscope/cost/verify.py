"""Compare the formula of a cache with transformers' own: build the model small, run it, and count bytes.

The small model has the same kinds of layers, and as many heads of queries for each head of keys; its
widths are small, and its weights random.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnscope.cost.anatomy import LayerCache
from attnscope.cost.fields import Config, computed_kinds, decoder_config, text_part
from attnscope.cost.from_config import anatomy_of, check_described
from attnscope.cost.kv_cache import BYTES, cache_bytes
from attnscope.cost.parameters import count_parameters
from attnscope.cost.tensor_parts import place_of
from attnscope.errors import ModelError, first_line
from attnscope.results.card import CacheCheck, ParameterCheck

MOST_LAYERS = 8
"""The number of layers of the small model, unless more are needed to have one of each kind."""

MOST_HEADS = 8
WIDTH = 16
"""The width of a head."""

MOST_PARAMETERS = 10**8
"""The most parameters of the small model."""

WINDOW = 8

SMALL: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "max_position_embeddings"), 128),
    **dict.fromkeys(
        ("n_positions", "max_target_positions", "max_source_positions", "embedding_size"), 128
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "dim_ff"), 48
    ),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "shared_intermediate_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "num_expert_group", "topk_group", "n_shared_experts"), 1),
    "num_nextn_predict_layers": 1,
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "window_size"), WINDOW),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "index_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "qk_rope_head_dim", "linear_key_head_dim"), 8),
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 12,
    "index_n_heads": 2,
    "index_topk": 4,
    "rotary_dim": 8,
    "dim_head": WIDTH,
    "d_head": WIDTH,
    "d_kv": WIDTH,
    "kv_channels": WIDTH,
}
"""The sizes of the small model, if its configuration has such a field."""

DERIVED = ("qk_head_dim", "head_dim_ori", "num_kv_heads")
"""Fields that a class derives from others: as they are, they would contradict the small sizes."""

N_SOURCE = 5
"""The number of tokens of the encoder."""

LENGTHS = (WINDOW - 2, WINDOW, WINDOW + 3)
"""Numbers of tokens below, at and above the window of the small model."""


def verify_cache(config: Config) -> list[CacheCheck]:
    """Compare the bytes that each layer keeps with transformers' own cache, in bfloat16 if it runs.

    Args:
        config: the content of config.json.

    Returns:
        A check for each kind of layer and each length.

    Raises:
        ModelError: transformers cannot build the model small, or keeps no layers of keys and values.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    check_described(config)
    small = shrunk(config)
    anatomy = anatomy_of(small.to_dict() | computed_kinds(small))
    layers = (*anatomy.layers, *anatomy.cross) if _has_encoder(small) else anatomy.layers
    try:
        auto = AutoModelForSeq2SeqLM if _has_encoder(small) else AutoModelForCausalLM
        with torch.device("meta"):
            model = auto.from_config(small)
        n_parameter = sum(each.numel() for each in model.parameters())
        if n_parameter > MOST_PARAMETERS:
            raise ValueError(f"its small model has {n_parameter:,} parameters")
        dtype, held = _measured(auto, small)
    except Exception as error:  # what a model of any class may raise
        raise ModelError(
            f"transformers cannot run {small.model_type} small:"
            f" {type(error).__name__}: {first_line(error)}",
            hint="the formula, without --verify",
        ) from error
    checks = []
    for n, found in held.items():
        if len(found) == 2 * len(layers) and not sum(found[len(layers) :]):
            found = found[: len(layers)]  # of a decoder without an encoder
        if len(found) != len(layers):
            raise ModelError(
                f"transformers' cache of {small.model_type} has {len(found)} layers, and the model"
                f" {len(layers)}.",
                hint="the formula, without --verify",
            )
        for kind in dict.fromkeys(each.kind for each in layers):
            own = [index for index, each in enumerate(layers) if each.kind == kind]
            formula = sum(_formula(layers[index].cache, n, dtype) for index in own)
            checks.append(CacheCheck(kind, n, formula, sum(found[index] for index in own), dtype))
    return checks


def verify_parameters(config: Config) -> list[ParameterCheck]:
    """Compare the parameters that config.json says with those of transformers' model of that size.

    It is built on the meta device, so it takes no memory.

    Args:
        config: the content of config.json.

    Raises:
        ModelError: they are not known from config.json, or transformers cannot build the model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    formula = count_parameters(config, anatomy_of(config))
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(decoder_config(text_part(config)))
    except Exception as error:  # what a class of models may raise
        raise ModelError(
            f"transformers cannot build it: {type(error).__name__}: {first_line(error)}"
        ) from error
    sizes = {name: each.numel() for name, each in model.named_parameters()}
    attention = sum(size for name, size in sizes.items() if place_of(name).in_attention)
    return [
        ParameterCheck("attention", formula.n_attention, attention),
        ParameterCheck("all", formula.n_parameter, sum(sizes.values())),
    ]


def _measured(auto: Any, config: Any) -> tuple[str, dict[int, list[int]]]:
    """Return the dtype of a model with random weights, and what its layers hold at each length.

    Some classes compute in float32 whatever the dtype is, and do not run in bfloat16.
    """
    import torch

    torch.manual_seed(0)
    try:
        model = auto.from_config(config, dtype=torch.bfloat16).eval()
        return "bfloat16", {n: _held(model, n) for n in LENGTHS}
    except RuntimeError as error:
        if "dtype" not in str(error):
            raise
        model = auto.from_config(config, dtype=torch.float32).eval()
        return "float32", {n: _held(model, n) for n in LENGTHS}


def _formula(cache: LayerCache, n_tokens: int, dtype: str) -> int:
    """Return the bytes of a layer's cache by the formula."""
    return cache_bytes(cache, cache.dynamic_numbers(n_tokens, N_SOURCE), BYTES[dtype])


def _has_encoder(config: Any) -> bool:
    """Return whether a model has an encoder of text."""
    return bool(config.is_encoder_decoder) and config.model_type != "whisper"


def shrunk(config: Config) -> Any:
    """Return transformers' configuration of a small model with the same kinds of layers.

    Raises:
        ModelError: transformers does not know the model, or rejects the small sizes.
    """
    part = text_part(config)
    try:
        whole = decoder_config(part)
        fields = whole.to_dict()
        sizes = dict(_sizes(whole, fields))
        dropped = {*DERIVED, *(["head_dim"] if "kv_lora_rank" in fields else []), "per_layer_config"}
        kept = {name: value for name, value in fields.items() if name not in dropped}
        small = type(whole)(**kept | sizes)
    except Exception as error:  # what a class of configurations may raise
        raise ModelError(
            f"transformers cannot make a small {part.get('model_type')}: {first_line(error)}",
            hint="the formula, without --verify",
        ) from error
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if getattr(small, name, None) is not None:
            setattr(small, name, 0)
    return small


def _sizes(config: Any, fields: Config) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a small model."""

    def own(name: str) -> str:
        return str(config.attribute_map.get(name, name))

    n_layer, n_head = fields.get(own("num_hidden_layers")), fields.get(own("num_attention_heads"))
    if isinstance(n_layer, int):
        few = _few_layers(config, n_layer)
        yield own("num_hidden_layers"), few
        for name, value in fields.items():
            if isinstance(value, list) and len(value) == n_layer:
                yield name, [SMALL[name]] * few if name in SMALL else value[:few]
    for name in ("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"):
        if name in fields:
            yield name, 4
    if n_shared := fields.get("num_kv_shared_layers"):
        yield "num_kv_shared_layers", min(n_shared, _needed_layers(config))
    if fields.get("is_decoder") is False:
        yield "is_decoder", True
    if isinstance(n_head, int):
        yield from _head_sizes(config, fields, n_head)
    elif {"num_heads", "head_dim", "expand", "n_groups"} <= fields.keys():  # Mamba-2 alone
        yield from (("hidden_size", 4 * WIDTH), ("num_heads", 8), ("n_groups", 2))
        yield "head_dim", 4 * WIDTH * fields["expand"] // 8
    for name, size in SMALL.items():
        value = fields.get(name)
        counts = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if counts or (name == "num_experts_per_tok" and name in fields):
            yield name, 1 if value == 1 and size == 2 else size  # one expert for a token stays one


def _head_sizes(config: Any, fields: Config, n_head: int) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of heads, as many of queries for each of keys, and the widths that follow."""

    def own(name: str) -> str:
        return str(config.attribute_map.get(name, name))

    group = max(1, n_head // (fields.get("num_key_value_heads") or n_head))
    n_kv_head = max(1, MOST_HEADS // group)
    heads = n_kv_head * group
    yield own("num_attention_heads"), heads
    if "num_key_value_heads" in fields:
        yield "num_key_value_heads", n_kv_head
    if "head_dim" in fields and "kv_lora_rank" not in fields:
        yield "head_dim", WIDTH
    if own("hidden_size") in fields:
        yield own("hidden_size"), heads * WIDTH
    if "d_model" in fields and "decoder_attention_heads" in fields:
        names = ("decoder_attention_heads", "encoder_attention_heads")
        yield from (("d_model", heads * WIDTH), *((name, heads) for name in names))
    yield from _state_sizes(fields, heads * WIDTH)


def _state_sizes(fields: Config, d_feat: int) -> Iterator[tuple[str, Any]]:
    """Yield the sizes of Mamba-2, whose heads make up its inner width."""
    expand = fields.get("mamba_expand", 2)
    if "mamba_d_ssm" in fields:
        yield "mamba_d_ssm", d_feat * expand
    for heads, width in (("mamba_n_heads", "mamba_d_head"), ("mamba_num_heads", "mamba_head_dim")):
        if heads in fields:
            yield heads, 8
            if width in fields:
                yield width, d_feat * expand // 8


def _needed_layers(config: Any) -> int:
    """Return the number of first layers that have all kinds."""
    kinds = getattr(config, "layer_types", None) or []
    return max((kinds.index(each) + 1 for each in set(kinds)), default=1)


def _few_layers(config: Any, n_layer: int) -> int:
    """Return the number of first layers of the small model; layers that share come after all kinds."""
    needed = _needed_layers(config)
    if getattr(config, "num_kv_shared_layers", None):
        return min(n_layer, 2 * needed)
    return min(n_layer, max(MOST_LAYERS, needed))


def _held(model: Any, n_tokens: int) -> list[int]:
    """Return the bytes that each layer of a model's cache holds after some tokens."""
    import torch

    ids = torch.arange(n_tokens)[None] % 60 + 1
    inputs = {"input_ids": ids}
    if _has_encoder(model.config):
        inputs = {"input_ids": ids[:, :N_SOURCE], "decoder_input_ids": ids}
    with torch.no_grad():
        output = model(**inputs, use_cache=True)
    cache = output.get("past_key_values") or output.get("cache_params")
    stacks = [getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")]
    if stacks[0] is None:
        stacks = [cache]
    if not hasattr(stacks[0], "layers"):
        raise ValueError("it keeps no layers of keys and values")
    return [
        sum(each.nbytes for each in _tensors(layer))
        for stack in stacks
        if stack is not None
        for layer in stack.layers
    ]


def _tensors(layer: Any) -> Iterator[Any]:
    """Yield the tensors of a layer of a cache that grow with text or hold its state."""
    import torch

    for value in vars(layer).values():
        values = value.values() if isinstance(value, dict) else value
        for each in values if isinstance(value, dict | list | tuple) else [value]:
            if isinstance(each, torch.Tensor) and each.dim() > 1:
                yield each
