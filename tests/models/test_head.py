"""A head's slices against the parameters of the model that transformers loads."""

import pytest
import torch
from transformers import BertModel

from attnscope.errors import ModelError
from attnscope.models.head import read_head
from attnscope.values import numbers


def slices_of(model: BertModel, layer: int, head: int, d_head: int) -> dict[str, torch.Tensor]:
    """The same slices, cut out of a loaded model as the tutorials do it."""
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
    facts = {s.name: (s.shape, s.axis, s.start, s.stop) for s in read_head(str(folder), head=2).weights}
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
        ('{"num_attention_heads": 5}', "is 12 wide, which does not divide into the 5 heads"),
        ('{"num_attention_heads": true}', "(num_attention_heads is True)"),
        ("[" * 10**5, "cannot read"),
        ("{}", "does not say how many heads it has (num_attention_heads is None)"),
        ("not json", "cannot read"),
        ("[1]", "holds no JSON object"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(small_bert, config, message):
    folder, _ = small_bert()
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelError) as caught:
        read_head(str(folder))
    assert message in caught.value.message
