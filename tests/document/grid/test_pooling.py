"""Neighbours share a cell, and no large weight gets lost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnscope.document.grid.pooling import borders, chunks, groups, pooled
from attnscope.model.run.tokens import Token


def texts(*lengths):
    return [Token("x", segment) for segment, length in enumerate(lengths) for _ in range(length)]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=3), st.integers(1, 90))
def test_groups_cover_every_token_once_in_order_and_fit(lengths, most):
    parts = groups(texts(*lengths), most)
    assert [i for part in parts for i in part] == list(range(sum(lengths)))
    assert len(parts) <= most


def test_a_cell_belongs_to_one_text():
    assert groups(texts(5, 4), 5) == [range(2), range(2, 4), range(4, 5), range(5, 7), range(7, 9)]


def test_what_fits_is_not_pooled():
    assert groups(texts(7), 7) == [range(i, i + 1) for i in range(7)]


def test_another_text_begins_at_a_border():
    assert borders(texts(5, 4)) == [5]
    assert borders(texts(5)) == []


def test_chunks_are_of_one_size():
    assert chunks(10, 4) == [range(3), range(3, 6), range(6, 9), range(9, 10)]


def test_a_cell_shows_the_largest_of_its_weights():
    weights = np.random.default_rng(0).random((7, 11), "float32")
    rows, columns = chunks(7, 3), chunks(11, 4)
    expected = [[max(weights[i, j] for i in row for j in column) for column in columns] for row in rows]
    assert pooled(weights, rows, columns).tolist() == expected
