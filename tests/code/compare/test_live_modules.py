"""Modules that already exist: they keep their weights, and take tensors."""

import numpy as np
import pytest
import torch
from torch import nn

from attnscope import AttnscopeError, compare


class Attention(nn.Module):
    shift = 1

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            lin(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for lin in (self.q, self.k, self.v)
        )
        future = torch.ones(x.shape[1], x.shape[1]).triu(self.shift).bool()
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(future, float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Fused(Attention):
    def forward(self, x):
        q, k, v = (
            lin(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for lin in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Leaky(Attention):
    shift = 2


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(2, 7, 12)


def copied(cls, module):
    other = cls(12, 3)
    other.load_state_dict(module.state_dict())
    return other


def headline(result):
    return result.document()[0].title


@pytest.mark.sweep
def test_two_modules_with_other_weights_are_different_although_their_code_is_equal(x):
    mine, ref = Attention(12, 3), Fused(12, 3)
    assert not torch.allclose(mine(x), ref(x))
    result = compare(mine, ref, x)
    assert headline(result) == (
        "compare: different: the weights differ; with the same weights, equal up to rounding in float32"
    )
    assert (result.status, result.divergences, result.weights_used) == ("different", [], "own")
    assert result.other_weights == [f"{name}.{part}" for name in "qkvo" for part in ("weight", "bias")]
    assert {each.status for each in result.tensors} == {"equal"}
    finding = result.document()[1].sentence
    assert finding.startswith(
        "the weights differ: q.weight, q.bias, k.weight, k.bias, v.weight, v.bias and 2 more"
    )


@pytest.mark.sweep
def test_a_mistake_of_the_code_shows_beside_weights_that_differ(x):
    for sides in ((Attention(12, 3), Leaky(12, 3)), (Leaky(12, 3), Attention(12, 3))):
        result = compare(*sides, x)
        assert headline(result).endswith("with the same weights, different, first in scores_masked")
        assert [each.cause for each in result.divergences] == ["causal mask shifted"]
        assert len(result.other_weights) == 8


def test_no_place_is_where_torch_passes_a_call_on(x):
    result = compare(nn.MultiheadAttention(12, 3, batch_first=True), "mha", x, x, x)
    assert "softmax(" in result["attention"].b.expression
    assert not any("handle_torch_function" in each.b.expression for each in result.tensors)


@pytest.mark.sweep
def test_with_the_same_weights_the_question_is_whether_the_code_is_equal(x):
    mine, ref = Attention(12, 3), Fused(12, 3)
    before = {name: each.clone() for name, each in ref.state_dict().items()}
    result = compare(mine, ref, x, weights="same")
    assert headline(result) == "compare: equal up to rounding in float32, with the same weights"
    assert all(torch.equal(before[name], each) for name, each in ref.state_dict().items())
    assert compare(Attention, Fused, init={"d": 12, "h": 3}).weights_used is None


@pytest.mark.sweep
def test_a_converted_module_is_equal_with_its_own_weights_until_one_is_wrong(x):
    mine = Attention(12, 3)
    other = copied(Fused, mine)
    result = compare(mine, other, x)
    assert headline(result) == "compare: equal up to rounding in float32, each with its own weights"
    with torch.no_grad():
        other.v.weight.copy_(other.v.weight.T.clone())
    result = compare(mine, other, x)
    assert [(each.role, each.cause) for each in result.divergences] == [("V_feat", "weight transposed")]
    assert result.notices[-1].endswith("they are equal: only their weights differ")


@pytest.mark.sweep
def test_where_the_code_differs_with_the_same_weights_that_is_said(x):
    mine = Attention(12, 3)
    result = compare(mine, copied(Leaky, mine), x)
    assert result.divergences[0].role == "scores_masked"
    assert "with the same weights they differ, too, first in scores_masked" in result.notices[-1]


@pytest.mark.sweep
def test_a_class_beside_a_module_gets_the_weights_of_the_module(x):
    module = Attention(12, 3)
    before = {name: each.clone() for name, each in module.state_dict().items()}
    for sides in ((module, Fused), (Fused, module)):
        result = compare(*sides, x, init={"d": 12, "h": 3})
        assert (result.status, result.weights_used) == ("equal", None)
    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())


@pytest.mark.sweep
def test_the_weights_of_a_method_of_a_module_stay(x):
    one, other = Attention(12, 3), Fused(12, 3)
    before = {name: each.clone() for name, each in other.state_dict().items()}
    assert compare(one, other.forward, x).status == "different"
    assert compare(one, other.forward, x, weights="same").status == "equal"
    assert all(torch.equal(before[name], each) for name, each in other.state_dict().items())


def test_weights_that_are_stated_to_be_the_same_are_the_same(x):
    pairs = [f"{name}.weight={name}.weight" for name in "qkvo"]
    result = compare(Attention(12, 3), Fused(12, 3), x, map=pairs)
    assert (result.status, result.weights_used) == ("equal", "same")
    with pytest.raises(AttnscopeError, match="map says which weights are the same"):
        compare(Attention(12, 3), Fused(12, 3), x, map=pairs, weights="own")


def test_a_reference_has_no_weights_of_its_own(x):
    with pytest.raises(AttnscopeError, match="a reference has no weights of its own"):
        compare(Attention(12, 3), "mha", x, weights="own")
    with pytest.raises(AttnscopeError, match="weights is 'both'"):
        compare(Attention(12, 3), Attention(12, 3), x, weights="both")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "given",
    [
        lambda x: ((x,), {}),
        lambda x: ((), {"inputs": x}),
        lambda x: ((), {"inputs": [x]}),
        lambda x: ((), {"inputs": {"x": x}}),
        lambda x: ((x.numpy(),), {}),
        lambda x: ((), {"inputs": {"x": x.numpy().astype(np.float16)}}),
    ],
)
def test_tensors_are_taken_by_position_and_by_name(x, given):
    args, options = given(x)
    assert compare(Attention(12, 3), "mha", *args, causal=True, **options).is_equal
    [first] = compare(Leaky(12, 3), "mha", *args, causal=True, **options).divergences
    assert first.role == "scores_masked"


def test_code_alone_takes_a_tensor_too(x):
    result = compare(Leaky(12, 3), x)
    assert (result.a, result.status) == ("mha", "different")


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_tensors_are_cast_to_the_dtype_of_the_module(x, dtype):
    result = compare(Attention(12, 3).to(dtype), "mha", x, causal=True)
    assert (result.status, result.dtype) == ("equal", str(dtype).removeprefix("torch."))


@pytest.mark.sweep
def test_without_inputs_a_module_gets_fitting_ones():
    assert compare(Attention(12, 3), "mha", causal=True).is_equal
    result = compare(nn.MultiheadAttention(12, 3, kdim=8, vdim=8, batch_first=True), "mha",
                     inputs={"query": "2,5,12", "key": "2,7,8", "value": "key"})  # fmt: skip
    assert result.is_equal


def test_too_many_tensors_are_one_clear_line(x):
    with pytest.raises(
        AttnscopeError, match=r"Attention takes 1 input by position \(x\), and there are 2"
    ):
        compare(Attention(12, 3), "mha", x, x)
    with pytest.raises(AttnscopeError, match="the inputs are given twice"):
        compare(Attention(12, 3), "mha", x, inputs=[x])


class OfTorch(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.inner = nn.MultiheadAttention(12, 3, batch_first=batch_first)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


class Everywhere(Attention):
    shift = 99  # nothing is masked


@pytest.mark.sweep
def test_the_usual_reason_for_attention_along_another_axis_is_named(x):
    built = "batch_first=True where OfTorch is built"
    for other in (Everywhere(12, 3), "mha"):
        with pytest.raises(AttnscopeError, match="attends along") as caught:
            compare(OfTorch(batch_first=False), other, x)
        assert caught.value.hint.startswith(built)
        assert compare(OfTorch(batch_first=True), other, x, weights="same").is_equal
