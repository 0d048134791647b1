"""A wrong argument of a public function is an error that names it; what Python has at hand is accepted."""

import pickle
import re
import typing
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import ArgumentError, FileError, OptionError, PartError, SizeError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 99,
}


@pytest.fixture
def config(tmp_path):
    import json

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def causal(x):
    n = x.shape[1]
    scores = x @ x.mT / x.shape[-1] ** 0.5
    return scores.masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf).softmax(-1) @ x


INPUTS = {"inputs": {"x": "B:2,T:7,d:8"}}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attnscope.audit(causal, **INPUTS, window=0), "window is 0, but takes numbers from 1."),
        (lambda: attnscope.audit(causal, **INPUTS, chunk=-2), "chunk is -2, but takes numbers from 1."),
        (lambda: attnscope.audit(causal, **INPUTS, prefix=-1), "prefix is -1, but takes numbers from 0."),
        (lambda: attnscope.audit(causal, **INPUTS, window=2.0), "window is 2.0, but takes whole numbers."),
        (lambda: attnscope.audit(causal, **INPUTS, causal="yes"), "causal is 'yes', but takes True or False."),
        (lambda: attnscope.audit("minilm", length=0), "length is 0, but takes numbers from 4."),
        (lambda: attnscope.audit("minilm", device="gpu"), "'gpu' is not a device."),
        (lambda: attnscope.compare("minilm", "minilm", top=0), "top is 0, but takes numbers from 1."),
        (lambda: attnscope.compare_maps("minilm", "minilm", "hi", top=0), "top is 0, but takes numbers from 1."),
        (lambda: attnscope.compare(causal, causal, **INPUTS, seed=2**64), f"{2**64} is not a valid seed"),
        (lambda: attnscope.compare(causal, causal, **INPUTS, scale="x"), "scale is 'x', but takes numbers."),
        (lambda: attnscope.compare(causal, causal, **INPUTS, call=""), "call is empty."),
        (lambda: attnscope.inspect(causal, torch.ones(2, 7, 8), depth=-1), "depth is -1, but takes numbers from 0."),
        (lambda: attnscope.inspect(causal, torch.ones(2, 7, 8), where=[3]), "where is [3], but takes several texts."),
        (lambda: attnscope.card("minilm", batch=1.5), "batch is 1.5, but takes whole numbers."),
        (lambda: attnscope.card("minilm", batch=2**64), "but takes numbers of 64 bits."),
        (lambda: attnscope.compute("sdpa", align="x"), "align is 'x', but takes 'top-left', 'bottom-right', 'after-past' or 'lengths'."),
        (lambda: attnscope.sdpa(*torch.ones(3, 2, 2), align="x"), "align is 'x', but takes 'top-left', "),
        (lambda: attnscope.compute("mha", bias="no"), "bias is 'no', but takes True or False."),
        (lambda: attnscope.compute("sdpa", mask=[]), "mask is an empty list."),
        (lambda: attnscope.measure_heads("minilm", 3.5), "texts is 3.5, but takes a text, several, or a Path."),
        (lambda: attnscope.measure_heads("minilm", "hi", metrics=[]), "metrics is an empty list."),
        (lambda: attnscope.attention_maps("minilm", "hi", layers={1: 2}), "layers is {1: 2}, but takes numbers from 0, 0-3 or all."),
        (lambda: attnscope.attention_maps("minilm", "hi", heads=1j), "heads is 1j, but takes numbers from 0, 0-3 or all."),
        (lambda: attnscope.attention_maps("minilm", "hi", copies=-1), "copies is -1, but takes numbers from 0."),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_what_it_takes(call, message):
    with pytest.raises(OptionError) as caught:
        call()
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attnscope.audit(causal, windw=3), "audit has no argument 'windw': did you mean 'window'?"),
        (lambda: attnscope.attention_maps("minilm", "hi", haeds=3), "attention_maps has no argument 'haeds': did you mean 'heads'?"),
        (lambda: attnscope.card("minilm", model="x"), "multiple values for argument 'model'"),
        (lambda: attnscope.card("minilm", zzz=3), "card has no argument 'zzz': it has model, context, batch"),
    ],
)  # fmt: skip
def test_an_argument_that_does_not_exist_is_a_type_error_with_the_nearest(call, message):
    with pytest.raises(TypeError) as caught:
        call()
    assert message in str(caught.value)


def test_an_argument_that_may_be_an_input_of_the_code_is_told_where_it_goes():
    with pytest.raises(TypeError, match="audit has no argument 'src_key_padding_mask'") as caught:
        attnscope.audit(causal, src_key_padding_mask=3)
    assert 'inputs={"src_key_padding_mask": …, …}' in caught.value.hint


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: attnscope.card(), "card needs model.", "model=…"),
        (lambda: attnscope.compute(), "compute needs formula.", "formula=…"),
        (lambda: attnscope.trace_script("a.py"), "trace_script needs watch.", "watch=…"),
        (lambda: attnscope.read_head("minilm", 0, 3), "read_head takes model by position, and the rest by name.", "layer=…, head=…"),
        (lambda: attnscope.compute("sdpa", n_q=3), "sdpa has no option 'n_q': did you mean 'nq'?", None),
        (lambda: attnscope.attention_steps("minilm", "hi", layers=0), "attention_steps has no argument 'layers': did you mean 'layer'?", None),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_is_the_message_alone(call, message, hint):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_what_is_no_trace_is_told_on_one_line():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    for function in (attnscope.annotate, attnscope.check_comments, attnscope.verify):
        with pytest.raises(OptionError, match=r"trace is Sequential\( .*, but takes a Trace\.$"):
            function(module)
    assert "n_batch" in attnscope.verify(attnscope.compute("sdpa", nq=2, keep=True))["scores"].dims


def test_several_sequences_of_ids_are_told_to_be_one():
    for ids in ([[1, 2], [3, 4]], np.ones((2, 2), int), torch.ones(2, 2, dtype=int)):
        with pytest.raises(OptionError) as caught:
            attnscope.attention_maps("minilm", ids=ids)
        assert caught.value.hint == "ids[0], which is one sequence"


def test_layer_and_head_are_layers_and_heads_where_a_function_takes_several():
    maps = attnscope.attention_maps("minilm", "hi", layer=1, head=2)
    again = attnscope.attention_maps("minilm", "hi", layers=[1], heads=[2])
    assert maps.to_dict() == again.to_dict()


def test_values_that_python_has_at_hand_are_accepted(config):
    two = attnscope.compute(
        "sdpa", nq=np.int64(4), nk=torch.tensor(5), scale=np.float32(0.5), dtype=torch.float64
    )
    assert (two["scores"].shape, two.dtype) == ((3, 4, 5), "float64")
    assert attnscope.compute("sdpa", device=torch.device("cpu")).device == "cpu"
    assert attnscope.card(Path(config), dtype=torch.float16, batch=np.int32(3)).batch == 3
    maps = attnscope.attention_maps("minilm", "hi", layers=np.array([0, 1]), heads=range(2))
    assert [(each.layer, each.head) for each in maps.maps] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    ids = [101, 7632, 102]
    for given in (ids, np.array(ids), torch.tensor([ids])):
        assert len(attnscope.attention_maps("minilm", ids=given).key_tokens) == 3
    assert attnscope.audit(causal, inputs="x=B:2,T:7,d:8", causal=True)["causal"].status == "holds"
    assert attnscope.measure_heads("minilm", (each for each in ["hi", "you"])).sequences == 2
    assert attnscope.compute("sdpa", softcap=float("inf"), mask="causal", mask_fill=-float("inf"))


def test_arrays_are_tensors_in_sdpa():
    Q, K, V = np.random.default_rng(0).normal(size=(3, 2, 5, 4))
    expected = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (Q, K, V)))
    assert torch.allclose(attnscope.sdpa(Q, K, V), expected)
    with pytest.raises(OptionError, match="V is 3, but takes a tensor"):
        attnscope.sdpa(Q, K, 3)


def test_a_mask_of_keys_alone_says_how_many_queries_a_self_attention_has():
    trace = attnscope.compute("mha", d_feat=16, heads=4, batch=2, mask=np.array([1.0, 0.0, 1.0]))
    assert trace["scores"].shape == (2, 4, 3, 3)


def test_public_functions_keep_their_names_and_signatures_and_can_be_pickled():
    from attnscope.model.card.card import card

    assert signature(attnscope.card) == signature(card)
    assert attnscope.card.__doc__ == card.__doc__
    assert pickle.loads(pickle.dumps(attnscope.card)) is attnscope.card
    assert typing.get_type_hints(attnscope.worked_example)


def test_methods_of_results_check_their_arguments(tmp_path):
    table = attnscope.measure_heads("minilm", "A cat.", layers=[0, 1])
    assert table.ranked("entropy", top=np.int64(2)).top == 2
    for wrong in (0, -1, 1.5, "x", float("nan"), []):
        with pytest.raises(OptionError, match="top is "):
            table.ranked("entropy", top=wrong)
    with pytest.raises(OptionError, match=r"sort is \[\], but takes a text"):
        table.ranked([])
    with pytest.raises(ArgumentError, match="ranked has no argument 'tpo': it has sort, reverse, top"):
        table.ranked("entropy", tpo=1)
    path = tmp_path / "z.json"
    path.write_text("as it was")
    with pytest.raises(OptionError, match="force is 'no', but takes True or False"):
        table.save(path, force="no")
    assert path.read_text() == "as it was"
    with pytest.raises(ArgumentError, match="save has no argument 'nope'"):
        table.save(tmp_path / "y.json", nope=1)
    with pytest.raises(FileError, match="cannot write yyy"):
        table.save("y" * 100_000 + ".json")
    assert table.plot(["entropy"]).axes


def test_parts_are_named_by_numbers_of_numpy_and_by_nothing_else():
    maps = attnscope.attention_maps("minilm", "A cat.", layers=[0, 1], heads=[2])
    assert maps[np.int64(1), torch.tensor(2)] is maps[1, 2]
    scaling = attnscope.measure_scaling(widths=[4])
    for result, place in (
        (maps, np.array([0, 1])),
        (maps, [0, 1]),
        (maps, {}),
        (scaling, np.int64(0)),
        (scaling, 4),
    ):
        with pytest.raises(PartError):
            result[place]
    weights = attnscope.head_weights("minilm", 0, 3)
    assert weights["W_Q"].shape == weights["W_Q"].array.shape == (32, 384)
    assert weights["W_Q"].stored_shape == (384, 384)
    assert weights.tensors["W_Q"] == weights.tensors()["W_Q"]
    assert weights.to_dict()["weights"][0]["shape"] == [384, 384]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_kv_head": 0}, "n_kv_head is 0, but takes numbers from 1."),
        ({"d_head": 0}, "d_head is 0, but takes numbers from 1."),
        ({"d_feat": 0}, "d_feat is 0, but takes numbers from 1."),
        ({"bias": "no"}, "bias is 'no', but takes True or False."),
        ({"dropout": float("nan")}, "dropout is nan, but takes numbers."),
        ({"dropout": 1.5}, "dropout is 1.5, but a probability is between 0 and 1."),
        ({"scale": "x"}, "scale is 'x', but takes numbers."),
        ({"softmax_dtype": "x"}, "softmax_dtype is 'x', but takes a dtype of floats."),
        (
            {"align": "x"},
            "align is 'x', but takes 'top-left', 'bottom-right', 'after-past' or 'lengths'.",
        ),
        ({"masked_rows": "x"}, "masked_rows is 'x', but takes 'nan', 'uniform' or 'zero'."),
        ({"nhead": 2}, "MultiHeadAttention has no argument 'nhead': did you mean 'n_head'?"),
    ],
)
def test_the_textbooks_module_checks_its_arguments(wrong, message):
    with pytest.raises((OptionError, ArgumentError)) as caught:
        attnscope.MultiHeadAttention(**{"d_feat": 8, "n_head": 2} | wrong)
    assert caught.value.message == message
    name = next(iter(wrong))
    if name in signature(attnscope.sdpa).parameters:
        with pytest.raises(OptionError, match=re.escape(message)):
            attnscope.sdpa(*torch.ones(3, 2, 8), **wrong)


def test_the_formula_says_which_tensors_do_not_fit():
    x = torch.ones(2, 3, 8)
    module = attnscope.MultiHeadAttention(d_feat=8, n_head=2)
    for function in (attnscope.sdpa, module):
        with pytest.raises(OptionError, match="V is 'x', but takes a tensor"):
            function(x, x, "x")
        with pytest.raises(OptionError, match=r"lengths is \[-1, -2\], but takes numbers from 0"):
            function(x, x, x, lengths=[-1, -2])
        with pytest.raises(SizeError, match="mask is 2, which do not fit together"):
            function(x, x, x, torch.ones(2))
    assert torch.equal(attnscope.sdpa(x, x, x, softcap=float("inf")), attnscope.sdpa(x, x, x))
