"""The rule behind a mask is named from its pairs; the masks are written out, or made by transformers."""

import numpy as np
import pytest
import torch
from transformers import masking_utils as of_transformers

from attnscope.masks.patterns import pattern_of
from attnscope.results.planes import MatrixPlane, RangePlane


def plane_of(function, n_Q, n_K):
    matrix = np.array([[bool(function(q, k)) for k in range(n_K)] for q in range(n_Q)])
    return MatrixPlane([(0, 0)], n_Q, n_K, matrix)


DOCUMENTS = [0] * 4 + [1] * 2 + [2] * 5

RULES = {
    "all keys": (lambda q, k: True, 5, 7),
    "no key is visible": (lambda q, k: False, 5, 7),
    "all but 2 keys": (lambda q, k: k < 5, 5, 7),
    "causal": (lambda q, k: k <= q, 7, 7),
    "causal, at most 3 keys": (lambda q, k: q - 3 < k <= q, 7, 7),
    "each query sees only its own key": (lambda q, k: k == q, 7, 7),
    "causal, the last query at the last key": (lambda q, k: k <= q + 4, 3, 7),
    "causal, at most 3 keys, the last query at the last key; 2 keys hidden from all": (
        lambda q, k: q + 2 <= k <= q + 4,
        3,
        7,
    ),
    "causal, the first query at the first key": (lambda q, k: k <= q, 7, 4),
    "causal, the first query at the first key; 3 keys hidden from all": (lambda q, k: k <= q, 4, 7),
    "causal, at most 3 keys; 2 keys hidden from all": (lambda q, k: q - 3 < k <= q and k < 5, 7, 7),
    "1 key before each query and 1 after it; 3 keys hidden from all": (
        lambda q, k: abs(q - k) < 2 and 1 <= k < 5,
        7,
        7,
    ),
    "causal; 2 keys hidden from all": (lambda q, k: 2 <= k <= q, 7, 7),
    "causal within chunks of 3 keys": (lambda q, k: k <= q and k // 3 == q // 3, 8, 8),
    "all keys within chunks of 3 keys": (lambda q, k: k // 3 == q // 3, 8, 8),
    "causal within documents of 4, 2 and 5 keys": (
        lambda q, k: k <= q and DOCUMENTS[k] == DOCUMENTS[q],
        11,
        11,
    ),
    "causal within documents of 4, 2 and 5 keys, at most 3 keys": (
        lambda q, k: q - 3 < k <= q and DOCUMENTS[k] == DOCUMENTS[q],
        11,
        11,
    ),
    "all keys within documents of 4, 2 and 5 keys": (
        lambda q, k: DOCUMENTS[k] == DOCUMENTS[q],
        11,
        11,
    ),
    "causal after a prefix of 3 keys": (lambda q, k: k <= q or k < 3, 7, 7),
    "2 keys before each query and 1 after it": (lambda q, k: q - 2 <= k <= q + 1, 7, 7),
    "all keys before each query and 2 after it": (lambda q, k: k <= q + 2, 7, 7),
    "1 key before each query and all after it": (lambda q, k: q - 1 <= k, 7, 7),
    "causal, 3 keys and the first 2": (lambda q, k: k <= q and (q - k < 3 or k < 2), 9, 9),
    None: (lambda q, k: (q + k) % 3 == 0, 9, 9),
}


@pytest.mark.parametrize(("name", "rule"), RULES.items(), ids=RULES)
def test_rules_are_named(name, rule):
    assert pattern_of(plane_of(*rule)) == name


@pytest.mark.parametrize(("name", "rule"), RULES.items(), ids=RULES)
def test_rules_are_named_from_ranges_as_from_a_matrix(name, rule):
    plane = plane_of(*rule)
    rows = list(plane.rows())
    if any(len(row) > 1 for row in rows):
        return
    ranges = [row[0] if row else range(0) for row in rows]
    assert pattern_of(RangePlane([(0, 0)], plane.n_Q, plane.n_K, ranges)) == name


def test_one_pair_more_or_less_has_no_name_of_another_rule():
    """A rule is named only if every pair follows it."""
    for name, rule in RULES.items():
        plane = plane_of(*rule)
        if name is None or plane.n_Q != plane.n_K or plane.n_Q < 8:
            continue
        changed = plane.matrix.copy()
        changed[6, 1] ^= True
        assert pattern_of(MatrixPlane([(0, 0)], plane.n_Q, plane.n_K, changed)) != name


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (of_transformers.causal_mask_function, "causal"),
        (of_transformers.sliding_window_causal_mask_function(4), "causal, at most 4 keys"),
        (
            of_transformers.chunked_causal_mask_function(5, torch.zeros(1, dtype=torch.int)),
            "causal within chunks of 5 keys",
        ),
        (
            of_transformers.sliding_window_bidirectional_mask_function(3),
            "3 keys before each query and 3 after it",
        ),
    ],
)
def test_masks_of_transformers_are_named(function, name):
    mask = of_transformers.sdpa_mask(1, 12, 12, mask_function=function, allow_is_causal_skip=False)
    assert pattern_of(MatrixPlane([(0, 0)], 12, 12, mask[0, 0].numpy())) == name
