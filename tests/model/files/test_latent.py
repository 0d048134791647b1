"""The parts of latent attention compute the same as the inputs of attention in transformers."""

import json
from shutil import copytree

import numpy as np
import pytest
import torch
from transformers import AutoModel

from attnscope.base.errors import ModelError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.attention_hook import observing
from attnscope.model.weights.head_weights import read_head
from attnscope.model.weights.verify import verify_head
from tests.model.run.tiny import save_tiny
from tests.sweeps import swept

SIZES = {"head_dim": 8, "num_key_value_heads": 4}
FAMILIES = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deepseek_v3": {},
    "deepseek_v3 whole queries": {"q_lora_rank": None},
    "deepseek_v3 with biases": {"attention_bias": True},
    "minicpm3": {},
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_experts_per_token": 2,
    },
    "glm4_moe_lite": {},
    "youtu": {},
    "deepseek_v32": {},
    "axk1": {},
    "mistral4": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 8192,
        }
    },
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    made = {}

    def folder(family):
        if family not in made:
            made[family] = tmp_path_factory.mktemp("latent") / family.replace(" ", "_")
            save_tiny(family.split()[0], made[family], **{**SIZES, **FAMILIES[family]})
        return made[family]

    return folder


def norm(x, gain, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def near(ours, theirs):
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-6)


SOME = ["deepseek_v3", "deepseek_v3 whole queries"]


@pytest.mark.parametrize("family", swept([name for name in FAMILIES if name != "deepseek_v32"], SOME))
def test_parts_make_the_queries_keys_and_values_of_one_head(saved, family):
    """The paper's formulas in numpy, with only the slices, match the inputs of attention."""
    folder = saved(family)
    head = read_head(folder, head=2)
    part = {each.name: each.array.astype("float64") for each in head.weights}
    model = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    model.set_experts_implementation("eager") if model._can_set_experts_implementation() else None
    attention = model.get_submodule(f"layers.{head.layer}.self_attn")
    tokens, calls = [], []
    attention.kv_a_proj_with_mqa.register_forward_hook(lambda _, x, y: tokens.append(x[0][0].numpy()))
    with torch.no_grad(), observing(model, calls.append):
        model(input_ids=torch.arange(3, 10)[None])
    [call] = [each for each in calls if each.path == f"layers.{head.layer}.self_attn"]
    x, eps = tokens[0], attention.kv_a_layernorm.variance_epsilon
    queries = x
    if head.latent.d_CQ is not None:
        queries = norm(x @ part["W_DQ"].T + part.get("b_DQ", 0), part["g_Q"], eps)
    latent = norm(x @ part["W_DKV"].T + part.get("b_DKV", 0), part["g_KV"], eps)
    d_nope = head.latent.d_nope
    q, k, v = (each[0, 2] for each in (call.query, call.key, call.value))
    near(queries @ part["W_UQ" if "W_UQ" in part else "W_Q"].T, q[:, :d_nope])
    near(latent @ part["W_UK"].T, k[:, :d_nope])
    near(latent @ part["W_UV"].T, v)
    # Turning keeps lengths.
    near(np.linalg.norm(queries @ part["W_QR"].T, axis=-1), q[:, d_nope:].norm(dim=-1))
    turned = x @ part["W_KR"].T + part.get("b_KR", 0)
    near(np.linalg.norm(turned, axis=-1), k[:, d_nope:].norm(dim=-1))


@pytest.mark.parametrize("family", swept(FAMILIES, SOME))
def test_latent_attention_is_verified(saved, family):
    checkpoint = Checkpoint(family, saved(family))
    for number in (0, 3):
        head = read_head(checkpoint, head=number)
        checks = verify_head(checkpoint, head)
        assert all(check.ok for check in checks), checks
        names = {name for check in checks for name in check.name.split(", ")}
        assert {part.name for part in head.weights} - {"b_DQ", "b_DKV", "b_KR"} <= names


def test_another_heads_parts_do_not_hold(saved):
    from dataclasses import replace

    checkpoint = Checkpoint("some", saved("deepseek_v3"))
    mistaken = replace(read_head(checkpoint), weights=read_head(checkpoint, head=3).weights)
    wrong = {check.name for check in verify_head(checkpoint, mistaken) if check.ok is False}
    assert {"W_UQ, W_QR", "W_UK", "W_UV", "W_O", "the layer's head 0"} == wrong


def test_parts_are_rows_of_what_is_stored_and_the_shared_are_marked(saved):
    head = read_head(saved("deepseek_v3"), head=2)
    assert (head.d_head, head.n_kv_head, vars(head.latent)) == (
        20, 4, {"d_nope": 12, "d_rope": 8, "d_V": 12, "d_CQ": 16, "d_CKV": 16},
    )  # fmt: skip
    rows = {each.name: (each.axis, each.start, each.stop) for each in head.weights}
    assert rows["W_UQ"] == (0, 40, 52)
    assert rows["W_QR"] == (0, 52, 60)
    assert rows["W_UK"] == (0, 48, 60)
    assert rows["W_UV"] == (0, 60, 72)
    assert rows["W_KR"] == (0, 16, 24)
    assert rows["W_O"] == (1, 24, 36)
    shared = {each.name for each in head.weights if each.shared}
    assert shared == {"W_DQ", "g_Q", "W_DKV", "g_KV", "W_KR"}
    other = {each.name: each for each in read_head(saved("deepseek_v3"), head=1).weights}
    for each in head.weights:
        assert np.array_equal(each.array, other[each.name].array) == each.shared


@pytest.mark.parametrize(
    ("field", "value"),
    [("qk_nope_head_dim", 8), ("qk_rope_head_dim", 4), ("v_head_dim", 8), ("kv_lora_rank", 32)],
)
def test_sizes_that_the_configuration_contradicts_are_refused(saved, tmp_path, field, value):
    folder = copytree(saved("deepseek_v3"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(ModelError, match=f"{field} is {value} in the config.json"):
        read_head(folder)


def test_a_number_of_heads_that_does_not_fit_is_refused(saved, tmp_path):
    folder = copytree(saved("deepseek_v3"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 3}))
    with pytest.raises(ModelError, match="which does not fit 3 heads of latent attention"):
        read_head(folder)


def test_latent_attention_is_shown_with_what_is_shared(attnscope, saved):
    folder = saved("deepseek_v3")
    r = attnscope("model", folder, "--head", 1, "--show", "W_KR[0,:2]")
    assert r.exit_status == 0
    assert "d_nope 12 · d_rope 8 · d_V 12 · d_CQ 16 · d_CKV 16" in r.out
    assert "rows 16:24, shared" in r.out
    record = attnscope("model", folder, "-f", "json").json
    assert record["latent"]["d_CKV"] == 16
    assert {each["name"]: each["shared"] for each in record["weights"]}["W_DKV"] is True
    refused = attnscope("model", folder, "--circuits")
    assert refused.exit_status == 2
    assert "a norm follows the latents" in refused.err
