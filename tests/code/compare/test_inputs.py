"""Inputs that are stated in part, methods that are called by name, and the names of axes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnscope import compare


def usual(query, key, value, mask=None, dropout=None):
    """Attend as tutorials write it."""
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(-1)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ value, weights


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("inputs", "shape"),
    [
        ({}, (2, 3, 5, 7)),
        ({"mask": "5,7@bool"}, (2, 3, 5, 7)),
        ({"mask": "n_Q,n_K@bool"}, (2, 3, 5, 7)),
        ({"mask": "T:6,T@bool"}, (2, 3, 6, 6)),
        ({"query": "2,7,200"}, (2, 1, 7, 9)),
        ({"query": "B:2,4,T:6,d:12"}, (2, 4, 6, 7)),
        ({"query": "2,7,20", "mask": "7,9@bool"}, (2, 1, 7, 9)),
        ({"key": "2,3,4,20"}, (2, 3, 5, 4)),
        ({"value": "B:2,S:4,16"}, (2, 1, 5, 4)),
    ],
)  # fmt: skip
def test_an_input_that_is_stated_leaves_the_usual_ones_of_the_others(inputs, shape):
    result = compare(usual, "sdpa", inputs=inputs)
    assert (result.status, result["scores"].shape) == ("equal", shape)


class OnlyAttends:
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class Attends(nn.Module):
    def attend(self, q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


@pytest.mark.parametrize("sides", [(Attends, OnlyAttends), (OnlyAttends, Attends)])
def test_a_method_of_a_class_without_forward_is_called(sides):
    inputs = {"q": "B:2,T:5,C:12", "k": "B,S:7,C", "v": "B,S,C"}
    assert compare(*sides, call="attend", inputs=inputs).status == "equal"


def test_axes_keep_the_names_of_the_inputs():
    def pooled(q, k, v):
        return q.sum(-1, keepdim=True) * k.sum((-2, -1), keepdim=True) * v.mean(-2, keepdim=True)

    inputs = {"q": "B:2,T:5,d:8", "k": "B,S:7,d", "v": "B,S,e:6"}
    assert compare(pooled, pooled, inputs=inputs)["output"].dims == ("B", "T", "e")
    [row] = compare(pooled, lambda q, k, v: 2 * pooled(q, k, v), inputs=inputs).tensors
    assert (row.dims, list(row.index)) == (("B", "T", "e"), ["B", "T", "e"])
    same = {"q": "B:2,h:2,T:5,d:8", "k": "B,h,S:7,d", "v": "B,h,S,e:6"}  # 2 may be either
    assert compare(pooled, pooled, inputs=same)["output"].dims == ("axis_0", "axis_1", "T", "e")


@pytest.mark.sweep
def test_shares_of_dropped_weights_are_of_visible_keys_and_modules_are_named():
    class Dropped(nn.Module):
        def __init__(self, p=0.3):
            super().__init__()
            self.p, self.idle = p, nn.Dropout(0.1)

        def forward(self, q, k, v):
            hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
            weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)
            return F.dropout(self.idle(weights), self.p) @ v

    inputs = dict.fromkeys("qkv", "2,4,40,12")
    for sides, wrong in (((Dropped(0.0), Dropped()), "b"), ((Dropped(), Dropped(0.0)), "a")):
        result = compare(*sides, inputs=inputs)
        [found] = result.divergences
        assert found.cause == "dropout active"
        assert found.explanation.startswith(f"{wrong} applies dropout (p = 0.3) to attention: ")
        share = int(found.explanation.split(": ")[1].partition("%")[0])
        assert abs(share - 30) <= 3
        assert any("dropout of modules (nn.Dropout) is off" in each for each in result.notices)


def positive(q, k, v):
    """Attend to what is positive: equal to attention if all inputs are."""
    return (q.relu() @ k.relu().mT / q.shape[-1] ** 0.5).softmax(-1) @ v.relu()


@pytest.mark.sweep
def test_drawn_inputs_have_the_distribution_that_is_stated():
    inputs = {"q": "2,5,8", "k": "2,7,8", "v": "2,7,6"}
    assert compare(positive, "sdpa", inputs=inputs, draw="uniform").status == "equal"
    assert compare(positive, "sdpa", inputs=inputs).status == "different"


def test_the_last_axis_of_an_output_whose_heads_are_not_merged_is_d_v():
    result = compare(usual, "sdpa", inputs={"query": "2,3,5,8", "key": "2,3,7,8", "value": "2,3,7,6"})
    assert result["output"].dims[-1] == "d_V" == result["x_raw"].dims[-1]
