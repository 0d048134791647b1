"""What config.json says of layers, against published figures and the caches of transformers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnscope.base.errors import ModelError
from attnscope.model.card.from_config import SWITCHES, anatomy_of
from attnscope.model.card.tiny_config import small_model
from attnscope.model.card.verify import decoder_fields
from attnscope.model.families import table
from tests.model.card.small_configs import LATENT, MIXED, SMALL
from tests.model.card.verified_families import FAMILIES, NOT_RUN, decoders_of
from tests.model.families.known_families import (
    FILE,
    OWN,
    WHOLES,
    known_families,
    known_wholes,
    modules_of,
    parts_of,
)
from tests.sweeps import swept

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
GEMMA_3N = {
    "model_type": "gemma3n_text",
    "num_hidden_layers": 35,
    "num_kv_shared_layers": 15,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
}


@pytest.mark.parametrize(("config", "figure"), [(DEEPSEEK_V3, 70_272), (QWEN3_NEXT, 24_576)])
def test_a_token_takes_the_published_bytes_in_two_byte_numbers(
    config: dict[str, Any], figure: int
) -> None:
    assert 2 * sum(each.cache.per_token for each in anatomy_of(config).layers) == figure


def test_gemma_3n_takes_what_is_published_at_32k() -> None:
    size = 2 * sum(each.cache.numbers(32_768) for each in anatomy_of(GEMMA_3N).layers)
    assert round(size / 2**30, 2) == 0.27


LINEAR = {name: value for name, value in QWEN3_NEXT.items() if name.startswith("linear_")} | {
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 5,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 7,
}


@pytest.mark.few(18)
@pytest.mark.parametrize(
    "own",
    [
        {"model_type": "llama"},
        {"model_type": "mistral", "sliding_window": 8},
        {"model_type": "qwen3", "head_dim": 10, "use_sliding_window": False},
        {"model_type": "gemma3_text", "head_dim": 10, "sliding_window": 8, "layer_types": MIXED},
        {"model_type": "gpt_oss", "head_dim": 10, "sliding_window": 8, "layer_types": MIXED},
        {"model_type": "deepseek_v3", "num_key_value_heads": 6, **LATENT},
        {"model_type": "qwen3_next", "head_dim": 8, "full_attention_interval": 4, **LINEAR},
    ],
    ids=lambda own: own["model_type"],
)
@pytest.mark.parametrize("n_tokens", [5, 8, 13])
def test_the_numbers_are_those_of_transformers_cache(own: dict[str, Any], n_tokens: int) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    config = AutoConfig.for_model(**{**SMALL, **own})
    cache = DynamicCache(config=config)
    with torch.no_grad():
        model = AutoModelForCausalLM.from_config(config).eval()
        model(torch.zeros(1, n_tokens, dtype=torch.long), past_key_values=cache)
    kept = []
    for layer in cache.layers:
        parts = ("keys", "values", "conv_states", "recurrent_states")
        states = [getattr(layer, part, None) for part in parts]
        tensors = [
            tensor for each in states for tensor in (each.values() if isinstance(each, dict) else [each])
        ]
        kept.append(sum(each.numel() for each in tensors if each is not None))
    layers = anatomy_of({**SMALL, **own}).layers
    assert kept == [each.cache.dynamic.numbers(n_tokens) for each in layers]


STATES = {
    "mamba2": {"num_heads": 6, "head_dim": 8, "n_groups": 2, "state_size": 10},
    "jamba": {"mamba_d_state": 10, "mamba_dt_rank": 5, "attn_layer_offset": 1, "attn_layer_period": 2},
    "zamba2": {
        "n_mamba_heads": 4,
        "mamba_ngroups": 2,
        "mamba_d_state": 10,
        "layers_block_type": ["mamba", "hybrid"] * 2,
    },
    "qwen3_next": {"head_dim": 8, "full_attention_interval": 4, **LINEAR},
    "kimi_linear": {
        "linear_num_heads": 3,
        "linear_head_dim": 10,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        **LATENT,
    },
}


@pytest.mark.parametrize("model_type", STATES)
def test_the_bytes_of_states_are_those_of_transformers_in_bfloat16(model_type: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kv = {"zamba2": 6, "kimi_linear": 6}.get(model_type, 3)
    aligned = {"pad_token_id": 0, "intermediate_size": 16, "moe_intermediate_size": 16}
    own = {**SMALL, **aligned, "num_key_value_heads": kv, **STATES[model_type]}
    config = AutoConfig.for_model(model_type=model_type, **own)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        output = model(torch.zeros(1, 7, dtype=torch.long), use_cache=True)
    found = []
    for layer in (output.get("past_key_values") or output["cache_params"]).layers:
        tensors = {}
        for part in ("keys", "values", "conv_states", "recurrent_states"):
            value = getattr(layer, part, None)
            for each in value.values() if isinstance(value, dict) else [value]:
                tensors[id(each)] = each
        found.append(sum(each.nbytes for each in tensors.values() if each is not None))
    caches = [each.cache for each in anatomy_of(config.to_dict()).layers]
    assert [each.nbytes(7, 2) for each in caches] == found


def test_the_decoder_of_a_pair_has_cross_attention() -> None:
    from transformers import CONFIG_MAPPING

    anatomy = anatomy_of(CONFIG_MAPPING["canary"]().to_dict())
    assert {each.kind for each in anatomy.cross} == {"cross"}
    assert len(anatomy.cross) == anatomy.n_layer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head_dim": "wide"}, "head_dim of config.json is 'wide', but must be a whole number"),
        ({"model_type": "new"}, "model type 'new' is undecided: attnscope does not know it"),
        ({"layer_types": 3}, "layer_types of config.json is 3, but must be a list of 48 kinds"),
    ],
)
def test_what_is_not_known_is_undecided(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        anatomy_of({**QWEN3_NEXT, **change})


@pytest.mark.sweep
def test_what_is_known_of_families_is_what_transformers_says() -> None:
    written = json.loads(FILE.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(known_families(), default=str)) == written
    assert known_wholes() == json.loads(WHOLES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("model_type", ["llava", "step3p7", "clvp", "llama"])
def test_the_types_of_parts_are_those_of_transformers(model_type: str) -> None:
    written = json.loads(WHOLES.read_text(encoding="utf-8"))["parts"]
    assert written.get(model_type, {}) == parts_of(model_type)


def test_layers_without_positions_that_config_json_leaves_out_are_those_of_the_class() -> None:
    from transformers import CONFIG_MAPPING

    whole = CONFIG_MAPPING["mistral_large4_text"]().to_dict()
    left_out = {name: value for name, value in whole.items() if name != "no_rope_layers"}
    assert {each.cache.per_token for each in anatomy_of(whole).layers} == {512 + 128, 512 + 64 + 128}
    assert anatomy_of(left_out) == anatomy_of(whole)


# What layers have beside their sizes, and how positions rotate them, in every family.

NOT_BUILT = {"blt", "unlimited_ocr"}
UNDECIDED = {name for name, family in table.FAMILIES.items() if family.undecided}
OF_PARTS = {name for name in FAMILIES if {*FAMILIES} & {*decoders_of(name)}}
"""Families of several parts, whose decoder is a family by itself: it is built once."""
BUILT = sorted({*FAMILIES} - {*NOT_RUN} - UNDECIDED - NOT_BUILT - OF_PARTS)
FEW = ["llama", "gemma3n_text", "gpt_oss", "hunyuan_v1_dense", "deepseek_v4", "nanochat"]


def small(family: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return the class of a small model of a family, its configuration, and that as config.json."""
    config = OWN.get(family, {}) | CONFIG_MAPPING[family](**OWN.get(family, {})).to_dict()
    model_class, complete = small_model(config)
    return model_class, complete, config


@pytest.mark.few(4)
@pytest.mark.parametrize("family", swept(BUILT, FEW))
def test_norms_sinks_biases_and_the_rotary_base_are_those_of_the_modules(family: str) -> None:
    model_class, complete, config = small(family)
    if family not in ODD:
        _check_rotary_base(model_class, complete, config)
    switches = [name for names in SWITCHES.values() for name in names if hasattr(complete, name)]
    for turned in (False, True) if switches else (False,):
        for name in switches if turned else ():
            setattr(complete, name, not getattr(complete, name))
        anatomy = anatomy_of(decoder_fields(complete, config))
        extras = {extra for layer in anatomy.layers for extra in layer.extras}
        assert extras & {*SWITCHES, "sinks"} == {*modules_of(model_class, complete)}


ODD = {"deepseek_v4", "mimo_v2_flash", "mistral_large4", "mistral_large4_text"}
"""Families whose small models rotate one pair, an odd number, or scale them by their small length."""
OTHERS = re.compile("vision|visual|audio|encoder[.]|indexer|original")


def _check_rotary_base(model_class: Any, complete: Any, config: dict[str, Any]) -> None:
    """Frequency i of n is base^(−i / n): RoFormer (arXiv:2104.09864), equation 15."""
    anatomy = anatomy_of(decoder_fields(complete, config))
    if any(layer.rope_scaling for layer in anatomy.layers):
        return
    frequencies = {
        name: buffer.double()
        for name, buffer in model_class._from_config(complete).named_buffers()
        if "inv_freq" in name and not OTHERS.search(name)
    }
    theirs = {round(float((each[0] / each[1]) ** len(each))) for each in frequencies.values()}
    ours = {layer.rope_theta for layer in anatomy.layers if layer.n_head} - {None}
    assert sorted(ours) == pytest.approx(sorted(theirs), rel=1e-4)


def test_only_the_rotated_layers_of_llama_4_have_norms() -> None:
    model_class, complete, config = small("llama4_text")
    with torch.device("meta"):
        layers = model_class._from_config(complete).model.layers
    anatomy = anatomy_of(decoder_fields(complete, config))
    normed = ["q/k norm" in layer.extras for layer in anatomy.layers]
    assert normed == [hasattr(layer.self_attn, "qk_norm") for layer in layers]
    assert {*normed} == {True, False}
