"""LoRA adapters, merged while weights are read: bit for bit what PEFT's `merge_and_unload` computes."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification

from attnscope import compare_checkpoints
from attnscope.base.arrays import numbers
from attnscope.base.errors import ModelError, OptionError
from attnscope.model.files.adapter import AdaptedWeights, read_adapter
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.tensors import open_weights
from tests.model.run.families import build

LLAMA_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj"]

CASES = {
    "plain": ("llama", {"target_modules": LLAMA_MODULES}),
    "some modules": ("llama", {"target_modules": ["q_proj", "v_proj"], "r": 5}),
    "rank-stabilised": ("llama", {"target_modules": LLAMA_MODULES, "use_rslora": True, "r": 3}),
    "patterns": (
        "llama",
        {
            "target_modules": LLAMA_MODULES,
            "alpha_pattern": {"layers.1.self_attn.q_proj": 7, "k_proj": 11},
            "rank_pattern": {"^layers.0.*v_proj": 2},
        },
    ),
    "biases": ("bert", {"target_modules": ["query", "dense"], "bias": "lora_only"}),
    "biases of LoRA": ("bert", {"target_modules": ["query", "value"], "lora_bias": True}),
    "whole modules": ("bert", {"target_modules": ["query"], "modules_to_save": ["key", "LayerNorm"]}),
    "Conv1D": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "square Conv1D": ("gpt2", {"target_modules": r".*attn\.c_proj", "fan_in_fan_out": True}),
    "fused": ("gpt_neox", {"target_modules": ["query_key_value", "dense"]}),
}


@pytest.fixture
def adapted(tmp_path):
    """Return a function that saves a model and an adapter, and returns the merged model and our tensors."""

    def save(family, config, *, dtype=torch.float32, model=None):
        model = (build(family) if model is None else model).to(dtype)
        model.save_pretrained(tmp_path / "base")
        torch.manual_seed(2)
        tuned = get_peft_model(
            model, LoraConfig(**{"r": 4, "lora_alpha": 6, "init_lora_weights": False, **config})
        )
        with torch.no_grad():
            for name, parameter in tuned.named_parameters():
                if parameter.requires_grad and "lora_" not in name:
                    parameter += 0.1 * torch.randn_like(parameter)
        tuned.save_pretrained(tmp_path / "adapter")
        base = open_weights(Checkpoint("base", tmp_path / "base"))
        return tuned, AdaptedWeights(base, read_adapter(tmp_path / "adapter"))

    return save


def assert_equal(ours: AdaptedWeights, merged: torch.nn.Module) -> int:
    """Compare every tensor, whole and in parts; return how many are not those of the base."""
    changed, state = 0, merged.state_dict()
    for name in ours.names:
        (array, dtype), expected = ours.read(name), state[name].float().numpy()
        if dtype != "float32":
            continue
        parts = [(slice(None), slice(None)), (slice(8, 16), slice(None)), (slice(None), slice(8, 16))]
        for part in parts if array.ndim == 2 else [slice(None)]:
            assert np.array_equal(array[part], expected[part]), name
        changed += not np.array_equal(numbers(*ours.base.read(name)), expected)
    return changed


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_of_peft(adapted, case):
    tuned, ours = adapted(*CASES[case])
    assert assert_equal(ours, tuned.merge_and_unload()) >= 2
    assert not ours.unused


def test_weights_whose_shapes_are_turned_are_turned_whatever_the_settings_say(adapted, tmp_path):
    tuned, ours = adapted(*CASES["Conv1D"])
    rewrite(tmp_path / "adapter", fan_in_fan_out=False)
    again = AdaptedWeights(ours.base, read_adapter(tmp_path / "adapter"))
    assert assert_equal(again, tuned.merge_and_unload()) == 6


def test_a_head_of_a_larger_model_keeps_what_peft_trained(adapted):
    """The adapter of a classifier names `bert.encoder…` and its classifier; the base has `encoder…` alone."""
    config = build("bert").config
    whole = BertForSequenceClassification(config)
    alone = copy.deepcopy(whole.bert)
    tuned, ours = adapted("bert", {"target_modules": ["query"], "task_type": "SEQ_CLS"}, model=whole)
    alone.save_pretrained(ours.base.file.path.parent)
    base = open_weights(Checkpoint("base", ours.base.file.path.parent))
    again = AdaptedWeights(base, ours.adapter)
    assert assert_equal(again, tuned.merge_and_unload().bert) == 2
    assert again.unused == ["classifier.bias", "classifier.weight"]


W_K = "base_model.model.layers.1.self_attn.k_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda own: own | {f"{W_K}.lora_B.bias": torch.ones(7)},
            "lora_B.bias of layers.1.self_attn.k_proj has 7 numbers, and lora_B",
        ),
        (
            lambda own: own | {f"{W_K}.modules_to_save.weight": torch.ones(5, 9)},
            "but that of layers.1.self_attn.k_proj.weight has (5, 9)",
        ),
        (
            lambda own: own | {"base_model.model.norm.modules_to_save.weight": torch.ones(5)},
            "but that of norm.weight has (5,)",
        ),
        (
            lambda own: (
                own
                | {
                    f"{W_K}.lora_A.weight": own[f"{W_K}.lora_B.weight"].T.contiguous(),
                    f"{W_K}.lora_B.weight": own[f"{W_K}.lora_A.weight"].T.contiguous(),
                }
            ),
            "but B·A of layers.1.self_attn.k_proj has",
        ),
    ],
    ids=["a bias", "a whole module", "a norm", "turned factors"],
)
def test_shapes_that_do_not_fit_the_model_are_refused(adapted, tmp_path, change, message):
    """A Linear is never turned; a table of words may be longer."""
    _, ours = adapted("llama", {"target_modules": LLAMA_MODULES})
    path = tmp_path / "adapter/adapter_model.safetensors"
    longer = {
        "base_model.model.embed_tokens.weight": torch.ones(
            999, ours.read("embed_tokens.weight")[0].shape[1]
        )
    }
    whole = load_file(path)
    save_file(whole | longer, path)
    assert AdaptedWeights(ours.base, read_adapter(tmp_path / "adapter"), turns=False).replaced
    save_file(change(whole), path)
    with pytest.raises(ModelError) as caught:
        AdaptedWeights(ours.base, read_adapter(tmp_path / "adapter"), turns=False)
    assert message in caught.value.message


def test_an_adapter_in_bfloat16_is_merged_in_float32(adapted, tmp_path):
    tuned, _ = adapted("llama", {"target_modules": LLAMA_MODULES})
    path = tmp_path / "adapter/adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    ours = AdaptedWeights(
        open_weights(Checkpoint("base", tmp_path / "base")), read_adapter(tmp_path / "adapter")
    )
    for name, parameter in tuned.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.bfloat16().float()
    assert assert_equal(ours, tuned.merge_and_unload()) == 8


def test_a_base_in_bfloat16_is_not_rounded_again(adapted):
    tuned, ours = adapted("llama", {"target_modules": ["v_proj"]}, dtype=torch.bfloat16)
    name = "layers.1.self_attn.v_proj.weight"
    array, dtype = ours.read(name)
    module = tuned.base_model.model.layers[1].self_attn.v_proj
    delta = (module.lora_B.default.weight.float() @ module.lora_A.default.weight.float()) * (6 / 4)
    expected = module.base_layer.weight.float() + delta
    assert dtype == "float32"
    assert np.array_equal(array[:], expected.detach().numpy())
    assert ours.read("layers.1.self_attn.k_proj.weight")[1] == "bfloat16"


def test_an_adapter_in_a_pickle_is_read_too(adapted, tmp_path):
    tuned, _ = adapted("llama", {"target_modules": LLAMA_MODULES})
    path = tmp_path / "adapter/adapter_model.safetensors"
    torch.save(load_file(path), path.with_suffix(".bin"))
    path.unlink()
    ours = AdaptedWeights(
        open_weights(Checkpoint("base", tmp_path / "base")), read_adapter(tmp_path / "adapter")
    )
    assert assert_equal(ours, tuned.merge_and_unload()) == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_comparing_a_model_with_its_adapter_finds_the_rank(adapted, tmp_path, monkeypatch, dtype):
    adapted(
        "llama",
        {"target_modules": r".*layers\.1\.self_attn\.[qo]_proj", "r": 3},
        dtype=dtype,
    )
    monkeypatch.chdir(tmp_path)
    table = compare_checkpoints("base", adapter="adapter")
    assert (table.a, table.b, table.adapter) == ("base", "base", "adapter")
    assert table.title == "base → base + adapter"
    assert [(row.layer, row.head) for row in table.changed] == [(1, head) for head in range(6)]
    for row in table.changed:
        values = row.values
        assert [values[f"rank_{name}"] for name in ("W_Q", "W_K", "W_V", "W_O", "QK", "OV")] == [
            3,
            0,
            0,
            3,
            3,
            3,
        ]
    assert not table.notices


def test_an_adapter_on_the_second_of_two_models(adapted, tmp_path):
    tuned, _ = adapted("bert", {"target_modules": ["query", "value"]})
    tuned.merge_and_unload().save_pretrained(tmp_path / "merged")
    same = compare_checkpoints(tmp_path / "merged", tmp_path / "base", adapter=tmp_path / "adapter")
    assert not same.changed


def rewrite(folder, **settings):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, r"uses DoRA, .* \(use_dora\), which attnscope does not merge"),
        ({"peft_type": "IA3"}, "is an adapter of the kind IA3, not LoRA"),
        ({"layer_replication": [[0, 1]]}, "uses replicated layers"),
        ({"init_lora_weights": "pissa_niter_4"}, "was initialised by pissa_niter_4"),
        ({"lora_alpha": "8"}, "is damaged: its lora_alpha is '8'"),
        ({"alpha_pattern": ["query"]}, r"is damaged: its alpha_pattern is \['query'\]"),
        ({"alpha_pattern": {"(": 3}}, r"is damaged: its alpha_pattern is \{'\(': 3\}"),
    ],
)
def test_adapters_that_are_no_sum_are_refused(adapted, tmp_path, settings, message):
    adapted("bert", {"target_modules": ["query"]})
    rewrite(tmp_path / "adapter", **settings)
    with pytest.raises(ModelError, match=message):
        compare_checkpoints(tmp_path / "base", adapter=tmp_path / "adapter")


def test_dora_and_ia3_as_peft_saves_them_are_refused(adapted, tmp_path):
    with pytest.raises(ModelError, match="uses DoRA"):
        adapted("bert", {"target_modules": ["query"], "use_dora": True})
    get_peft_model(
        build("bert"), IA3Config(target_modules=["query"], feedforward_modules=[])
    ).save_pretrained(tmp_path / "ia3")
    with pytest.raises(ModelError, match="of the kind IA3"):
        read_adapter(tmp_path / "ia3")


@pytest.fixture
def saved(adapted, tmp_path):
    adapted("bert", {"target_modules": ["query"]})
    return tmp_path / "adapter"


def test_a_folder_that_is_no_adapter_is_an_error(saved, tmp_path):
    with pytest.raises(ModelError, match=r"base has no adapter_config\.json, so it is not an adapter"):
        read_adapter(tmp_path / "base")
    (saved / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no adapter_model\.safetensors"):
        read_adapter(saved)
    shutil.rmtree(saved)
    with pytest.raises(ModelError):
        read_adapter(saved)


def test_an_adapter_of_another_model_is_an_error(saved):
    with pytest.raises(
        ModelError, match=r"does not belong to this checkpoint: it adapts encoder\.layer\.0\.att"
    ):
        compare_checkpoints(build("llama"), adapter=saved)
    message = r"self\.query\.weight has the shape \(32, 32\), but B·A of .* has \(24, 24\)"
    with pytest.raises(ModelError, match=message):
        compare_checkpoints(build("bert", hidden_size=32, num_attention_heads=4), adapter=saved)


def test_a_damaged_adapter_is_an_error(saved):
    path = saved / "adapter_model.safetensors"
    tensors = load_file(path)
    one = next(name for name in tensors if "lora_B" in name)
    save_file({name: tensor for name, tensor in tensors.items() if name != one}, path)
    with pytest.raises(ModelError, match=r"is damaged: .*query has no lora_B"):
        read_adapter(saved)
    save_file(tensors | {one: torch.zeros(24, 9)}, path)
    with pytest.raises(ModelError, match=r"lora_A of .* has the shape \(4, 24\), lora_B \(24, 9\)"):
        read_adapter(saved)


def test_one_model_without_an_adapter_is_an_error():
    with pytest.raises(OptionError, match="there is one model, but a comparison takes two"):
        compare_checkpoints("minilm")
