"""Damaged, foreign or dangerous files."""

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from attnscope.base.errors import ModelError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.tensors import open_weights
from attnscope.model.run.load import as_model_error
from attnscope.model.weights.head_weights import read_head

CONFIG = '{"num_attention_heads": 3}'
QUERY = "encoder.layer.0.attention.self.query.weight"


def refused(folder) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read_head(str(folder))
    return caught.value


def test_a_truncated_file_and_one_of_another_kind_are_refused(small_bert):
    folder, _ = small_bert()
    path = folder / "model.safetensors"
    for content in (path.read_bytes()[:5000], b"version https://git-lfs.github.com/spec/v1\n" * 3):
        path.write_bytes(content)
        message = refused(folder).message
        assert f"{path} is damaged, or not a safetensors file" in message
        assert f"({len(content)} bytes long)" in message


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    assert "has no weights: neither model.safetensors" in refused(tmp_path).message


def test_an_adapter_alone_is_refused_and_what_takes_it_is_named(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "is an adapter, without the model that it changes" in refused(tmp_path).message
    (tmp_path / "config.json").write_text(CONFIG)
    assert refused(tmp_path).hint == f"attnscope compare MODEL --adapter {tmp_path}"


def test_weights_without_attention_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    save_file({"embedding.weight": torch.ones(3, 4)}, tmp_path / "model.safetensors")
    error = refused(tmp_path)
    assert "has no attention weights that attnscope recognizes among its 1 tensors" in error.message
    assert "BERT" in error.hint


def test_quantised_weights_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    save_file({QUERY: torch.ones(12, 12, dtype=torch.int8)}, tmp_path / "model.safetensors")
    assert f"{QUERY} is stored as I8" in refused(tmp_path).message


def test_a_layer_that_lacks_a_matrix_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    save_file({QUERY: torch.ones(12, 12)}, tmp_path / "model.safetensors")
    assert "has no encoder.layer.0.attention.self.key.weight" in refused(tmp_path).message


def test_a_missing_shard_is_named(small_bert):
    folder, _ = small_bert(max_shard_size="4KB")
    shard = sorted(folder.glob("model-*.safetensors"))[0]
    names = open_weights(Checkpoint("x", folder)).weight_map
    lost = next(name for name, file in names.items() if file == shard.name)
    shard.unlink()
    with pytest.raises(ModelError, match=f"has no {shard.name}, which should contain"):
        open_weights(Checkpoint("x", folder)).read(lost)


def test_a_shard_that_lacks_its_tensor_is_named(small_bert):
    folder, _ = small_bert(max_shard_size="4KB")
    weights = open_weights(Checkpoint("x", folder))
    weights.weight_map["nonsense"] = next(iter(weights.weight_map.values()))
    with pytest.raises(ModelError, match="has no nonsense, although the index"):
        weights.read("nonsense")


@pytest.mark.parametrize("weight_map", ["null", '{"a": 3}', "[]"])
def test_a_damaged_index_is_refused(small_bert, weight_map):
    folder, _ = small_bert(max_shard_size="4KB")
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {weight_map}}}')
    assert "its weight_map does not name files" in refused(folder).message


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("query.weight", ()),
        ("query.weight", (12,)),
        ("query.weight", (12, 12, 12)),
        ("query.weight", (0, 12)),
        ("key.weight", (12, 8)),
        ("query.bias", ()),
        ("query.bias", (6,)),
        ("value.bias", (12, 12)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(tmp_path, name, shape):
    (tmp_path / "config.json").write_text(CONFIG)
    layer = "encoder.layer.0.attention."
    modules = ["self.query", "self.key", "self.value", "output.dense"]
    tensors = {f"{layer}{module}.weight": torch.ones(12, 12) for module in modules}
    tensors |= {f"{layer}{module}.bias": torch.ones(12) for module in modules}
    save_file({**tensors, f"{layer}self.{name}": torch.ones(shape)}, tmp_path / "model.safetensors")
    assert f"self.{name}" in (message := refused(tmp_path).message)
    assert str(tuple(shape)) in message


def test_names_that_are_no_names_and_sparse_tensors_are_no_trouble(small_bert, as_pickle):
    folder, _ = small_bert()
    path = as_pickle(folder) / "pytorch_model.bin"
    tensors = torch.load(path, weights_only=True)
    torch.save({**tensors, 3: torch.ones(2)}, path)
    read_head(str(folder))
    torch.save({**tensors, QUERY: tensors[QUERY].to_sparse()}, path)
    assert f"{QUERY} is stored as sparse float32" in refused(folder).message


def test_shards_of_a_pickle_are_read(small_bert, as_pickle):
    folder, _ = small_bert()
    whole = read_head(str(folder), layer=1, head=2)
    path = as_pickle(folder) / "pytorch_model.bin"
    tensors = torch.load(path, weights_only=True)
    weight_map = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        torch.save({n: t for n, t in tensors.items() if weight_map[n] == shard}, folder / shard)
    path.unlink()
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read_head(str(folder), layer=1, head=2) == whole


def test_a_damaged_pickle_is_refused(small_bert, as_pickle):
    folder, _ = small_bert()
    path = as_pickle(folder) / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:1000])
    assert f"{path} is damaged, or contains something other than weights" in refused(folder).message


def test_a_malicious_pickle_does_not_run(tmp_path):
    struck = tmp_path / "struck"

    class Malice:
        def __reduce__(self):
            return (open, (str(struck), "w"))

    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({QUERY: Malice()}))
    assert "damaged, or contains something other than weights" in refused(tmp_path).message
    torch.save({QUERY: Malice()}, tmp_path / "pytorch_model.bin")
    assert "damaged, or contains something other than weights" in refused(tmp_path).message
    assert not struck.exists()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (eval, "it contains eval, which is not a tensor; nothing in it was run"),
        (os.system, "it contains posix.system, which is not a tensor; nothing in it was run"),
        (
            torch.nn.Linear,
            "it contains torch.nn.modules.linear.Linear, which is not a tensor; nothing in it was run",
        ),
    ],
)
def test_a_malicious_pickle_is_refused_without_advice_to_load_it(tmp_path, capfd, function, said):
    class Malice:
        def __reduce__(self):
            return (function, ("1",))

    (tmp_path / "config.json").write_text(CONFIG)
    torch.save({QUERY: Malice()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError) as caught:
        open_weights(Checkpoint("evil", tmp_path))
    path = tmp_path / "pytorch_model.bin"
    assert (
        caught.value.message == f"{path} is damaged, or contains something other than weights: {said}."
    )
    with pytest.raises(ModelError) as caught, as_model_error(Checkpoint("evil", tmp_path)):
        torch.load(path, weights_only=True)  # as transformers does
    assert caught.value.message == f"transformers cannot run evil: {said}."
    assert "weights_only" not in capfd.readouterr().err


def test_a_pickle_of_something_else_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    torch.save([torch.ones(2)], tmp_path / "pytorch_model.bin")
    assert "does not contain a dictionary of tensors" in refused(tmp_path).message
