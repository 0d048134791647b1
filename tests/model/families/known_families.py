"""What `families.json` and `wholes.json` of `attnscope/model/families` say of each model type, from transformers.

`python -m tests.model.families.known_families` writes the files; tests compare them with the installed version.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from attnscope.model.card import tensor_parts as parts
from attnscope.model.card.from_config import SWITCHES
from attnscope.model.card.tensor_parts import place_of
from attnscope.model.card.tiny_config import small_model
from attnscope.model.files.config import PARTS_OF_TEXT

FILE = Path(__file__).parents[3] / "attnscope" / "model" / "families" / "families.json"

WHOLES = FILE.with_name("wholes.json")

FIELDS = """
    attention_bias attention_chunk_size attention_head_dim attention_k_eq_v attention_out_bias
    attn_logit_softcapping cca_time0 cca_time1 compress_rates conv1d_width conv_kernel conv_kernel_size
    conv_L_cache d_head d_kv decoder_attention_heads decoder_layers decoder_sparse_step dim_head expand
    first_k_dense_replace head_dim hidden_size index_head_dim indexer_head_dim indexer_types
    intermediate_size is_decoder is_encoder_decoder kv_channels kv_lora_rank layer_types
    layers_block_type linear_attn_alpha_factor linear_conv_kernel_dim linear_head_dim
    linear_key_head_dim linear_num_heads linear_num_key_heads linear_num_value_heads
    linear_value_head_dim lru_width mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_head_dim
    mamba_headdim mamba_n_groups mamba_n_heads mamba_ngroups mamba_num_heads max_position_embeddings
    mlp_bias moe_intermediate_size moe_k moe_num_experts moe_topk multi_query n_groups n_mamba_heads
    n_positions n_routed_experts n_shared_experts new_decoder_architecture num_attention_heads
    num_decoder_layers num_experts num_experts_per_tok num_experts_per_token num_heads num_hidden_layers
    num_key_value_heads num_kv_heads num_kv_shared_layers num_layers num_local_experts
    position_embedding_type prompt_length q_lora_rank qk_dim_factor qk_layernorm qk_nope_head_dim
    qk_norm qk_rope_head_dim qkv_bias rescale_every rope_parameters shared_expert_intermediate_size
    sliding_window ssm_state_size state_size swa_head_dim swa_num_attention_heads
    swa_num_key_value_heads swa_v_head_dim top_k_experts use_bias use_mem_rope use_qk_norm v_dim_factor
    v_head_dim vocab_size window_size
""".split()
"""The fields that the cost of a model depends on, under transformers' common names."""

KINDS = ("layer_types", "layers_block_type")
"""The kinds of all layers, which some classes compute whenever they are read."""

SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers")


INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
}
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "xmod": {"default_language": "en_XX"},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8}},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "qwen4_exp": {"text_config": {"model_type": "qwen4_exp_text", **INDEXER}},
    "qwen4_exp_text": INDEXER,
    "granitemoehybrid": {"layer_types": (["mamba"] * 3 + ["attention"]) * 8},
}
"""Fields of configurations whose defaults have no attention, or cannot be run."""


def model_types() -> set[str]:
    """Return transformers' model types that write text, also from images and speech."""
    from transformers.models.auto import modeling_auto as auto

    return {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    }


def known_families() -> dict[str, dict[str, Any]]:
    """Return what is known of every model type that writes text."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    families: dict[str, dict[str, Any]] = {}
    for kind in sorted(model_types()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                whole = CONFIG_MAPPING[kind]()
                config = type(whole.get_text_config(decoder=True))()
            except Exception:  # a class whose defaults it rejects itself
                continue
            families.setdefault(config.model_type or kind, family(config, whole))
    return families


def family(config: Any, whole: Any) -> dict[str, Any]:
    """Return the names, the defaults and the modules of one class of configurations."""
    names = {name: own for name, own in config.attribute_map.items() if name in FIELDS}
    fields, other = config.to_dict(), _other(config)
    known, derived = {}, []
    for name in FIELDS:
        own = names.get(name, name)
        if own not in fields:
            if name in KINDS and getattr(config, name, None) is not None:
                derived.append(name)
            continue
        value = fields[own]
        if other is not None and other.get(own) != value and name not in SIZES:
            if name in ("head_dim", "num_key_value_heads") and isinstance(value, int):
                known[name] = None  # from the number of heads
            else:
                derived.append(name)
        elif isinstance(value, list):
            derived.append(name)
        else:
            known[name] = value
    writer = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    found = {"names": names, "defaults": known, "derived": derived, "class": writer}
    return found | modules(config, whole)


def _other(config: Any) -> dict[str, Any] | None:
    """Return the fields of the same class with other sizes; None if it rejects them."""
    sizes = {}
    for name in SIZES:
        own = config.attribute_map.get(name, name)
        value = config.to_dict().get(own)
        if isinstance(value, int):
            sizes[own] = (
                value * {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 3}[name]
            )
    try:
        result: dict[str, Any] = type(config)(**sizes).to_dict()
    except Exception:
        return None
    return result


NORMS = re.compile(r"\.(q|k|qk|query|key)_?(layer_?)?norm\b|\.(q|k)_?ln\b")
PROJECTIONS = {parts.Q, parts.K, parts.V, parts.O, parts.FUSED, parts.SHARED, parts.LATENTS}


def modules(config: Any, whole: Any) -> dict[str, list[str]]:
    """Return what the attention of a family `has`, and which switches of such modules it `ignores`.

    Args:
        config: of the part that reads text.
        whole: of the whole model, which is built if that part has no class of its own.
    """
    for each in (config, whole):
        try:
            fields = each.to_dict() | OWN.get(each.model_type, {})
            model_class, small = small_model(fields)
            has = modules_of(model_class, small)
            return {"has": has, "ignores": list(_ignored(model_class, small, has))}
        except Exception:  # a class without a model of its own, or whose defaults cannot be built
            continue
    return {"has": [], "ignores": []}


def _ignored(model_class: Any, config: Any, has: list[str]) -> Iterator[str]:
    """Yield the switches of a configuration that change none of the modules."""
    for what, names in SWITCHES.items():
        for name in names:
            if hasattr(config, name):
                setattr(config, name, not getattr(config, name))
                if (what in modules_of(model_class, config)) == (what in has):
                    yield name
                setattr(config, name, not getattr(config, name))


def modules_of(model_class: Any, config: Any) -> list[str]:
    """Return what the attention of a model has, according to the names of its modules on meta."""
    import torch

    with torch.device("meta"):
        model = model_class._from_config(config)
    names = [name for name, _ in model.named_parameters() if _is_decoders(name)]
    names += [f"{name}.weight" for name, _ in model.named_modules() if _is_decoders(f"{name}.weight")]
    biases = [re.fullmatch(r"(.*[._])bias", name) for name in names]
    found = {
        "q/k norm": any(NORMS.search(name) for name in names),
        "sinks": any(re.search(r"sinks?$", name) for name in names),
        "biases": any(each and place_of(f"{each[1]}weight").part in PROJECTIONS for each in biases),
    }
    return [what for what, is_there in found.items() if is_there]


def _is_decoders(name: str) -> bool:
    """Return whether a tensor belongs to the attention of a decoder, or of a model with one stack."""
    return place_of(name).in_attention and re.search(r"\bencoder\.(layers|block)\.", name) is None


def known_wholes() -> dict[str, dict[str, Any]]:
    """Return the types of the parts for text of every model type that has one, and their classes."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    parts = {kind: found for kind in CONFIG_MAPPING if (found := parts_of(kind))}
    classes = {}
    for name in dir(transformers):
        if re.fullmatch(r"\w+For\w+", name):
            try:
                config_class = getattr(transformers, name).config_class
            except (AttributeError, ImportError):  # not a model, or one of packages that are not here
                continue
            kind = getattr(config_class, "model_type", None)
            if kind in parts:
                classes[name] = kind
    return {"parts": parts, "classes": classes}


def parts_of(kind: str) -> dict[str, str]:
    """Return the names and types of the parts for text of a model type."""
    from transformers import AutoConfig

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = AutoConfig.for_model(kind)
    except Exception:  # a class whose defaults it rejects itself
        return {}
    types = {name: getattr(getattr(whole, name, None), "model_type", None) for name in PARTS_OF_TEXT}
    return {name: each for name, each in types.items() if each}


if __name__ == "__main__":
    for file, known in ((FILE, known_families()), (WHOLES, known_wholes())):
        text = json.dumps(known, indent=1, sort_keys=True, default=str)
        file.write_text(text + "\n", encoding="utf-8")
