"""A head's slices, compared with the parameters of the model that transformers loads."""

import json

import numpy as np
import pytest
import torch
from transformers import BertModel

from attnscope.base.arrays import numbers
from attnscope.base.errors import ModelError
from attnscope.model.weights.head_weights import read_head
from tests.model.run.families import save


def slices_of(model: BertModel, layer: int, head: int, d_head: int) -> dict[str, torch.Tensor]:
    """Return the same slices of a loaded model, as tutorials compute them."""
    attention = model.encoder.layer[layer].attention
    own = slice(head * d_head, (head + 1) * d_head)
    modules = {"Q": attention.self.query, "K": attention.self.key, "V": attention.self.value}
    expected = {f"W_{part}": module.weight[own] for part, module in modules.items()}
    expected |= {f"b_{part}": module.bias[own] for part, module in modules.items()}
    return expected | {"W_O": attention.output.dense.weight[:, own], "b_O": attention.output.dense.bias}


def assert_same(head, expected):
    assert {s.name for s in head.weights} == set(expected)
    for piece in head.weights:
        read = torch.tensor(numbers(piece.array, piece.dtype), dtype=torch.float64)
        assert torch.equal(read, expected[piece.name].detach().double()), piece.name
        assert piece.head_shape == tuple(read.shape)
        assert piece.stats.mean == pytest.approx(float(read.mean()), abs=1e-9)
        assert piece.stats.std == pytest.approx(float(read.std(correction=0)), abs=1e-9)
        assert (piece.stats.min, piece.stats.max) == (float(read.min()), float(read.max()))


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (3, 7), (5, 11)])
def test_the_bundled_models_heads_equal_transformers(minilm, layer, head):
    result = read_head("minilm", layer=layer, head=head)
    assert_same(result, slices_of(BertModel.from_pretrained(minilm), layer, head, 32))
    assert (result.n_layer, result.n_head, result.d_feat, result.d_head) == (6, 12, 384, 32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked_lm", [False, True])
def test_every_dtype_and_prefix_is_read_exactly(small_bert, dtype, masked_lm):
    folder, model = small_bert(dtype=dtype, masked_lm=masked_lm)
    result = read_head(str(folder), layer=1, head=2)
    assert_same(result, slices_of(model.bert if masked_lm else model, 1, 2, 4))
    prefix = "bert." if masked_lm else ""
    assert result.weights[0].tensor == f"{prefix}encoder.layer.1.attention.self.query.weight"
    assert {s.dtype for s in result.weights} == {str(dtype).removeprefix("torch.")}


def test_shards_are_read(small_bert):
    folder, model = small_bert(max_shard_size="4KB")
    assert (folder / "model.safetensors.index.json").exists()
    assert_same(read_head(str(folder), layer=1, head=0), slices_of(model, 1, 0, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pickle_is_read_through_torch(small_bert, as_pickle, dtype):
    folder, model = small_bert(dtype=dtype)
    assert_same(read_head(str(as_pickle(folder)), head=1), slices_of(model, 0, 1, 4))


def test_where_each_slice_lies_is_told(small_bert):
    folder, _ = small_bert()
    facts = {
        s.name: (s.stored_shape, s.axis, s.start, s.stop) for s in read_head(str(folder), head=2).weights
    }
    assert facts["W_Q"] == ((12, 12), 0, 8, 12)
    assert facts["W_O"] == ((12, 12), 1, 8, 12)
    assert facts["b_K"] == ((12,), 0, 8, 12)
    assert facts["b_O"] == ((12,), None, 0, 12)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"layer": 6}, "there is no layer 6 in minilm: it has layers 0 to 5."),
        ({"layer": -1}, "there is no layer -1 in minilm: it has layers 0 to 5."),
        ({"head": 12}, "there is no head 12 in minilm: it has heads 0 to 11."),
    ],
)
def test_layers_and_heads_out_of_range_are_refused(asked, message):
    with pytest.raises(ModelError) as caught:
        read_head("minilm", **asked)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"num_attention_heads": 5}', "is 12 wide, which is not divisible by the 5 heads"),
        ('{"num_attention_heads": true}', "is True, but must be a whole number from 1 to 100,000"),
        ('{"text_config": {"n_head": 0}}', "is damaged: text_config.n_head is 0, but must be"),
        ('{"num_hidden_layers": 1e12}', "num_hidden_layers is 1000000000000.0, but must be a whole"),
        ('{"hidden_size": 1000000000000}', "hidden_size is 1000000000000, but must be a whole number"),
        ('{"text_config": 5}', "text_config is 5, but must be an object"),
        ('{"architectures": [5]}', "architectures is [5], but must be a list of strings"),
        ('{"dtype": "x"}', "dtype is 'x', but must be the name of a dtype"),
        ("[" * 10**5, "cannot read"),
        ("{}", "does not say how many heads it has (num_attention_heads is None)"),
        ("not json", "cannot read"),
        ("[1]", "does not contain a JSON object"),
    ],
    ids=range(12),
)
def test_a_config_that_does_not_fit_is_refused(small_bert, config, message):
    folder, _ = small_bert()
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelError) as caught:
        read_head(str(folder))
    assert message in caught.value.message


def saved(family, tmp_path, **config):
    """Return the folder of a small model whose config.json has these fields; None removes a field."""
    save(family, tmp_path)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text()) | config
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    return str(tmp_path)


def test_where_slices_lie_is_told_of_the_file_and_their_shapes_of_the_head(tmp_path):
    facts = {
        s.name: (s.stored_shape, s.axis, s.start, s.stop, s.shape, s.transposed)
        for s in read_head(saved("gpt2", tmp_path), head=2).weights
    }
    assert facts["W_Q"] == ((24, 72), 1, 16, 24, (8, 24), True)
    assert facts["W_V"] == ((24, 72), 1, 64, 72, (8, 24), True)
    assert facts["W_O"] == ((24, 24), 0, 16, 24, (24, 8), True)
    assert facts["b_K"] == ((72,), 0, 40, 48, (8,), False)
    assert facts["b_O"] == ((24,), None, 0, 24, (24,), False)


def test_query_heads_are_given_the_key_head_that_they_share(tmp_path):
    folder = saved("qwen2", tmp_path)
    starts = [{s.name: s.start for s in read_head(folder, head=head).weights} for head in (2, 3)]
    assert [start["W_Q"] for start in starts] == [16, 24]
    # 6 heads share 2: 0 to 2 the first, 3 to 5 the second.
    assert [start["W_K"] for start in starts] == [0, 8]
    assert [start["b_V"] for start in starts] == [0, 8]


def test_a_bias_that_is_missing_is_left_out(tmp_path):
    head = read_head(saved("whisper", tmp_path), stack="cross", layer=2)
    assert [s.name for s in head.weights] == ["W_Q", "W_K", "W_V", "W_O", "b_Q", "b_V", "b_O"]
    assert head.stack == "cross"


def test_only_the_heads_bytes_are_mapped(tmp_path):
    for piece in read_head(saved("gpt_neox", tmp_path), head=1).weights:
        assert isinstance(piece.array, np.memmap)
        assert piece.array.base is not None
        assert piece.array.nbytes == 8 * np.prod(piece.head_shape)


def test_a_stack_that_is_not_there_is_refused(tmp_path):
    folder = saved("t5", tmp_path)
    with pytest.raises(ModelError) as caught:
        read_head(folder, stack="vision")
    assert (
        caught.value.message
        == f"there is no stack vision in {folder}: it has encoder, decoder and cross."
    )
    assert caught.value.hint == 'stack="encoder"'


def test_each_stack_has_its_own_layers_and_heads(tmp_path):
    folder = saved("bart", tmp_path)
    with pytest.raises(ModelError, match=r"there is no layer 2 in .*: it has layers 0 to 1\."):
        read_head(folder, layer=2)
    assert read_head(folder, layer=2, head=3, stack="decoder").n_head == 4
    with pytest.raises(ModelError, match=r"there is no head 3 in .*: it has heads 0 to 2\."):
        read_head(folder, head=3)


@pytest.mark.parametrize(
    ("family", "layer", "kind", "others"),
    [
        ("jamba", 0, "attention", "layers 1 and 3 of its 4 have it"),
        ("lfm2", 2, "softmax attention (conv)", "layers 1 and 3 of its 4 have it"),
        ("qwen3_next", 1, "softmax attention (linear attention)", "layer 3 of its 4 has it"),
    ],
)
def test_a_layer_without_attention_is_told_with_those_that_have_it(
    tmp_path, family, layer, kind, others
):
    folder = saved(family, tmp_path)
    with pytest.raises(ModelError) as caught:
        read_head(folder, layer=layer)
    assert caught.value.message == f"layer {layer} of {folder} has no {kind}: {others}."
    assert caught.value.hint == f"layers={3 if family == 'qwen3_next' else 1}"


def test_a_number_of_heads_that_the_config_leaves_out_is_the_familys_own(tmp_path):
    folder = saved("bert", tmp_path, num_attention_heads=None)
    assert read_head(folder).n_head == 12


def test_it_is_left_out_of_a_part_of_the_config_too(tmp_path):
    folder = saved("clip", tmp_path, text_config={"model_type": "clip_text_model", "hidden_size": 24})
    assert (read_head(folder).n_head, read_head(folder, stack="vision").n_head) == (8, 5)


def test_a_matrix_packed_in_another_way_is_refused(tmp_path):
    folder = saved("gpt2", tmp_path, model_type="gpt_bigcode")
    with pytest.raises(ModelError, match=r"h.0.attn.c_attn.weight of .* has the shape \(24, 72\)"):
        read_head(folder)
