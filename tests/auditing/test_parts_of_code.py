"""Code that is called in parts with a cache, and that gets several texts in one row."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import attnscope


class Cached(nn.Module):
    """Causal attention with a cache of keys and values; `late` masks as if queries began at key 0."""

    def __init__(self, d: int = 8, late: bool = False) -> None:
        super().__init__()
        self.late, self.qkv = late, nn.Linear(d, 3 * d)

    def attend(self, x, past):
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        n_Q, n_K = q.shape[1], k.shape[1]
        offset = 0 if self.late else n_K - n_Q
        future = torch.ones(n_Q, n_K).triu(1 + offset).bool()
        return (q @ k.mT).masked_fill(future, float("-inf")).softmax(-1) @ v, k, v

    def forward(self, x, past=None):
        y, k, v = self.attend(x, past)
        return y, (k, v)


class OnRequest(Cached):
    """Returns its cache if that is requested, beside the output."""

    def forward(self, x, past_key_value=None, use_cache=False):
        y, *cache = self.attend(x, past_key_value)
        return (y, *cache) if use_cache else y


X = {"x": "B:2,T:9,8"}


@pytest.mark.few(1)
@pytest.mark.parametrize("code", [Cached, OnRequest])
def test_a_text_in_parts_with_a_cache_is_the_whole(code):
    found = attnscope.audit(code, inputs=X, cache=True)["cache"]
    assert found.status == "holds"
    found = attnscope.audit(code, init={"late": True}, inputs=X, cache=True)["cache"]
    assert found.status == "broken"
    assert "position" in found.found


def test_what_a_cache_needs_is_said():
    found = attnscope.audit(lambda x: x.cumsum(1), inputs=X, cache=True)["cache"]
    assert found.status == "undecided"
    assert "no parameter that takes what an earlier call returned, such as past" in found.found
    found = attnscope.audit(lambda x, past=None: x.cumsum(1), inputs=X, cache=True)["cache"]
    assert found.found.startswith("past takes nothing of what a call returns")
    found = attnscope.audit(lambda x, past=None: x.flip(1), inputs=X, cache=True)["cache"]
    assert found.found == "positions move earlier ones, so that a text in parts is another"


class Updated(Cached):
    """Updates a cache in place that it is given, and returns the output alone."""

    def forward(self, x, cache=None):
        before = cache.get("kv") if cache else None
        y, *kv = self.attend(x, before)
        if cache is not None:
            cache["kv"] = kv
        return y


class KeysAndValues:
    """A cache of its own class."""

    def __init__(self):
        self.kv = None

    def get(self, name):
        return self.kv

    def __setitem__(self, name, kv):
        self.kv = kv


class UpdatedObject(Updated):
    def forward(self, x, kv_cache=None):
        y, *kv = self.attend(x, None if kv_cache is None else kv_cache.kv)
        if kv_cache is not None:
            kv_cache.kv = kv
        return y


class OfTransformers(Cached):
    def attend(self, x, past):
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = (each[:, 0] for each in past.update(k[:, None], v[:, None], 0))
        offset = 0 if self.late else k.shape[1] - q.shape[1]
        future = torch.ones(q.shape[1], k.shape[1]).triu(1 + offset).bool()
        return (q @ k.mT).masked_fill(future, float("-inf")).softmax(-1) @ v

    def forward(self, x, past_key_values=None):
        return self.attend(x, past_key_values)


class InItself(Cached):
    """Keeps its cache in the module."""

    def __init__(self, d: int = 8, late: bool = False) -> None:
        super().__init__(d, late)
        self.kv = None

    def forward(self, x, use_cache=False):
        y, *kv = self.attend(x, self.kv if use_cache else None)
        if use_cache:
            self.kv = kv
        return y


class FromStart(InItself):
    """The same, where the caller says how many positions the buffers hold."""

    def forward(self, x, start_pos=0):
        y, *kv = self.attend(x, [each[:, :start_pos] for each in self.kv] if start_pos else None)
        self.kv = kv
        return y


@pytest.mark.parametrize(
    ("code", "what", "given"),
    [
        (Updated, "a dict", None),
        (Updated, "the given cache", {}),
        (UpdatedObject, "the given kv_cache", KeysAndValues()),
        (OfTransformers, "a DynamicCache", None),
        (InItself, "the cache of its module", None),
        (FromStart, "the cache of its module", None),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_cache_that_is_updated_in_place_is_judged(code, what, given, late):
    import transformers

    assert transformers.DynamicCache  # imported by the code that uses it
    inputs = {"x": torch.randn(2, 9, 8)}
    if given is not None:
        inputs[what.removeprefix("the given ")] = given
    found = attnscope.audit(code(late=late), inputs=inputs, cache=True)["cache"]
    assert found.status == ("broken" if late else "holds")
    assert found.source == f"the code updates {what} in place"
    assert given in (None, {}) or given.kv is None  # the user's own stays as it was


def logged(x, cache=None):
    weights = (x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -1e9).softmax(-1)
    if cache is not None:
        cache["weights"] = weights
    return weights @ x


def test_a_dict_that_is_filled_and_never_read_is_no_cache():
    found = attnscope.audit(logged, inputs=X, cache=True)["cache"]
    assert found.status == "undecided"
    assert "fills no empty dict or list that it reads" in found.found
    found = attnscope.audit(UpdatedObject, inputs=X, cache=True)["cache"]
    assert found.status == "undecided"


def by_limits(x, cu_seqlens):
    bounds = cu_seqlens.tolist()
    parts = [x[begin:end] for begin, end in pairwise(bounds)]
    return torch.cat([(part @ part.mT).softmax(-1) @ part for part in parts])


def without_limits(x, cu_seqlens):
    return (x @ x.mT).softmax(-1) @ x


def by_number(x, document_ids):
    same = document_ids[:, :, None] == document_ids[:, None]
    return (x @ x.mT).masked_fill(~same, float("-inf")).softmax(-1) @ x


def counted(x, document_ids):
    places = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
    return by_number(x * places.cos(), document_ids)


@pytest.mark.parametrize(
    ("code", "inputs", "status"),
    [
        (by_limits, {"x": "T:9,8", "cu_seqlens": "3<10"}, "holds"),
        (by_limits, {"x": "T:9,8", "cu_seqlens": torch.tensor([0, 2, 9])}, "holds"),
        (without_limits, {"x": "T:9,8", "cu_seqlens": "3<10"}, "broken"),
        (by_number, {"x": "B:2,T:9,8", "document_ids": "B,T<2"}, "holds"),
        (counted, {"x": "B:2,T:9,8", "document_ids": "B,T<2"}, "holds"),
    ],
)
def test_texts_in_one_row_are_tested_where_they_are_marked(code, inputs, status):
    found = attnscope.audit(code, inputs=inputs, packed=True)["packed"]
    assert found.status == status
    if status == "holds":
        end = "its positions shift, maybe" if code is counted else "is what it is in a row of its own"
        assert found.found.endswith(end)


def test_what_marks_texts_is_said():
    def code(x, cu_seqlens=None):
        return x

    found = attnscope.audit(code, inputs=X, packed=True)["packed"]
    assert found.status == "undecided"
    assert found.found == 'inputs={"cu_seqlens": "3<10"} says where two texts begin and end'
    found = attnscope.audit(lambda x: x, inputs=X, packed=True)["packed"]
    assert found.found.endswith("no input that says where texts begin, such as cu_seqlens")
