"""The verdict follows what counts: what a mask hides, or the softmax cancels, has no effect."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnscope import compare

INPUTS = {"q": "B:2,h:3,n:5,d:8", "k": "B,h,m:7,d", "v": "B,h,m,e:6"}
N_PAD = 4


def padded(q, k, v, value, rotate=lambda x: x, scale=1.0):
    """Attend to keys behind some that a mask hides."""
    k, v = (F.pad(each, (0, 0, N_PAD, 0), value=value) for each in (k, v))
    scores = scale * rotate(q) @ rotate(k).mT / q.shape[-1] ** 0.5
    hidden = torch.arange(k.shape[-2]) < N_PAD
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def zeros(q, k, v):
    return padded(q, k, v, 0.0)


def ones(q, k, v):
    return padded(q, k, v, -1.0)


def doubled(q, k, v):
    return padded(q, k, v, -1.0, scale=2.0)


def statuses(result):
    return {each.role: each.status for each in result.tensors}


def test_keys_that_a_mask_hides_do_not_count():
    q, k, v = (torch.randn(2, 3, n, 8) for n in (5, 7, 7))
    assert torch.equal(zeros(q, k, v), ones(q, k, v))
    result = compare(zeros, ones, inputs=INPUTS)
    assert (result.status, set(statuses(result).values())) == ("equal", {"equal"})
    assert result.notices == ["K, V differ at keys that both masks hide, which has no effect"]


@pytest.mark.parametrize("wrong", ["b", "a"])
def test_a_mistake_beside_hidden_keys_is_the_only_one(wrong):
    sides = (zeros, doubled) if wrong == "b" else (doubled, zeros)
    result = compare(*sides, inputs=INPUTS)
    [found] = result.divergences
    assert (found.role, found.cause, result.explained) == ("scores", "another scale", True)
    assert "divides by √d_head = √8" in found.explanation
    assert "does not scale" not in found.explanation


TABLE = (torch.arange(32)[:, None] / 100 ** (torch.arange(0, 8, 2) / 8)).repeat(1, 2)


def late(q, k, v, begin=3):
    """Rotate queries and keys by positions that begin with another number, from a table in float32."""

    def rotate(x):
        angle, half = TABLE[begin : begin + x.shape[-2]], x.shape[-1] // 2
        return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angle.sin()

    return padded(q, k, v, float(begin), lambda x: rotate(x))


def early(q, k, v):
    return late(q, k, v, begin=0)


def test_other_first_positions_of_queries_and_keys_have_no_effect():
    q, k, v = (torch.randn(2, 3, n, 8) for n in (5, 7, 7))
    torch.testing.assert_close(late(q, k, v), early(q, k, v))
    result = compare(late, early, inputs=INPUTS)
    assert result.status == "equal"
    assert {role for role, each in statuses(result).items() if each == "form"} == {"Q", "K"}
    assert "Q, K differ without effect on the output: the scores are the same" in result.notices


class Attention(nn.Module):
    def __init__(self, width, without=""):
        super().__init__()
        self.q, self.k, self.v, self.o = (
            nn.Linear(width, width, each not in without) for each in "qkvo"
        )

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (3, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        out = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.o(out.transpose(1, 2).flatten(2))


CANCELS = "without effect on the output: a key's bias cancels in the softmax"


@pytest.mark.sweep
def test_a_key_s_bias_cancels_in_the_softmax_and_the_others_do_not():
    x = torch.randn(2, 7, 24)
    full = Attention(24)
    nn.init.normal_(full.k.bias)
    for names, wrong in (("k", []), ("qkvo", ["Q_feat", "V_feat", "x"])):
        other = Attention(24, names)
        other.load_state_dict(full.state_dict(), strict=False)
        for sides in ((full, other), (other, full)):
            result = compare(*sides, x)
            assert [each.role for each in result.divergences] == wrong
            assert result.status == ("different" if wrong else "equal")
            assert (statuses(result)["K_feat"], statuses(result)["K"]) == ("form", "form")
            assert any(CANCELS in each for each in result.notices)
            assert statuses(result)["scores"] == ("follows" if wrong else "form")


@pytest.mark.sweep
def test_a_headline_names_the_weights_that_were_set_to_0():
    class WithoutV(Attention):
        def __init__(self, width):
            super().__init__(width, "v")

    result = compare(WithoutV, Attention, init={"width": 24}, inputs={"x": "2,7,24"})
    assert result.verdict == "equal up to rounding in float32, with v.bias of b set to 0"
    assert (result.status, result.zeroed) == ("equal", ["v.bias"])
    result = compare(Attention, WithoutV, init={"width": 24}, inputs={"x": "2,7,24"})
    assert [(each.role, each.cause) for each in result.divergences] == [("V_feat", "bias missing")]
    assert compare(Attention, Attention, init={"width": 24}, inputs={"x": "2,7,24"}).zeroed == []
