"""A configuration with the layers of a real one, but so small that its model runs at once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from attnscope.base.errors import ModelError, first_line
from attnscope.base.spelling import spelled
from attnscope.model.families.table import family_of
from attnscope.model.files.config import Config, decoder_config, text_part

MOST_LAYERS = 8
"""The number of layers of the small model, unless more are needed to have one of each kind."""

MOST_HEADS = 8
WIDTH = 16
"""The width of a head."""

WINDOW = 8

SMALL: dict[str, int] = {
    name: size
    for size, names in {
        128: """vocab_size vocab_size_per_layer_input max_position_embeddings n_positions
            max_target_positions max_source_positions embedding_size""",
        64: "ngram_vocab_size_base",
        48: """intermediate_size ffn_dim d_ff n_inner ffn_hidden_size dim_ff decoder_ffn_dim
            encoder_ffn_dim shared_intermediate_size""",
        24: """moe_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size
            expert_ffn_hidden_size q_lora_rank""",
        20: "kv_lora_rank",
        WIDTH: "qk_nope_head_dim indexer_head_dim dim_head d_head d_kv kv_channels",
        12: "v_head_dim linear_value_head_dim o_lora_rank",
        8: """mamba_d_state state_size ssm_state_size index_head_dim hidden_size_per_layer_input
            qk_rope_head_dim linear_key_head_dim rotary_dim sliding_window attention_chunk_size
            window_size""",
        4: """n_routed_experts num_experts num_local_experts moe_num_experts linear_num_value_heads
            index_topk indexer_budget""",
        2: """num_experts_per_tok num_experts_per_token moe_k moe_topk top_k_experts
            linear_num_key_heads index_n_heads index_kpool indexer_compress_ratio""",
        1: """n_group num_expert_group topk_group n_shared_experts num_nextn_predict_layers
            zero_expert_num""",
    }.items()
    for name in names.split()
}
"""The sizes of the small model, if its configuration has such a field."""

DERIVED = (
    *("qk_head_dim", "head_dim_ori", "num_kv_heads", "per_layer_config", "hybrid_layer_ids"),
    *("attention_hidden_size", "attention_head_dim", "mamba_headdim", "mamba_dt_rank"),
    *("num_layers_per_stack", "lru_width", "num_blocks"),
)
"""Fields that a class derives from others: as they are, they would contradict the small sizes."""


def small_model(config: Config) -> tuple[Any, Any]:
    """Return the class of a model's decoder, and transformers' configuration of it, made small.

    It is the class of the part for text, or of the whole if that has an encoder of its own.
    """
    model_type = text_part(config).get("model_type")
    try:
        model_class, complete = class_and_config(config)
        return model_class, _smaller(complete)
    except Exception as error:  # what a class of configurations may raise
        raise ModelError(
            f"transformers cannot make a small {model_type}: {first_line(error)}",
            hint=f"the formula, without {spelled(verify=True)}",
        ) from error


def class_and_config(config: Config) -> tuple[Any, Any]:
    """Return the class of a model's decoder, and its complete configuration.

    It is the class of the part for text, or of the whole if that has an encoder of its own. Errors are
    those of transformers.
    """
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto as auto

    whole, part = AutoConfig.for_model(**config), decoder_config(text_part(config))
    if whole.is_encoder_decoder:
        for mapping in (
            auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
            auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
        ):
            if type(whole) in mapping:
                return mapping[type(whole)], whole
    writers: Any = auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(part) in writers:
        return writers[type(part)], part
    if type(whole) in writers and writers[type(whole)].config_class is type(part):
        return writers[type(whole)], part
    return _class_of(type(part)), part


def _class_of(config_class: type) -> Any:
    """Return the class of a part that reads text, which the table of classes may leave out."""
    from transformers import PreTrainedModel

    module = import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    classes = [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, PreTrainedModel)
        and each.config_class is config_class
        and {"input_ids", "past_key_values"} <= inspect.signature(each.forward).parameters.keys()
    ]
    if not classes:
        raise ValueError(f"transformers has no model of {config_class.__name__} alone")
    return max(
        classes, key=lambda each: each.__name__.endswith(("ForCausalLM", "ForConditionalGeneration"))
    )


def _smaller(config: Any) -> Any:
    """Return a configuration with small sizes, in its towers, too."""
    fields = config.to_dict()
    dropped = {*DERIVED, *(["head_dim"] if "kv_lora_rank" in fields else [])}
    kept = {name: value for name, value in fields.items() if name not in dropped}
    towers = {name: getattr(config, name, None) for name in config.sub_configs}
    sizes = dict(_sizes(config, fields)) | {
        name: _smaller(tower).to_dict() for name, tower in towers.items() if tower is not None
    }
    small = type(config)(**kept | sizes)
    for name in fields:
        if name.endswith("token_id") and isinstance(getattr(small, name, None), int | list):
            setattr(small, name, 0)
    return small


def _own(config: Any, name: str) -> str:
    """Return a class's own name of a field that transformers has a common name for."""
    return str(config.attribute_map.get(name, name))


def _sizes(config: Any, fields: Config) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a small model."""
    n_layer, n_head = (
        fields.get(_own(config, "num_hidden_layers")),
        fields.get(_own(config, "num_attention_heads")),
    )
    if isinstance(n_layer, int):
        needed = _needed_layers(config)
        shares = getattr(config, "num_kv_shared_layers", None)  # layers that share come after all kinds
        few = min(n_layer, 2 * needed if shares else max(MOST_LAYERS, needed))
        yield _own(config, "num_hidden_layers"), few
        for name, value in fields.items():
            if isinstance(value, list) and len(value) == n_layer:
                yield name, [SMALL[name]] * few if name in SMALL else value[:few]
    for name in ("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"):
        if name in fields:
            yield name, 4
    if n_shared := fields.get("num_kv_shared_layers"):
        yield "num_kv_shared_layers", min(n_shared, _needed_layers(config))
    if "compress_rates" in fields:
        yield "compress_rates", {kind: 3 + i for i, kind in enumerate(fields["compress_rates"])}
    if fields.get("is_decoder") is False:
        yield "is_decoder", True
    if isinstance(n_head, int):
        yield from _head_sizes(config, fields, n_head)
    elif {"num_heads", "head_dim", "expand", "n_groups"} <= fields.keys():  # Mamba-2 alone
        yield from (("hidden_size", 4 * WIDTH), ("num_heads", 8), ("n_groups", 2))
        yield "head_dim", 4 * WIDTH * fields["expand"] // 8
    else:
        yield from ((name, 8 * WIDTH) for name in ("hidden_size", "embedding_dim") if name in fields)
    if isinstance(rope := fields.get("rope_parameters"), dict):
        yield "rope_parameters", _rope(rope, fields)
    for name, size in SMALL.items():
        value = fields.get(name)
        counts = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if counts or (name == "num_experts_per_tok" and name in fields):
            yield name, 1 if value == 1 and size == 2 else size  # one expert for a token stays one


def _rope(settings: Config, fields: Config) -> Config:
    """Return settings of rotary positions for the width of a small head."""
    new: Config = {
        name: _rope(each, fields) for name, each in settings.items() if isinstance(each, dict)
    }
    if "kv_lora_rank" in fields and "partial_rotary_factor" in settings:
        rotated = SMALL["qk_rope_head_dim"]
        new["partial_rotary_factor"] = rotated / (rotated + SMALL["qk_nope_head_dim"])
    half = int(WIDTH * (settings.get("partial_rotary_factor") or 1)) // 2
    for name in ("short_factor", "long_factor"):  # of longrope, a number for each pair
        if isinstance(settings.get(name), list):
            new[name] = settings[name][:half]
    if "mrope_section" in settings or family_of(fields.get("model_type")).axes == 3:
        new["mrope_section"] = [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8]
    return settings | new


def _head_sizes(config: Any, fields: Config, n_head: int) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of heads, as many of queries for each of keys, and the widths that follow."""
    group = max(1, n_head // (fields.get("num_key_value_heads") or n_head))
    n_kv_head = max(1, MOST_HEADS // group)
    heads = n_kv_head * group
    yield _own(config, "num_attention_heads"), heads
    if "num_key_value_heads" in fields:
        yield "num_key_value_heads", n_kv_head
    if "head_dim" in fields and "kv_lora_rank" not in fields:
        yield "head_dim", WIDTH
    elif "kv_lora_rank" in fields:
        yield from _latent_sizes(fields)
    if _own(config, "hidden_size") in fields:
        yield _own(config, "hidden_size"), heads * WIDTH
    if "decoder_attention_heads" in fields:
        names = ("decoder_attention_heads", "encoder_attention_heads")
        yield from ((name, heads) for name in names)
        if "d_model" in fields:
            yield "d_model", heads * WIDTH
    if fields.get("swa_num_key_value_heads"):  # sliding layers have heads of their own
        queries = fields.get("swa_num_attention_heads") or n_head
        n_shared = max(1, heads * fields["swa_num_key_value_heads"] // queries)
        own = {"swa_num_attention_heads": heads, "swa_num_key_value_heads": n_shared}
        own |= {"swa_head_dim": WIDTH, "swa_v_head_dim": SMALL["v_head_dim"]}
        yield from ((name, size) for name, size in own.items() if name in fields)
    yield from _state_sizes(fields, heads * WIDTH)


def _latent_sizes(fields: Config) -> Iterator[tuple[str, Any]]:
    """Yield the sizes of latent attention that depend on others, and those of layers with their own."""
    rotated, width = SMALL["qk_rope_head_dim"], SMALL["qk_nope_head_dim"] + SMALL["qk_rope_head_dim"]
    own = fields.get("per_layer_config")
    if own:
        heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), MOST_HEADS // 2)
        others = heads | {"kv_lora_rank": 12}
        yield "head_dim", width
        yield (
            "per_layer_config",
            {
                int(layer): {name: others.get(name, SMALL.get(name)) for name in sizes}
                for layer, sizes in own.items()
                if int(layer) < MOST_LAYERS
            },
        )
    elif fields.get("head_dim") == fields.get("qk_rope_head_dim"):
        yield "head_dim", rotated
    elif fields.get("head_dim") == fields.get("qk_head_dim"):
        yield "head_dim", width


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
