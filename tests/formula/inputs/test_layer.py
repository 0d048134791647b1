"""Layers of checkpoints in the textbook's module, compared with transformers' own modules."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from transformers import AutoModel

from attnscope import compute
from attnscope.base.errors import ModelError, OptionError
from attnscope.formula.inputs.layer import open_layer
from attnscope.model.families.table import FAMILIES as KNOWN
from attnscope.model.files.checkpoint import find_checkpoint
from attnscope.model.files.layouts import PARTS, find_stacks
from tests.model.run import families
from tests.model.run.families import BART, BERT, FAMILIES, GPT, LLAMA, SOUND, T5, VIT, Watched, build
from tests.sweeps import swept

ALIKE = {
    **dict.fromkeys("bert-generation data2vec-text layoutlm markuplm splinter biogpt".split(), BERT),
    "roberta-prelayernorm": BERT,
    **dict.fromkeys("blenderbot blenderbot-small pegasus plbart".split(), BART),
    **dict.fromkeys("dinov2_with_registers ijepa vit_mae vit_msn".split(), VIT),
    **dict.fromkeys("data2vec-audio sew unispeech unispeech-sat".split(), SOUND),
    **dict.fromkeys("imagegpt openai-gpt".split(), GPT),
    **dict.fromkeys("arcee seed_oss ministral olmo3 qwen2_moe qwen3_moe".split(), LLAMA),
    **dict.fromkeys("granitemoe granitemoeshared phimoe".split(), LLAMA),
    **dict.fromkeys("switch_transformers umt5".split(), T5),
}
"""Families with the attention of others."""

THREE = {"sliding_window": 3}
SECOND = {**THREE, "use_sliding_window": True, "max_window_layers": 1}
WINDOWS = "gemma2 gemma3_text gpt_oss ministral mistral mixtral olmo3 phi3 phimoe starcoder2"
SHORT = {
    **dict.fromkeys(WINDOWS.split(), THREE),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), SECOND),
    "modernbert": {"local_attention": 4},
    "gpt_neo": {"window_size": 3},
    "gpt2": {"scale_attn_by_inverse_layer_idx": True},
    "smollm3": {"no_rope_layers": [0, 1]},
    "granite": {"attention_multiplier": 0.3},
    "olmo": {"clip_qkv": 0.1},
}
"""Settings that matter for a few tokens."""

DEFAULT = ("bert decoder", "llama", "qwen2", "gpt2", "gemma2", "t5")
TOLERANCE = 1e-6
"""transformers computes angles, and the softmax of some families, in float32."""


@cache
def watched(family):
    model = build(family, **SHORT.get(family, {}))
    return model, Watched(model)


def compared(model, run, stack, layer):
    """Return the layer, and the largest difference between the textbook and the model's own module."""
    turn = sum(stack.numbers[i] == stack.numbers[layer] for i in range(layer) if i in stack.numbers)
    Q, K, _, O = (stack.module(part, layer) for part in PARTS)  # noqa: E741
    Q, K, expected = run.inputs[Q][turn], run.inputs[K][turn], run.outputs[O][turn]
    inputs = {"q": Q, "k": K} if stack.layout.cross else {"x": Q}
    trace = compute("mha", weights=model, layer=layer, stack=stack.name, keep=["x"], **inputs)
    difference = float((trace["x"].tensor.reshape(expected.shape) - expected).abs().max())
    return open_layer(model, layer, stack.name), difference, trace


@pytest.mark.few(2)
@pytest.mark.parametrize("family", swept([*FAMILIES, *ALIKE], default=DEFAULT))
def test_a_layer_is_that_of_transformers_or_says_what_it_leaves_out(family, monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", FAMILIES | ALIKE)
    model, run = watched(family)
    for stack in find_stacks(model.state_dict(), model.config.to_dict(), family):
        for layer in stack.numbers:
            if family == "mobilebert":
                with pytest.raises(ModelError, match="keys from 12 numbers and values from 24"):
                    open_layer(model, layer, stack.name)
                continue
            opened, difference, trace = compared(model, run, stack, layer)
            is_whole = not opened.formula.missing and opened.formula.family is not None
            assert (difference < TOLERANCE) == is_whole, (stack.name, layer, difference, opened)
            assert len(trace.findings) == (not is_whole)


def test_every_family_that_is_known_is_compared():
    parts = "clip_text_model clip_vision_model metaclip_2_text_model metaclip_2_vision_model"
    parts += " siglip_text_model siglip_vision_model"  # of clip, metaclip_2 and siglip
    described = {name for name, family in KNOWN.items() if family.formula is not None}
    assert described - set(parts.split()) <= {each.split()[0] for each in (*FAMILIES, *ALIKE)}


@pytest.mark.parametrize("layer", swept(range(6), default=[4]))
def test_a_layer_of_the_bundled_model_is_that_of_transformers(layer):
    model = AutoModel.from_pretrained(find_checkpoint("minilm").source, dtype=torch.float64).eval()
    module = model.encoder.layer[layer].attention
    x = torch.randn(2, 5, 384, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        merged, *_ = module.self(x)
        expected = module.output.dense(merged)
    trace = compute("mha", weights="minilm", layer=layer, x=x, dtype="float64", keep=True, verify=True)
    assert (trace["x"].tensor - expected).abs().max() < 1e-13
    assert all(check.ok for check in trace.checks)
    assert trace.sizes["n_head"] == 12
    assert (trace.options["model"], trace.options["layer"], trace.findings) == ("minilm", layer, [])


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    families.save("llama", folder)
    return folder


X = torch.randn(2, 7, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def changed(folder, tmp_path, **settings):
    """Return a copy of a checkpoint whose config.json has these settings; None: without the field."""
    config = json.loads((folder / "config.json").read_text()) | settings
    config = {name: value for name, value in config.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    return tmp_path


def by_transformers(folder, layer):
    model = AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    positions = model.rotary_emb(X, torch.arange(7)[None])
    mask = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    with torch.no_grad():
        return model.layers[layer].self_attn(X, position_embeddings=positions, attention_mask=mask)[0]


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"rope_theta": 300.0}, None),
        ({"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 4.0}}, "linear"),
        ({}, None),
    ],
)
def test_the_settings_of_earlier_versions_are_read(llama, tmp_path, settings, missing):
    folder = changed(llama, tmp_path, rope_parameters=None, **settings)
    trace = compute("mha", weights=folder, layer=1, x=X, keep=["x"])
    difference = (trace["x"].tensor - by_transformers(folder, 1)).abs().max()
    assert (difference < TOLERANCE) == (missing is None)
    text = f"layer 1 of {folder} computes more than mha, which leaves out the scaling of its rotary"
    expected = [] if missing is None else [f"{text} positions ({missing})"]
    assert [each.message for each in trace.findings] == expected


def test_an_unknown_family_is_run_with_its_projections_and_says_so(llama, tmp_path):
    folder = changed(llama, tmp_path, model_type="alpaca")
    trace = compute("mha", weights=folder, layer=0, x=X, keep=["x"])
    plain = compute("mha", weights=llama, layer=0, x=X, mask="none", rope=False, keep=["x"])
    assert torch.equal(trace["x"].tensor, plain["x"].tensor)
    assert [each.message for each in trace.findings] == [
        f"attnscope does not know what layer 0 of {folder} computes beside its projections: mha applies"
        " these, without a mask and without positions"
    ]


def test_options_of_the_user_replace_those_of_the_layer(llama):
    implied = compute("mha", weights=llama, layer=0, x=X, keep=["x"])
    assert implied.options["mask"] == ["causal"]
    assert implied.options["rope_theta"] == 10000
    own = compute(
        "mha",
        weights=llama,
        layer=0,
        x=X,
        mask="window:2",
        rope_theta=50,
        scale=0.3,
        softcap=4,
        keep=["x"],
    )
    chosen = {name: own.options[name] for name in ("mask", "rope_theta", "scale", "softcap")}
    assert chosen == {"mask": ["window:2"], "rope_theta": 50, "scale": 0.3, "softcap": 4}
    gemma, run = watched("gemma2")
    Q = run.inputs["layers.0.self_attn.q_proj"][0]
    off = {"mask": "none", "rope": False, "softcap": float("inf"), "scale_by": "d_head"}
    trace = compute("mha", weights=gemma, layer=0, x=Q, **off)
    assert not {"mask", "rope_theta", "softcap"} & trace.options.keys()
    assert trace.options["scale"] == 8**-0.5


def test_a_weight_by_itself_replaces_that_of_the_layer(llama):
    W_V = torch.zeros(16, 36, dtype=torch.float64)
    trace = compute("mha", weights=llama, layer=0, x=X, wv=W_V, keep=["x"])
    assert not trace["x"].tensor.any()


def test_weights_are_read_in_their_own_dtype(llama, tmp_path):
    model = AutoModel.from_pretrained(llama, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    files = open_layer(tmp_path, 1, None).files
    module = model.layers[1].self_attn
    for part, linear in zip(
        PARTS, (module.q_proj, module.k_proj, module.v_proj, module.o_proj), strict=True
    ):
        assert torch.equal(files[f"W_{part}"].load(), linear.weight)
    assert compute("mha", weights=tmp_path, layer=1, nq=3, batch=2).dtype == "bfloat16"


def test_the_layer_of_something_else_is_refused():
    for weights, message in (
        (None, "layer=2 is a layer of a model, but there is none."),
        ({"W_Q": X}, "layer=2 is a layer of a model, but weights is a mapping of tensors."),
    ):
        with pytest.raises(OptionError) as caught:
            compute("mha", weights=weights, layer=2)
        assert caught.value.message == message
    with pytest.raises(
        OptionError, match='stack="text" selects layers of a model, but there is no layer'
    ):
        compute("mha", weights="minilm", stack="text")
    with pytest.raises(OptionError, match="layer is 'first', but takes whole numbers"):
        compute("mha", weights="minilm", layer="first")
