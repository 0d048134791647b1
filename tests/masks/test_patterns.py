"""The rule behind a mask is named from its pairs; the masks are written out, or made by transformers."""

import re

import numpy as np
import pytest
import torch
from transformers import masking_utils as of_transformers

from attnscope.attention.mask_rules import parse_masks
from attnscope.masks.of_rule import planes_of_masks
from attnscope.masks.patterns import pattern_of
from attnscope.masks.planes import MatrixPlane, RangePlane


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
    "keys 3 or more before each query; 3 keys hidden from all": (lambda q, k: k <= q - 3, 8, 8),
    "all keys before each query, without its own; 1 key hidden from all": (lambda q, k: k < q, 8, 8),
    "keys 2 to 4 after each query; 2 keys hidden from all": (lambda q, k: q + 2 <= k <= q + 4, 8, 8),
    "each query sees only the key before it; 4 keys hidden from all": (
        lambda q, k: k < q and q // 2 == k // 2,
        8,
        8,
    ),
    "causal, the first query at key 3; 2 keys hidden from all": (lambda q, k: k <= q + 3, 3, 8),
    "1 key before each query and 1 after it, the first query at the first key; 3 keys hidden from all": (
        lambda q, k: abs(q - k) < 2,
        4,
        8,
    ),
    "all keys within documents of 3 and 4 keys, for 5 and 1 queries": (
        lambda q, k: (q < 5) == (k < 3),
        6,
        7,
    ),
    "causal, 3 keys and the first 2, the last query at the last key": (
        lambda q, k: k <= q + 4 and (q + 4 - k < 3 or k < 2),
        5,
        9,
    ),
    "causal, 3 keys and the first 2": (lambda q, k: k <= q and (q - k < 3 or k < 2), 9, 9),
    None: (lambda q, k: (q + k) % 3 == 0, 9, 9),
}


@pytest.mark.parametrize(("name", "rule"), RULES.items(), ids=RULES)
def test_rules_are_named_from_a_matrix_and_from_ranges(name, rule):
    plane = plane_of(*rule)
    assert pattern_of(plane) == name
    rows = list(plane.rows())
    if all(len(row) < 2 for row in rows):
        ranges = [row[0] if row else range(0) for row in rows]
        assert pattern_of(RangePlane([(0, 0)], plane.n_Q, plane.n_K, ranges)) == name


@pytest.mark.parametrize(
    ("function", "n_Q"),
    [
        (lambda q, k: (q // 4) % 2 == k // 4, 16),  # queries 8 to 11 see the first chunk again
        (lambda q, k: (q >= 6) == (k >= 3), 8),  # query 4 sees no key near its own
    ],
)
def test_queries_that_are_not_at_their_documents_have_no_rule(function, n_Q):
    assert pattern_of(plane_of(function, n_Q, 8)) is None


SIGNED = re.compile(r"-\d")
SHAPES = [(5, 5), (4, 9), (9, 4), (1, 6)]


@pytest.mark.parametrize("align", ["top-left", "bottom-right", "after-past"])
@pytest.mark.parametrize(("n_Q", "n_K"), SHAPES)
def test_a_window_is_described_as_it_was_asked_for(n_Q, n_K, align):
    """Its widths are those of the rule, unless the border hides more; no number is negative."""
    for before, after in [(0, 0), (2, 0), (1, 1), (2, 3), (0, 2)]:
        sizes = {"n_batch": 1, "n_head": 1, "n_Q": n_Q, "n_K": n_K, "n_past": 2}
        masks = parse_masks(f"window:{before},{after}").applied(align=align, dtype="float32")
        [plane] = planes_of_masks(masks, sizes)
        text = pattern_of(plane)
        assert text is None or not SIGNED.search(text)
        first = {"top-left": 0, "bottom-right": n_K - n_Q, "after-past": 2}[align]
        if first - before > 0 and first + n_Q + after < n_K and n_Q > 1:  # nothing is cut off
            if after == 0:
                widths = f"at most {before + 1} keys" if before else "each query sees only its own key"
            else:
                widths = f"{before} key{'s' * (before != 1)} before each query and {after} after it"
            assert widths in text
            assert f"the first query at key {first}" in text


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
