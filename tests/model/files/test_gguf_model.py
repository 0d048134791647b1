"""Heads of GGUF files are those of the models that they were converted from."""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModel

from attnscope import card, compare_checkpoints, head_weights
from attnscope.base.errors import AttnscopeError, FileError, ModelError
from attnscope.model.families.table import ALTERNATING, ARCHITECTURES
from tests.model.run.gguf_files import PERMUTED, write_gguf
from tests.model.run.hub import local_hub
from tests.model.run.tiny import tiny_model

N_HEAD, N_KV_HEAD, D_HEAD, D_FEAT, LAYER = 4, 2, 10, 64, 1

SIZES = {
    "llama": {"head_dim": D_HEAD, "attention_bias": True},
    "qwen2": {"head_dim": D_HEAD, "num_key_value_heads": N_KV_HEAD},
    "gpt2": {"n_embd": 40},
    "bert": {"hidden_size": 40},
    "falcon": {"new_decoder_architecture": True, "multi_query": False, "hidden_size": 40},
}
ARCHS = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "arcee": "arcee", "smollm3": "smollm3",
    "ministral3": "mistral3", "granite": "granite", "granitemoe": "granitemoe", "olmo": "olmo",
    "bert": "bert", "gpt2": "gpt2", "gpt_neox": "gptneox", "bloom": "bloom", "falcon": "falcon",
    "mpt": "mpt", "gpt_bigcode": "starcoder", "starcoder2": "starcoder2", "stablelm": "stablelm",
    "phi": "phi2", "phi3": "phi3", "phimoe": "phimoe", "qwen2": "qwen2", "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "gpt_oss": "gpt-oss", "llama4_text": "llama4", "olmo2": "olmo2",
    "olmoe": "olmoe", "cohere": "command-r", "cohere2": "cohere2", "exaone4": "exaone4",
    "seed_oss": "seed_oss", "lfm2": "lfm2", "minimax_m2": "minimax-m2", "apertus": "apertus",
    "exaone_moe": "exaone-moe", "glm4_moe": "glm4moe", "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5-moe", "modernbert": "modern-bert", "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "distilbert": "bert", "roberta": "bert",
}  # fmt: skip
"""Models of transformers, and their names in llama.cpp."""

NOT_BUILT = set("granitehybrid minicpm internlm2 baichuan deepseek".split())
NOT_BUILT |= set("qwen2vl qwen3vl qwen3vlmoe nemotron exaone".split())
"""Architectures without a small model in transformers, or whose names in GGUF are those of a part."""


@pytest.fixture(scope="module")
def models():
    built = {}

    def model(family):
        if family not in built:
            wide = {} if family in ("gpt2", "bert", "falcon") else {"hidden_size": D_FEAT}
            built[family] = tiny_model(family, **wide, **SIZES[family])
        return built[family]

    return model


def projections(model, family):
    """W_Q, W_K, W_V, W_O and the biases of a layer, `out in`, as the model's own code uses them."""
    if family == "gpt2":
        layer = model.h[LAYER].attn
        W, b = layer.c_attn.weight.T.chunk(3), layer.c_attn.bias.chunk(3)
        return *W, layer.c_proj.weight.T, *b, layer.c_proj.bias
    if family == "falcon":
        layer = model.h[LAYER].self_attention
        groups = layer.query_key_value.weight.view(N_KV_HEAD, N_HEAD // N_KV_HEAD + 2, D_HEAD, -1)
        parts = groups[:, :-2], groups[:, -2], groups[:, -1]
        W = [each.reshape(-1, groups.shape[-1]) for each in parts]
        return *W, layer.dense.weight, None, None, None, None
    if family == "bert":
        layer = model.encoder.layer[LAYER].attention
        modules = layer.self.query, layer.self.key, layer.self.value, layer.output.dense
    else:
        layer = model.layers[LAYER].self_attn
        modules = layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj
    return *(each.weight for each in modules), *(each.bias for each in modules)


@pytest.mark.parametrize("family", SIZES)
def test_the_matrices_of_each_head_are_the_models(models, tmp_path, family):
    model = models(family)
    path = tmp_path / "model.gguf"
    write_gguf(model, ARCHS[family], path)
    W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O = projections(model, family)
    n_kv_head = len(W_K) // D_HEAD
    for head in range(N_HEAD):
        found = head_weights(path, LAYER, head)
        kv_head = head // (N_HEAD // n_kv_head)
        rows, kv_rows = (slice(i * D_HEAD, (i + 1) * D_HEAD) for i in (head, kv_head))
        expected = {"W_Q": W_Q[rows], "W_K": W_K[kv_rows], "W_V": W_V[kv_rows], "W_O": W_O[:, rows]}
        if b_Q is not None:
            expected |= {"b_Q": b_Q[rows], "b_K": b_K[kv_rows], "b_V": b_V[kv_rows]}
        if b_O is not None:
            expected["b_O"] = b_O
        assert {each.name for each in found.weights} == expected.keys()
        for name, values in expected.items():
            assert np.array_equal(found[name].array, values.detach().numpy()), (head, name)
            assert found[name].reordered == (family == "llama" and name[-1] in "QK")
        assert (found.n_head, found.n_kv_head, found.d_head) == (N_HEAD, n_kv_head, D_HEAD)
        assert found["W_Q"].tensor.startswith(f"blk.{LAYER}.attn_q")


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_a_quantised_head_is_a_part_of_the_dequantised_tensor(tmp_path, kind):
    path = tmp_path / "model.gguf"
    model = tiny_model(
        "llama", hidden_size=96, head_dim=24, num_key_value_heads=2
    )  # O: 96, blocks of 32
    stored = write_gguf(model, "llama", path, kind=kind)
    own = gguf.GGMLQuantizationType[kind]
    whole = {
        part: gguf.quants.dequantize(stored[f"blk.{LAYER}.attn_{name}.weight"], own)
        for part, name in zip("QKVO", ("q", "k", "v", "output"), strict=True)
    }
    for head in range(N_HEAD):
        found = head_weights(path, LAYER, head)
        for part in "QKVO":
            piece = found[f"W_{part}"]
            start = 24 * (head if part in "QO" else head // 2)
            expected = whole[part]
            if part in "QK":  # the inverse of the converter's order
                expected = expected.reshape(-1, 12, 2, 96).swapaxes(1, 2).reshape(expected.shape)
            expected = expected[:, start : start + 24] if part == "O" else expected[start : start + 24]
            values = torch.from_numpy(piece.array.copy())
            if kind == "BF16":
                values = values.view(torch.bfloat16)
            assert np.array_equal(values.float().numpy(), expected), (head, part)
            assert piece.quantised == (kind if kind.startswith("Q") else None)


@pytest.mark.sweep
@pytest.mark.parametrize("family", ARCHS)
def test_no_head_of_any_architecture_differs_from_the_models(tmp_path, family):
    model = tiny_model(family, **({"head_dim": D_HEAD} if family.startswith("hunyuan") else {}))
    path = tmp_path / "model.gguf"
    write_gguf(model, ARCHS[family], path)
    change = compare_checkpoints(model, path)
    assert len(change.rows) > 3
    assert {value for row in change.rows for value in row.values.values()} == {0}
    assert change.notices == []
    assert card(path, context=16).findings == []


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize(
    "family", ["llama", "mistral", "qwen2", "gpt2", "gemma2", "stablelm", "starcoder2"]
)
def test_transformers_loads_the_same_heads_from_the_file(tmp_path, family, kind):
    model = tiny_model(family, **{"n_embd" if family == "gpt2" else "hidden_size": 64, "head_dim": 16})
    write_gguf(model, ARCHS[family], tmp_path / "model.gguf", kind=kind)
    theirs = AutoModel.from_pretrained(tmp_path, gguf_file="model.gguf")
    change = compare_checkpoints(theirs, tmp_path / "model.gguf")
    assert {value for row in change.rows for value in row.values.values()} == {0}


def test_every_architecture_is_swept_or_has_a_reason():
    known = {name: each.rows for name, each in ARCHITECTURES.items() if each.rows is not None}
    assert set(ARCHS.values()) | NOT_BUILT == known.keys()
    assert set(PERMUTED) == {name for name, rows in known.items() if rows == ALTERNATING} - NOT_BUILT
    assert set(gguf.MODEL_ARCH_NAMES.values()) >= known.keys()


def test_the_order_of_rows_matters(models, tmp_path):
    """Without it, positions would rotate other features together, which the comparison says."""
    path = tmp_path / "model.gguf"
    model = models("llama")
    write_gguf(model, "qwen2", path)
    writer_of_llama = path.read_bytes().replace(b"qwen2", b"llama")
    path.write_bytes(writer_of_llama)
    change = compare_checkpoints(model, path)
    assert all(row.values["W_Q"] > 0.1 and row.values["W_V"] == 0 for row in change.rows)
    assert all(row.values["QK"] > 0.1 for row in change.rows)
    (notice,) = change.notices
    assert notice.startswith(
        "rows of W_Q and W_K are permuted within heads, from neighbouring features to the two halves (0 2 4 6"
    )


def test_quantisation_is_measured_head_by_head(tmp_path):
    model = tiny_model("bert", hidden_size=96)
    path, folder = tmp_path / "model.gguf", tmp_path / "folder"
    stored = write_gguf(model, "bert", path, kind="Q4_0")
    model.save_pretrained(folder)
    change = compare_checkpoints(folder, path)
    own = gguf.GGMLQuantizationType.Q4_0
    for layer, head in ((0, 3), (2, 1)):
        rows = slice(24 * head, 24 * (head + 1))
        attention = model.encoder.layer[layer].attention
        original = {
            "Q": attention.self.query.weight[rows],
            "K": attention.self.key.weight[rows],
            "V": attention.self.value.weight[rows],
            "O": attention.output.dense.weight[:, rows],
        }
        original = {name: each.detach().double().numpy() for name, each in original.items()}
        names = {"Q": "q", "K": "k", "V": "v", "O": "output"}
        whole = {
            part: gguf.quants.dequantize(stored[f"blk.{layer}.attn_{name}.weight"], own)
            for part, name in names.items()
        }
        changed = {part: each[:, rows] if part == "O" else each[rows] for part, each in whole.items()}
        found = change[layer, head].values
        for part in "QKVO":
            expected = relative(changed[part], original[part])
            assert found[f"W_{part}"] == pytest.approx(expected, rel=1e-9)
        before, after = (x["Q"].T.astype(float) @ x["K"] for x in (original, changed))
        assert found["QK"] == pytest.approx(relative(after, before), rel=1e-9)
        assert found["b_Q"] == 0
    assert change.dtypes == ("float32", "Q4_0 and float32")
    assert compare_checkpoints(path, path).rows[0].values["QK"] == 0


def test_the_command_compares_a_folder_and_two_files(tmp_path, attnscope):
    model = tiny_model("llama", hidden_size=64, head_dim=16, num_key_value_heads=2)
    for kind in ("F32", "Q4_0"):
        write_gguf(model, "llama", tmp_path / f"{kind}.gguf", kind=kind)
    model.save_pretrained(tmp_path / "folder")
    quantised = tmp_path / "Q4_0.gguf"
    page = tmp_path / "page.html"
    for other in (tmp_path / "folder", tmp_path / "F32.gguf"):
        r = attnscope("compare", quantised, other, "-f", "json", "--page", page, "--force")
        assert r.exit_status == 1  # they differ
        record = json.loads(r.out)
        assert record["dtypes"] == ["Q4_0", "float32"]
        assert all(0.01 < row["W_Q"] < 0.2 for row in record["heads"])
        assert len(record["heads"]) == 16
        assert "Q4_0 → float32" in page.read_text("utf-8")
    r = attnscope("compare", tmp_path / "folder", tmp_path / "F32.gguf")
    assert r.exit_status == 0
    assert "16 heads equal bit for bit" in r.out


def relative(after, before):
    return np.linalg.norm(after - before) / np.linalg.norm(before)


def test_parts_of_a_split_file_are_one_model(models, tmp_path):
    model = models("qwen2")
    write_gguf(model, "qwen2", tmp_path / "model.gguf", split_max_tensors=5)
    parts = sorted(tmp_path.iterdir())
    assert len(parts) > 3
    change = compare_checkpoints(model, parts[1])
    assert {value for row in change.rows for value in row.values.values()} == {0}


def test_a_file_on_the_hub_is_read_by_ranges(models, tmp_path, monkeypatch):
    model, folder = models("llama"), tmp_path / "folder"
    folder.mkdir()
    write_gguf(model, "llama", folder / "model.gguf")
    with (folder / "model.gguf").open("ab") as file:
        file.truncate(3 * 2**20)
    with local_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.folders["some/model"] = folder
        found = head_weights("some/model/model.gguf", LAYER, 1)
        assert sum(sent.n_bytes for sent in hub.sent) < 2**21
        with pytest.raises(ModelError, match="there is no file"):
            head_weights("some/model/another.gguf")
    expected = head_weights(folder / "model.gguf", LAYER, 1)
    for each in expected.weights:
        assert np.array_equal(found[each.name].array, each.array)
    assert found.model == "some/model/model.gguf"


def test_a_repository_and_a_quantisation_name_a_file_on_the_hub(models, tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "split").mkdir()
    write_gguf(models("llama"), "llama", folder / "m-Q4_K_M.gguf")
    write_gguf(models("qwen2"), "qwen2", folder / "split" / "m-BF16-00001-of-00001.gguf")
    for name in (
        "m-Q4_K_S.gguf",
        "m-IQ4_K_M.gguf",
        "mmproj-m-Q4_K_M.gguf",
        "m.Q8_0.gguf",
        "n.Q8_0.gguf",
    ):
        (folder / name).write_bytes(b"not a model")
    with local_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.folders["some/model"] = hub.folders["some/other"] = folder
        hub.folders["some/bert"] = tmp_path / "none"
        (tmp_path / "none").mkdir()
        (tmp_path / "none" / "config.json").write_text("{}")
        found = head_weights("some/model:q4_k_m", LAYER, 1)
        assert card("some/model:BF16", context=16).model_type == "qwen2"
        for tag, message in {
            "Q5_0": "no GGUF file of some/other can be meant by Q5_0; there are m-IQ4_K_M.gguf,",
            "Q4_K": "no GGUF file",
            "Q8_0": "2 GGUF files of some/other can be meant by Q8_0; there are m.Q8_0.gguf, n.Q8_0.gguf.",
        }.items():
            with pytest.raises(ModelError) as caught:
                card(f"some/other:{tag}", context=16)
            assert caught.value.message.startswith(message)
        with pytest.raises(ModelError, match="some/bert has no GGUF files"):
            card("some/bert:Q4_0", context=16)
    expected = head_weights(folder / "m-Q4_K_M.gguf", LAYER, 1)
    for each in expected.weights:
        assert np.array_equal(found[each.name].array, each.array)


def test_one_matrix_of_a_reordered_architecture_is_undecided(models, tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(models("gpt2"), "gpt2", path)
    edited(path, (b"gpt2", b"olmo"))
    with pytest.raises(
        ModelError, match=r"Q, K and V in one matrix, blk\.1\.attn_qkv\.weight: olmo has"
    ):
        head_weights(path, LAYER)


def test_a_folder_with_nothing_else_names_the_file(models, tmp_path):
    write_gguf(models("gpt2"), "gpt2", tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"has no config\.json") as caught:
        head_weights(tmp_path)
    assert caught.value.hint == str(tmp_path / "model.gguf")


def edited(path, *edits):
    content = path.read_bytes()
    for old, new in edits:
        assert old in content
        content = content.replace(old, new)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        (((b"qwen2", b"qwenX"),), "has the architecture qwenX, whose heads attnscope does not read"),
        (((b"qwen2", b"mamba"),), "mamba) has no attention"),
        (((b"general.architecture", b"general.architectura"),), "has no general.architecture"),
        (((b".head_count\x04", b".head_counx\x04"),), "qwen2.attention.head_count is missing"),
        (
            ((struct.pack("<II", 4, N_HEAD), struct.pack("<II", 4, 3)),),
            "40 wide, which is not divisible by the 3 heads in",
        ),
        (
            ((struct.pack("<II", 4, D_HEAD), struct.pack("<II", 4, 12)),),
            "heads 10 wide, but in its metadata head_dim is 12",
        ),
        (((b"blk.1.attn_k.w", b"blk.1.attn_x.w"),), "has no blk.1.attn_k.weight, although"),
        (((b".attn_", b".bttn_"),), "has no attention weights"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else value[:24],
)
def test_a_damaged_file_is_named_in_one_line(models, tmp_path, edits, expected):
    path = tmp_path / "model.gguf"
    write_gguf(models("qwen2"), "qwen2", path)
    edited(path, *edits)
    with pytest.raises(ModelError) as caught:
        head_weights(path, LAYER)
    assert expected in caught.value.message
    assert len(caught.value.message.splitlines()) == 1


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ((), []),
        (
            (
                (
                    b".head_count" + struct.pack("<II", 4, N_HEAD),
                    b".head_count" + struct.pack("<II", 4, 3),
                ),
            ),
            [f"by its metadata, there are 3 query heads of {D_HEAD}, but W_Q has {N_HEAD * D_HEAD} col"],
        ),
        (
            ((struct.pack("<II", 4, D_HEAD), struct.pack("<II", 4, 12)),),
            ["query heads of 12, but", "key heads of 12, but", "value heads of 12, but"],
        ),
        (
            ((b".block_count" + struct.pack("<II", 4, 4), b".block_count" + struct.pack("<II", 4, 5)),),
            ["its metadata says that the model has 5 layers, but its tensors are those of 4"],
        ),
    ],
    ids=["as written", "heads", "widths", "layers"],
)
def test_metadata_that_the_tensors_contradict_is_a_finding(models, tmp_path, edits, expected):
    path = tmp_path / "model.gguf"
    write_gguf(models("qwen2"), "qwen2", path)
    edited(path, *edits)
    found = [each.message for each in card(path, context=16).findings]
    assert len(found) == len(expected)
    assert all(words in message for words, message in zip(expected, found, strict=True))


def test_a_truncated_file_is_refused(models, tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(models("qwen2"), "qwen2", path)
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(ModelError, match="ends at byte"):
        head_weights(path)


def test_layers_with_other_numbers_of_heads_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count([4, 8])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="with 4 and with 8 heads"):
        head_weights(path)


def test_what_needs_a_whole_model_says_so(models, tmp_path, attnscope):
    path = tmp_path / "model.gguf"
    write_gguf(models("qwen2"), "qwen2", path)
    with pytest.raises(ModelError, match="verify runs the model"):
        head_weights(path, verify=True)
    r = attnscope("bert", path, "--text", "hi")
    assert r.exit_status == 2
    assert "is a GGUF file, but this needs a model with a config.json" in r.err


def test_a_missing_file_is_named(tmp_path):
    (tmp_path / "model.gguf").touch()
    for model in (tmp_path / "mode.gguf", "missing.gguf", str(Path("missing", "model.gguf"))):
        with pytest.raises(FileError, match="there is no file") as caught:
            head_weights(model)
        assert isinstance(caught.value, AttnscopeError)
