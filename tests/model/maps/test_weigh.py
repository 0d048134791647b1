"""Value-weighted maps are weights times the norms of products with W_O, whose modules are named by hand."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    AutoTokenizer,
)
from transformers.masking_utils import eager_mask
from transformers.pytorch_utils import Conv1D

import attnscope
from attnscope import attention_maps
from attnscope.base.errors import ModelError, OptionError
from tests.model.effects.families import FAMILIES, build, words
from tests.sweeps import swept

TEXT, TARGET = "w5 w9 w14 w20 w31 w27 w44", "w7 w11 w4 w30"
SENTENCE = "The cat sat on the mat."

NOT_CAPTURED = """
    openai-gpt ctrl gptj codegen gpt_neo bloom falcon mpt xglm doge deberta deberta-v2 roformer rembert
    megatron-bert ibert convbert nystromformer big_bird longformer yoso mpnet xlm mvp diffllama
""".split()
GATED = "qwen3_next qwen3_5_text afmoe hrm_text bitnet".split()
WEIGHED = [name for name in FAMILIES if name.split()[0] not in (*NOT_CAPTURED, *GATED)]

VALUES: list[torch.Tensor] = []
"""The values that attention received, call by call."""


def record(module, query, key, value, mask, **options):
    """Keep the values, and attend as the family's own file does."""
    VALUES.append(value)
    file = vars(sys.modules[type(module).__module__])
    own = file[min((name for name in file if name.endswith("eager_attention_forward")), key=len)]
    return own(module, query, key, value, mask, **options)


AttentionInterface.register("recorded", record)
AttentionMaskInterface.register("recorded", eager_mask)


@cache
def model_of(name: str):
    return build(name).requires_grad_(False)


def collected(name: str, stack: str, model=None, **options):
    """Maps of all heads of a stack, and the arguments with which the model ran."""
    given, model = [], model or model_of(name)
    decodes = {"target": TARGET} if FAMILIES[name].decodes else {}
    hook = model.register_forward_pre_hook(
        lambda _, arguments, keywords: given.append(keywords), with_kwargs=True
    )
    try:
        maps = attention_maps(
            model,
            TEXT,
            tokenizer=words(),
            layers="all",
            heads="all",
            stack=stack if stack != "self" else None,
            **decodes,
            **options,
        )
    finally:
        hook.remove()
    longest = max(given, key=lambda each: each["input_ids"].shape[1])
    return maps, {name: x for name, x in longest.items() if isinstance(x, torch.Tensor)}


def norms_by_hand(name: str, model, inputs) -> dict[tuple[str, int], torch.Tensor]:
    """‖v_j W_O^h‖ of every stack and layer, `n_head n_K`: loops over heads and keys."""
    norms = {}

    def hook_of(stack: str, layers: list[int]):
        of, left = FAMILIES[name].stacks[stack], list(layers)

        def hook(module, arguments):
            W_O = module.weight if isinstance(module, Conv1D) else module.weight.T
            value = VALUES[-1][0]  # [n_kv_head, n_K, d_V]
            n_kv_head, n_K, d_V = value.shape
            assert W_O.shape[0] == of.n_head * d_V
            norms[stack, left.pop(0)] = torch.tensor(
                [
                    [
                        (value[h // (of.n_head // n_kv_head), j] @ W_O[h * d_V : (h + 1) * d_V]).norm()
                        for j in range(n_K)
                    ]
                    for h in range(of.n_head)
                ]
            )

        return hook

    hooks = [
        model.get_submodule(path).register_forward_pre_hook(hook_of(stack, layers))
        for stack, of in FAMILIES[name].stacks.items()
        for path, layers in of.modules().items()
    ]
    before = model.config._attn_implementation
    model.set_attn_implementation("recorded")
    try:
        with torch.no_grad():
            model(**inputs, use_cache=False)
    finally:
        model.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    return norms


@pytest.mark.few(2)
@pytest.mark.parametrize("name", swept(WEIGHED, default=["gpt2", "llama", "bert", "t5"]))
def test_maps_are_weights_times_the_norms_of_values_times_w_o(name):
    model = model_of(name)
    for stack, of in FAMILIES[name].stacks.items():
        weights, _ = collected(name, stack)
        weighed, inputs = collected(name, stack, weigh="value")
        norms = norms_by_hand(name, model, inputs)
        assert len(weighed) == len(of.layers) * of.n_head
        for each in weighed:
            own = norms[stack, each.layer][each.head].numpy()
            expected = weights[each.layer, each.head].attention * own
            np.testing.assert_allclose(each.attention, expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", swept(GATED, default=GATED[:1]))
def test_what_is_changed_between_the_heads_and_w_o_is_refused(name):
    with pytest.raises(ModelError, match="a gate or a norm stands between"):
        collected(name, "self", weigh="value")


def test_values_that_are_not_seen_are_refused():
    with pytest.raises(ModelError, match="So the values that its heads collect are unknown"):
        collected("gptj", "self", weigh="value")


# MiniLM, by Kobayashi's definition


def test_minilm_is_weighed_as_kobayashi_defines_it():
    """f(x) = (x W_V + b_V) W_O of each head, from the layer's input; α from the model's own eager maps."""
    maps = attention_maps("minilm", SENTENCE, layers=3, heads="all", weigh="value")
    from attnscope.model.files.loaded import find_model

    folder = find_model("minilm").folder
    model = AutoModel.from_pretrained(folder, attn_implementation="eager")
    inputs = AutoTokenizer.from_pretrained(folder)(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        run = model(**inputs, output_attentions=True, output_hidden_states=True)
    layer, x, alpha = model.encoder.layer[3].attention, run.hidden_states[3][0], run.attentions[3][0]
    W_V, b_V, W_O = layer.self.value.weight.T, layer.self.value.bias, layer.output.dense.weight.T
    d_V = W_V.shape[1] // len(alpha)
    for head in range(len(alpha)):
        part = slice(head * d_V, (head + 1) * d_V)
        f = (x @ W_V[:, part] + b_V[part]) @ W_O[part]  # [n_K, d_feat]
        norms = (alpha[head][:, :, None] * f[None]).norm(dim=-1).detach().numpy()
        np.testing.assert_allclose(maps[3, head].attention, norms, rtol=1e-4, atol=1e-6)


# Combinations


def test_a_head_whose_values_are_zero_has_a_map_of_zero():
    model = build("llama").requires_grad_(False)
    value = model.model.layers[1].self_attn.v_proj.weight
    d_V = value.shape[0] // 2  # two key/value heads
    value[:d_V] = 0
    weighed, _ = collected("llama", "self", model, weigh="value")
    for head in range(6):
        largest = weighed[1, head].attention.max()
        assert largest == 0 if head < 3 else largest > 0


@pytest.mark.sweep
def test_pooled_maps_are_pools_of_whole_ones():
    options = {"layers": 1, "heads": [0, 3], "weigh": "value"}
    text = " ".join([SENTENCE] * 30)
    whole = attention_maps("minilm", text, truncate=True, **options)
    pooled = attention_maps("minilm", text, truncate=True, pool="max", **options)
    assert pooled.numbers == "value-weighted"
    for each in pooled:
        assert each.attention.max() == pytest.approx(whole[1, each.head].attention.max(), rel=1e-4)
        n = len(pooled.pooling.keys[0])
        first = whole[1, each.head].attention[:n, :n]
        assert each.max[0, 0] == pytest.approx(first.max(), rel=1e-4)
        assert each.mean[0, 0] == pytest.approx(first.mean(), rel=1e-4)


@pytest.mark.sweep
def test_whole_maps_written_while_they_are_pooled_are_weighed_and_pages_keep_the_weights(tmp_path):
    model = build("llama", max_position_embeddings=1024).requires_grad_(False).float()
    text, file = " ".join(f"w{3 + i % 40}" for i in range(1000)), tmp_path / "maps.safetensors"
    options = {"tokenizer": words(), "layers": "all", "heads": [0, 4]}
    whole = attention_maps(model, text, weigh="value", pool="none", **options)
    of_little = {**options, "heads": "all", "memory": "40M", "page": True}
    pooled = attention_maps(model, text, weigh="value", save=file, **of_little)
    plain = attention_maps(model, text, **of_little)
    assert pooled.pooling is not None
    written = load_file(file)
    for each in whole:
        np.testing.assert_allclose(
            written[f"layer{each.layer}.head{each.head}"], each.attention, atol=1e-4
        )
    with safe_open(file, "np") as opened:
        assert opened.metadata() == {"numbers": "value-weighted"}
    for own, expected in zip(pooled.of_weights[0], plain, strict=True):
        np.testing.assert_array_equal(own.max, expected.max)
        np.testing.assert_array_equal(own.mean, expected.mean)
    assert [row.values for row in pooled.metrics.rows] == [row.values for row in plain.metrics.rows]


@pytest.mark.sweep
def test_a_query_and_its_strongest_keys_are_those_of_the_weighed_map():
    whole = attention_maps("minilm", SENTENCE, layers=2, heads=5, weigh="value")[2, 5].attention
    for pool in (None, "max"):
        row = attention_maps("minilm", SENTENCE, layers=2, heads=5, weigh="value", query=3, pool=pool)
        record = row.to_dict()
        np.testing.assert_allclose(np.array(record["attention"][0], dtype=float), whole[3], rtol=1e-4)
        top = attention_maps("minilm", SENTENCE, layers=2, heads=5, weigh="value", top=2, pool=pool)
        keys = [[each["key"] for each in of_query] for of_query in top.to_dict()["strongest"]]
        assert keys == np.argsort(-whole, axis=1)[:, :2].tolist()


@pytest.mark.sweep
def test_verify_compares_weights_and_what_w_o_put_out():
    for pool in (None, "max"):
        maps = attention_maps("minilm", SENTENCE, weigh="value", verify=True, pool=pool)
        assert [check.ok for check in maps.checks] == [True] * len(maps.checks)
        kind = "pooled weight map" if pool else "weight map"
        assert maps.checks[0].name == f"1 {kind} = that of the model's own eager attention"
        assert maps.checks[-1].name == "Σ_h x_h W_O^h + b_O = the model's"
        assert maps.checks[-1].tolerance > 0  # of a comparison, whose difference may be 0


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_saved_file_says_what_its_numbers_are(tmp_path, suffix):
    maps = attention_maps("minilm", SENTENCE, weigh="value")
    maps.save(tmp_path / f"maps{suffix}")
    again = attnscope.load(tmp_path / f"maps{suffix}")
    assert again.numbers == "value-weighted"
    np.testing.assert_allclose(again[0, 0].attention, maps[0, 0].attention, rtol=1e-5)
    assert "rows do not sum to 1" in maps.to_dict()["meaning"]
    assert attention_maps("minilm", SENTENCE).to_dict()["meaning"] is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"weigh": "norm"}, "weigh is .norm., but takes .value."),
        ({"weigh": "value", "steps": True}, "steps shows the weights themselves"),
    ],
)
def test_what_does_not_go_together_is_refused(options, error):
    with pytest.raises(OptionError, match=error):
        attention_maps("minilm", SENTENCE, **options)
