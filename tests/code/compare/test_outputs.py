"""Code that returns several tensors is compared by its output, wherever that stands among them."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput

from attnscope import AttnscopeError, compare
from attnscope.code.pairs.implementation import Side


@dataclass
class Steps:
    weights: torch.Tensor
    loss: torch.Tensor
    out: torch.Tensor


def parts(Q, K, V, factor=1.0):
    scores = factor * Q @ K.mT / Q.shape[-1] ** 0.5
    attention = scores.softmax(-1)
    return scores, attention, attention @ V


def weights_first(Q, K, V, factor=1.0):
    _, attention, out = parts(Q, K, V, factor)
    return attention, out


def scores_first(Q, K, V):
    scores, _, out = parts(Q, K, V)
    return {"scores": scores, "out": out}


def output_first(Q, K, V):
    return weights_first(Q, K, V)[::-1]


def in_a_dataclass(Q, K, V):
    _, attention, out = parts(Q, K, V)
    return Steps(attention, out.square().mean(), out)


def in_an_output_of_transformers(Q, K, V):
    _, attention, out = parts(Q, K, V)
    return BaseModelOutput(last_hidden_state=out, attentions=(attention,))


def with_loss_and_predictions(Q, K, V):
    *_, out = parts(Q, K, V)
    return out.square().mean(), out.argmax(-1), out


def with_a_cache(Q, K, V):
    *_, out = parts(Q, K, V)
    return out, (K.clone(), V.clone())


def fused_with_inputs_back(Q, K, V):
    return V * 1, F.scaled_dot_product_attention(Q, K, V), K * 1


RIGHT = [
    weights_first, scores_first, output_first, in_a_dataclass, in_an_output_of_transformers,
    with_loss_and_predictions, with_a_cache, fused_with_inputs_back,
]  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("function", RIGHT, ids=lambda each: each.__name__)
def test_a_function_is_compared_by_what_depends_on_V_last(function):
    result = compare(function, "sdpa", backward=True)
    assert (result.status, result.divergences, result.notices) == ("equal", [], [])
    assert {each.status for each in result.gradients} == {"equal"}
    assert result["output"].shape == (2, 3, 5, 6)


def test_a_wrong_scale_is_found_behind_weights_that_are_returned_first():
    def doubled(Q, K, V):
        return weights_first(Q, K, V, factor=2.0)

    [divergence] = compare(doubled, "sdpa").divergences
    assert (divergence.role, divergence.cause) == ("scores", "another scale")


class Exercise(nn.Module):
    """Multi-head attention that returns all its tensors, as tutorials write it."""

    order = ("Q_feat", "K_feat", "V_feat", "scores", "attention", "x_raw", "x_merged", "x")
    factor = 1.0

    def __init__(self, d_feat, n_head):
        super().__init__()
        self.n_head = n_head
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(d_feat, d_feat) for _ in range(4))

    def forward(self, Q, K, V):
        r = {"Q_feat": self.W_Q(Q), "K_feat": self.W_K(K), "V_feat": self.W_V(V)}
        q, k, v = (r[f"{name}_feat"].unflatten(-1, (self.n_head, -1)).transpose(1, 2) for name in "QKV")
        r["scores"] = self.factor * q @ k.mT / q.shape[-1] ** 0.5
        r["attention"] = r["scores"].softmax(-1)
        r["x_raw"] = r["attention"] @ v
        r["x_merged"] = r["x_raw"].transpose(1, 2).flatten(2)
        r["x"] = self.W_O(r["x_merged"])
        return {name: r[name] for name in self.order}


class Reversed(Exercise):
    order = Exercise.order[::-1]


class Doubled(Exercise):
    factor = 2.0


@pytest.mark.few(1)
@pytest.mark.parametrize("cls", [Exercise, Reversed])
def test_a_class_that_returns_all_its_tensors_equals_mha(cls):
    result = compare(cls, "mha", init={"d_feat": 30, "n_head": 3}, backward=True)
    assert (result.status, result.divergences, result.notices) == ("equal", [], [])
    assert {each.status for each in result.gradients} == {"equal"}


def test_the_other_tensors_that_it_returns_are_compared_by_role():
    result = compare(Doubled, "mha", init={"d_feat": 30, "n_head": 3})
    assert [(each.role, each.cause) for each in result.divergences] == [("scores", "another scale")]
    assert {name: result[name].status for name in ("V_feat", "scores", "attention", "x")} == {
        "V_feat": "equal", "scores": "different", "attention": "follows", "x": "follows",
    }  # fmt: skip


class Stack(nn.Module):
    """Two layers, whose weights are averaged after their output, as torch's module does."""

    def __init__(self, d, returns):
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(d, 2, batch_first=True) for _ in range(2))
        self.returns = returns

    def forward(self, x):
        maps = []
        for layer in self.layers:
            y, weights = layer(x, x, x)
            x, maps = x + y, [*maps, weights]
        known = {"x": x, "maps": maps}
        return tuple(known[name] for name in self.returns)


@pytest.mark.parametrize("returns", [("x", "maps"), ("maps", "x")])
def test_attention_of_a_later_layer_is_not_the_output(returns):
    x = torch.randn(2, 5, 6)
    side = Side("stack", stack := Stack(6, returns), {"x": x}, module=stack)
    run = side.run()
    assert run.output.tensor.shape == x.shape
    [expected] = [each for name, each in zip(returns, stack(x), strict=True) if name == "x"]
    assert torch.allclose(run.output.tensor, expected)


def without_softmax(q, k, v):
    """Linear attention: no softmax shows which tensor is V."""
    state = k.mT @ v
    return state, q @ state


def test_without_attention_the_output_depends_on_the_most_arguments():
    inputs = {"q": torch.randn(2, 5, 4), "k": torch.randn(2, 7, 4), "v": torch.randn(2, 7, 4)}
    side = Side("linear", without_softmax, inputs)
    assert side.run().output.tensor.shape == (2, 5, 4)


def pooled_last(Q, K, V):
    *_, out = parts(Q, K, V)
    return out, out.mean(-2)


def test_the_output_is_one_that_fits_the_other_side_and_a_notice_says_so():
    result = compare(pooled_last, "sdpa")
    assert result.status == "equal"
    assert result.notices[0].startswith("of the 2 tensors that pooled_last returns, that of line")
    assert "(2×3×5×6), because the last one (2×3×6) does not fit" in result.notices[0]


def test_attention_is_never_taken_for_an_output_because_it_fits():
    def too_narrow(Q, K, V):
        attention = (Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-1)
        return attention, (attention @ V)[..., :4]

    with pytest.raises(AttnscopeError, match="output is 2×3×5×7 in sdpa, and 2×3×5×4 in"):
        compare(too_narrow, "sdpa", inputs={"Q": "2,3,5,8", "K": "2,3,7,8", "V": "2,3,7,7"})
