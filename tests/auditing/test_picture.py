"""The cells of pictures of influence, compared with loops over pairs."""

import numpy as np
import pytest

from attnscope.auditing.picture import (
    MISSING,
    NONE,
    RIGHT,
    WRONG,
    mask_sentences,
    panels,
    pictures,
    subjects,
    top,
)
from attnscope.auditing.result import Influence
from attnscope.document.grid.pooling import chunks
from tests.document.every_result import audit, influence


@pytest.mark.parametrize("most", [7, 3])
def test_cells_contain_the_largest_influence_and_the_worst_of_their_pairs(most):
    drawn = influence()
    rows, columns = chunks(7, most), chunks(7, most)[1:]
    for matrix, cells in zip(
        (drawn.measured, drawn.received), panels(drawn, rows, columns), strict=True
    ):
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                pairs = [(query, key) for query in row for key in column]
                assert cells.amounts[i, j] == max(float(matrix[query][key]) for query, key in pairs)
                kinds = {(bool(matrix[query][key]), drawn.promised[query][key]) for query, key in pairs}
                expected = NONE
                for kind, found in (
                    (RIGHT, (True, True)),
                    (MISSING, (False, True)),
                    (WRONG, (True, False)),
                ):
                    expected = kind if found in kinds else expected
                assert cells.kinds[i, j] == expected


def test_without_a_promise_nothing_is_wrong():
    drawn = Influence("layer 0", [[1.0, 0.5], [0.0, 0.2]])
    [cells] = panels(drawn, chunks(2, 2), chunks(2, 2))
    assert cells.kinds.tolist() == [[RIGHT, RIGHT], [NONE, RIGHT]]
    assert drawn.wrong == drawn.missing == []


def test_infinite_influence_is_the_largest():
    drawn = Influence("layer 0", [[1.0, 0.5], [float("inf"), 0.2]])
    [cells] = panels(drawn, chunks(2, 2), chunks(2, 2))
    assert cells.amounts.tolist() == [[1.0, 0.5], [1.0, 0.2]]
    assert top(drawn) == 1.0


def test_the_scale_ends_at_the_largest_influence_on_another_position():
    assert top(influence()) == 0.2
    assert top(Influence("layer 0", np.eye(3).tolist())) == 1.0


def test_whether_the_mask_is_wrong_is_counted():
    assert list(mask_sentences(influence())) == [
        "of 1 wrong pair, the mask that reached the layer shows none",
        "of 1 missing pair, the mask that reached the layer hides all",
    ]
    wide = Influence("layer 0", [[1.0] * 3] * 3, np.tri(3, dtype=bool).tolist(), np.tri(3, k=1).tolist())
    assert list(mask_sentences(wide)) == ["of 3 wrong pairs, the mask that reached the layer shows 2"]


def test_what_is_broken_is_drawn_or_else_what_was_measured():
    broken, held = audit(), audit(broken=False)
    assert [each and each.name for each, _ in subjects(broken)] == ["causal", "cache"]
    assert [each and each.name for each, _ in pictures(broken)] == ["causal"]
    assert pictures(held) == [(None, held.influences[0])]
