"""Packed weights, unpacked by a plain loop."""

from math import isnan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attnscope.base.errors import ModelError
from attnscope.document.page.packing import pack, thumbnail
from attnscope.model.maps.result import AttentionMap
from tests.document.page.unpacking import unpacked

PROMISED = 1 / 500
"""The largest error of a weight."""


def packed(attention, *, fine):
    (head,) = pack([AttentionMap(0, 0, 0, attention)], fine=fine)
    return head


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def attention():
    return softmax(np.random.default_rng(3).normal(size=(37, 53)) * 3)


@pytest.mark.parametrize(("fine", "tolerance"), [(True, 1.6e-5), (False, 1 / 2000)])
def test_what_is_unpacked_is_what_was_packed(attention, fine, tolerance):
    back = unpacked(packed(attention, fine=fine).text, *attention.shape, fine=fine)
    assert np.abs(back - attention).max() < tolerance


@given(
    attention=arrays(
        np.float32, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=st.floats(0, 1, width=32)
    ),
    fine=st.booleans(),
)
def test_no_weight_is_further_off_than_promised_nor_than_measured(attention, fine):
    head = packed(attention, fine=fine)
    error = np.abs(unpacked(head.text, *attention.shape, fine=fine) - attention).max()
    assert error < PROMISED
    assert error == pytest.approx(head.largest_error, abs=1e-6)


@pytest.mark.parametrize("fine", [True, False])
def test_every_size_of_weight_is_within_the_promise(fine):
    every = np.linspace(0, 1, 2**16, dtype=np.float32).reshape(256, 256)
    assert packed(every, fine=fine).largest_error < (2e-5 if fine else 1 / 2000)


@pytest.mark.parametrize("fine", [True, False])
def test_zero_stays_exactly_zero_and_nothing_else_becomes_it(fine):
    attention = np.array([[0, 1e-30, 1.0], [0.5, 0, 0.5]], np.float32)
    back = unpacked(packed(attention, fine=fine).text, 2, 3, fine=fine)
    assert ((back == 0) == (attention == 0)).all()


def test_small_weights_keep_their_order_of_magnitude(attention):
    back = unpacked(packed(attention, fine=False).text, *attention.shape, fine=False)
    small = (attention > 1e-3) & (attention < 1e-2)
    assert np.abs(back / attention - 1)[small].max() < 0.15


def test_a_row_that_is_not_a_number_stays_so_and_spoils_no_other(attention):
    attention[5] = np.nan
    head = packed(attention, fine=False)
    back = unpacked(head.text, *attention.shape, fine=False)
    assert np.isnan(back[5]).all()
    assert not np.isnan(np.delete(back, 5, axis=0)).any()
    assert head.largest_error < PROMISED
    assert not isnan(head.largest_error)


def test_a_map_without_any_number_can_be_packed():
    head = packed(np.full((2, 3), np.nan, np.float32), fine=True)
    assert np.isnan(unpacked(head.text, 2, 3, fine=True)).all()


@pytest.mark.parametrize("weight", [-0.1, 1.5, np.inf])
def test_what_no_softmax_gives_is_refused(weight):
    with pytest.raises(ModelError, match=r"layer 4, head 2 has a weight of .*from 0 to 1"):
        pack([AttentionMap(4, 2, 2, np.array([[weight, 0.5]], np.float32))], fine=True)


def test_the_rounding_of_a_softmax_is_not_refused():
    head = packed(np.array([[1.0000005, 0.5]], np.float32), fine=True)
    assert unpacked(head.text, 1, 2, fine=True)[0, 0] == pytest.approx(1, abs=2e-5)


def test_several_heads_come_in_their_order(attention):
    maps = [AttentionMap(0, head, head, np.roll(attention, head, axis=1)) for head in range(5)]
    for each, head in zip(maps, pack(maps, fine=True), strict=True):
        assert np.allclose(unpacked(head.text, *attention.shape, fine=True), each.attention, atol=2e-5)


def test_a_thumbnail_of_a_small_map_is_the_map():
    attention = np.array([[1.0, 0.0, 0.0], [0.25, 0.25, 0.5]], np.float32)
    assert thumbnail(attention).tolist() == [[255, 0, 0], [128, 128, round(255 * sqrt(0.5))]]


def test_the_rows_of_a_thumbnail_sum_to_what_the_rows_of_the_map_do(attention):
    small = (thumbnail(attention, 10) / 255.0) ** 2
    assert small.shape == (10, 10)
    assert small.sum(axis=1) == pytest.approx(1, abs=0.03)


def test_a_thumbnail_shows_where_the_weights_are():
    previous = np.eye(96, k=-1, dtype=np.float32)
    assert (thumbnail(previous, 24).argmax(axis=1) == np.arange(24)).all()
    one_key = np.zeros((50, 80), np.float32)
    one_key[:, 79] = 1
    assert (thumbnail(one_key, 8).argmax(axis=1) == 7).all()
