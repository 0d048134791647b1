"""Weights of two sides are matched through caches and copies; what stays unmatched is asked about."""

import pytest
import torch
from torch import nn

from attnscope import AttnscopeError, compare

SIZES = {"d": 24, "h": 4, "g": 2}


class Attention(nn.Module):
    """Grouped attention: h heads of queries, g of keys and values."""

    names = ("wq", "wk", "wv", "wo")

    def __init__(self, d, h, g):
        super().__init__()
        self.h, self.g = h, g
        sizes = dict(zip(self.names, (d, d // h * g, d // h * g, d), strict=True))
        for name in self.drawn_order():
            self.add_module(name, nn.Linear(d, sizes[name]))
        self.register_buffer("cache", torch.zeros(2, 16, g, d // h), persistent=False)

    def drawn_order(self):
        return self.names

    def kept(self, y):
        """Return keys or values, `batch n g d`, after the cache."""
        return y

    def expanded(self, y):
        return y.repeat_interleave(self.h // self.g, 2)

    def forward(self, x):
        q, k, v, o = (self._modules[name] for name in self.names)
        q, k, v = (each(x).unflatten(-1, (-1, x.shape[-1] // self.h)) for each in (q, k, v))
        k, v = (self.expanded(self.kept(each)).transpose(1, 2) for each in (k, v))
        scores = q.transpose(1, 2) @ k.mT / q.shape[-1] ** 0.5
        return o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Renamed(Attention):
    """With names that say nothing, drawn in another order."""

    names = ("one", "two", "three", "four")

    def drawn_order(self):
        return reversed(self.names)


class ThroughACache(Renamed):
    def kept(self, y):
        cache = y.new_zeros(y.shape[0], 16, *y.shape[2:])
        self.write(cache, y, y.shape[1])
        return cache[:, : y.shape[1]]

    def write(self, cache, y, n):
        cache[:, :n] = y


class Copied(ThroughACache):
    def write(self, cache, y, n):
        cache[:, :n].copy_(y)


class CopiedTokenByToken(ThroughACache):
    def write(self, cache, y, n):
        for i in range(n):
            cache.narrow(1, i, 1).copy_(y[:, i : i + 1])


class IndexCopied(ThroughACache):
    def write(self, cache, y, n):
        cache.index_copy_(1, torch.arange(n), y)


class Scattered(ThroughACache):
    def write(self, cache, y, n):
        cache.scatter_(1, torch.arange(n)[None, :, None, None].expand(y.shape), y)


class IndexPut(ThroughACache):
    def write(self, cache, y, n):
        cache[:, torch.arange(n)] = y


class IntoABuffer(Renamed):
    def kept(self, y):
        self.cache[:, : y.shape[1]].copy_(y)
        return self.cache[:, : y.shape[1]].clone()


class Expanded(Renamed):
    def expanded(self, y):
        return y[:, :, :, None].expand(-1, -1, -1, self.h // self.g, -1).flatten(2, 3)


class ExpandedByAMatrix(Renamed):
    def expanded(self, y):
        heads = torch.eye(self.g).repeat_interleave(self.h // self.g, 1)
        return torch.einsum("btgd,gh->bthd", y, heads.to(y))


class Indexed(Renamed):
    def expanded(self, y):
        return y[:, :, torch.arange(self.h) // (self.h // self.g)]


SAME = [
    Renamed, ThroughACache, Copied, CopiedTokenByToken, IndexCopied, Scattered, IndexPut, IntoABuffer,
    Expanded, ExpandedByAMatrix, Indexed,
]  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("cls", SAME, ids=lambda each: each.__name__)
def test_weights_are_followed_through_caches_and_copies(cls):
    result = compare(Attention, cls, init=SIZES)
    assert (result.status, result.divergences, result.notices) == ("equal", [], [])
    pairs = {each.a: each.b for each in result.weights if each.a.endswith("weight")}
    expected = zip(Attention.names, Renamed.names, strict=True)
    assert pairs == {f"{one}.weight": f"{other}.weight" for one, other in expected}


@pytest.mark.few(2)
@pytest.mark.parametrize("cls", [Copied, IntoABuffer, ExpandedByAMatrix], ids=lambda each: each.__name__)
def test_the_reference_gets_weights_that_pass_through_caches(cls):
    result = compare(cls, "mha", init=SIZES)
    assert (result.status, result.divergences) == ("equal", [])


class OneLate(ThroughACache):
    """Wrong: keys and values are one position late, and the first is zero."""

    def write(self, cache, y, n):
        cache[:, 1 : n + 1].copy_(y)


class HeadsTiled(Renamed):
    """Wrong: heads of queries share keys with others."""

    def expanded(self, y):
        return y.repeat(1, 1, self.h // self.g, 1)


def test_a_cache_that_is_written_one_position_late_is_different():
    result = compare(Attention, OneLate, init=SIZES)
    assert result.status == "different"
    assert {each.role for each in result.divergences} == {"K", "V"}
    assert {each.b for each in result.weights} >= {"two.weight", "three.weight"}
    assert result["K_feat"].status == result["V_feat"].status == "equal"


def test_heads_that_are_shared_otherwise_are_different():
    result = compare(Attention, HeadsTiled, init=SIZES)
    assert {each.cause for each in result.divergences} == {"shared heads in another order"}


def test_what_is_read_from_a_cache_beyond_what_was_written_is_not_multi_head_attention():
    with pytest.raises(AttnscopeError, match="K, V of OneLate hold what no projection"):
        compare(OneLate, "mha", init=SIZES)


class Rotated(Renamed):
    """Keys and values are multiplied by a constant matrix and by its inverse, which hides their source."""

    def kept(self, y):
        matrix = torch.linalg.qr(torch.randn(y.shape[-1], y.shape[-1], generator=torch.manual_seed(1)))[
            0
        ]
        return (y @ matrix.to(y)) @ matrix.mT.to(y)


class PackedKeysAndValues(Attention):
    """The projections of keys and values are one matrix."""

    names = ("wq", "wkv", "wo")

    def __init__(self, d, h, g):
        nn.Module.__init__(self)
        self.h, self.g = h, g
        self.wq, self.wkv, self.wo = nn.Linear(d, d), nn.Linear(d, 2 * d // h * g), nn.Linear(d, d)

    def forward(self, x):
        q = self.wq(x).unflatten(-1, (self.h, -1))
        k, v = (each.unflatten(-1, (self.g, -1)) for each in self.wkv(x).chunk(2, -1))
        k, v = (self.expanded(each).transpose(1, 2) for each in (k, v))
        scores = q.transpose(1, 2) @ k.mT / q.shape[-1] ** 0.5
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


ASKED = [
    (Attention, Rotated, "three.weight of Rotated may be any of wk.weight, wv.weight of Attention"),
    (Rotated, Attention, "wk.weight of Attention may be any of three.weight, two.weight of Rotated"),
    (PackedKeysAndValues, Rotated, "which of three.weight, two.weight of Rotated is W_K of Packed"),
    (Rotated, PackedKeysAndValues, "which of three.weight, two.weight of Rotated is W_K of Packed"),
]


@pytest.mark.parametrize(("a", "b", "message"), ASKED)
def test_weights_that_cannot_be_followed_are_asked_about_and_never_a_difference(a, b, message):
    with pytest.raises(AttnscopeError) as failure:
        compare(a, b, init=SIZES)
    assert message in failure.value.message
    assert failure.value.hint.startswith('map="')


def test_a_stated_weight_is_followed_no_further():
    pairs = ["wk.weight=two.weight", "wk.bias=two.bias", "wv.weight=three.weight", "wv.bias=three.bias"]
    assert compare(Attention, Rotated, init=SIZES, map=pairs).status == "equal"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_role_may_stand_for_a_part_of_a_matrix(order):
    pairs = ["two.weight=W_K", "two.bias=b_K", "three.weight=W_V", "b_V=three.bias"]
    sides = [(PackedKeysAndValues, Rotated)[i] for i in order]
    assert compare(*sides, init=SIZES, map=pairs).status == "equal"


class WithAGate(Attention):
    """Another matrix, which the other side does not have: it makes a difference."""

    def __init__(self, d, h, g):
        super().__init__(d, h, g)
        self.gate = nn.Linear(d, 1)

    def forward(self, x):
        return super().forward(x) * self.gate(x).sigmoid()


def test_a_weight_that_the_other_side_lacks_is_a_difference():
    result = compare(Renamed, WithAGate, init=SIZES)
    assert result.status == "different"
    assert any(
        "gate.weight, gate.bias of WithAGate are left as drawn" in each for each in result.notices
    )
