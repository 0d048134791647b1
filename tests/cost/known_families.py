"""What `attnscope/cost/families.json` says of each model type, from transformers' own classes.

`python tests/cost/known_families.py` writes the file; a test compares it with the installed version.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "attnscope" / "cost" / "families.json"

FIELDS = """
    attention_bias attention_chunk_size attention_head_dim attention_k_eq_v attn_logit_softcapping
    cca_time0 cca_time1 compress_rates conv1d_width conv_L_cache conv_kernel conv_kernel_size d_head
    d_kv decoder_attention_heads decoder_layers dim_head expand head_dim hidden_size index_head_dim
    indexer_head_dim indexer_types intermediate_size is_decoder is_encoder_decoder kv_channels
    kv_lora_rank layer_types layers_block_type linear_attn_alpha_factor linear_conv_kernel_dim
    linear_head_dim linear_key_head_dim linear_num_heads linear_num_key_heads linear_num_value_heads
    linear_value_head_dim lru_width mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_head_dim
    mamba_headdim mamba_n_groups mamba_n_heads mamba_ngroups mamba_num_heads max_position_embeddings
    multi_query n_groups n_mamba_heads new_decoder_architecture num_attention_heads num_decoder_layers
    num_heads num_hidden_layers num_key_value_heads num_kv_heads num_kv_shared_layers num_layers
    prompt_length qk_dim_factor qk_layernorm qk_nope_head_dim qk_norm qk_rope_head_dim qkv_bias
    rescale_every rope_parameters sliding_window ssm_state_size state_size swa_head_dim swa_num_attention_heads
    swa_num_key_value_heads swa_v_head_dim use_qk_norm v_dim_factor v_head_dim window_size
""".split()
"""The fields that the cost of attention depends on, under transformers' common names."""

KINDS = ("layer_types", "layers_block_type")
"""The kinds of all layers, which some classes compute whenever they are read."""

SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers")


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
                config = type(CONFIG_MAPPING[kind]().get_text_config(decoder=True))()
            except Exception:  # a class whose defaults it rejects itself
                continue
            families.setdefault(config.model_type or kind, family(config))
    return families


def family(config: Any) -> dict[str, Any]:
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
    return {"names": names, "defaults": known, "derived": derived, "has": modules(config)}


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


NORMS = re.compile(
    r"attn.*\.(q|k|query|key)_?(layer_?)?norm\b|attention\.(q|k|query|key)_?(layer_?)?norm\b"
)


def modules(config: Any) -> list[str]:
    """Return what the attention of a family has, according to its modules on meta."""
    import torch
    from transformers import AutoModel

    try:
        with torch.device("meta"):
            names = [name for name, _ in AutoModel.from_config(config).named_parameters()]
    except Exception:  # a class without a model of its own
        return []
    found = {
        "q/k norm": any(NORMS.search(name) for name in names),
        "sinks": any(re.search(r"sinks?$", name) for name in names),
        "biases": any(
            re.search(r"(attn|attention).*(q|k|v|query|key|value|qkv|c_attn)\w*\.bias$", name)
            for name in names
        ),
    }
    return [what for what, is_there in found.items() if is_there]


if __name__ == "__main__":
    text = json.dumps(known_families(), indent=1, sort_keys=True, default=str)
    FILE.write_text(text + "\n", encoding="utf-8")
