"""Sums of rows over segments, and pooled rows, beside naive loops; patches that all rows read."""

import numpy as np
import pytest
import torch

from attnscope.model.answers.prompt import Segment
from attnscope.model.answers.sums import RowSums, sink_patches
from attnscope.model.run.written_rows import WrittenRows

FIRST, N_ROW, N_K = 7, 3, 11
HEADS = {0: [0, 1, 2, 3], 2: [0, 1], 3: [1]}
"""The heads of each layer that has attention: their numbers differ."""

SEGMENTS = [
    Segment("system", ((0, 2), (4, 5))),
    Segment("user", ((2, 4),)),
    Segment("answer", ((8, 14),)),
]


def some_rows():
    """Rows as a model passes them on, those of a window's layer without the keys before it."""
    drawn = torch.Generator().manual_seed(0)
    for layer, heads in HEADS.items():
        for queries in ([FIRST], [FIRST + 1, FIRST + 2]) if layer != 2 else ([7], [8], [9]):
            n_K = 4 if layer == 2 else queries[-1] + 1
            first_key = queries[-1] + 1 - n_K
            for part in (heads[:1], heads[1:]):
                if part:
                    weights = torch.rand(len(part), len(queries), n_K, generator=drawn)
                    for row, query in enumerate(queries):
                        weights[:, row, query + 1 - first_key :] = 0
                    yield WrittenRows(layer, part, queries, first_key, weights)


def whole_rows():
    """The same rows as whole arrays, by layer and head: `n_row n_K`, filled by a loop."""
    arrays = {(layer, head): np.zeros((N_ROW, N_K)) for layer in HEADS for head in HEADS[layer]}
    for rows in some_rows():
        for i, head in enumerate(rows.heads):
            for j, query in enumerate(rows.queries):
                for k in range(rows.weights.shape[2]):
                    weight = float(rows.weights[i, j, k])
                    arrays[rows.layer, head][query - FIRST, rows.first_key + k] = weight
    return arrays


def numbers(pool, *, of_layers=True):
    sums = RowSums(FIRST, N_ROW + 2, N_K + 3, SEGMENTS, pool, of_layers=of_layers)
    for rows in some_rows():
        sums.add(rows)
    return sums.numbers(N_ROW, N_K)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooled_rows_are_those_of_a_loop(pool):
    pooled, _, of_layers = numbers(pool)
    arrays = whole_rows()
    assert pooled.shape == (N_ROW, N_K)
    assert of_layers.shape == (len(HEADS), N_ROW, N_K)
    for row in range(N_ROW):
        for key in range(N_K):
            values = [array[row, key] for array in arrays.values()]
            expected = max(values) if pool == "max" else sum(values) / len(values)
            assert pooled[row, key] == pytest.approx(expected, abs=1e-6)
            for i, (layer, heads) in enumerate(HEADS.items()):
                values = [arrays[layer, head][row, key] for head in heads]
                expected = max(values) if pool == "max" else sum(values) / len(values)
                assert of_layers[i, row, key] == pytest.approx(expected, abs=1e-6)


def test_sums_over_segments_are_those_of_a_loop():
    _, sums, of_layers = numbers("max", of_layers=False)
    assert of_layers is None
    assert sums.shape == (len(HEADS), 4, N_ROW, len(SEGMENTS))
    arrays = whole_rows()
    for i, layer in enumerate(HEADS):
        for head in range(4):
            for row in range(N_ROW):
                for column, segment in enumerate(SEGMENTS):
                    value = sums[i, head, row, column]
                    if head not in HEADS[layer]:
                        assert np.isnan(value)
                        continue
                    keys = [key for key in segment.positions if key < N_K]
                    expected = sum(arrays[layer, head][row, key] for key in keys)
                    assert value == pytest.approx(expected, abs=1e-6)


def test_rows_of_segments_are_means_over_their_queries():
    """Only the answer has queries here: position 7 is in no segment, the others are in the answer."""
    sums = RowSums(FIRST + 1, N_ROW, N_K, SEGMENTS, "mean", of_segments=True)
    for rows in some_rows():
        sums.add(rows)
    means = sums.segment_rows.numbers()
    arrays = whole_rows()
    for i, layer in enumerate(HEADS):
        for head in range(4):
            assert np.isnan(means[i, head, :2]).all()
            if head not in HEADS[layer]:
                assert np.isnan(means[i, head]).all()
                continue
            for column, segment in enumerate(SEGMENTS):
                keys = [key for key in segment.positions if key < N_K]
                values = [arrays[layer, head][row, keys].sum() for row in (1, 2)]
                assert means[i, head, 2, column] == pytest.approx(sum(values) / 2, abs=1e-6)


def test_the_order_in_which_rows_arrive_does_not_matter():
    sums = RowSums(FIRST, N_ROW, N_K, SEGMENTS, "mean", of_layers=True)
    for rows in reversed([*some_rows()]):
        sums.add(rows)
    for one, other in zip(sums.numbers(N_ROW, N_K), numbers("mean"), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def a_row(high, others=0.001, n=40):
    row = np.full(n, others)
    row[high] = 0.5
    return row


def test_a_patch_that_every_row_of_several_reads_much_is_a_sink():
    rows, positions = np.stack([a_row([5, 30])] * 4), [*range(3, 38)]
    assert sink_patches(rows, positions) == [5, 30]
    assert sink_patches(rows, [position for position in positions if position != 5]) == [30]
    assert sink_patches(rows, []) == []
    assert sink_patches(np.stack([*rows[:3], a_row([30])]), positions) == [30]
    assert sink_patches(rows[:3], positions) == []


@pytest.mark.parametrize(("weight", "sinks"), [(0.134, []), (0.135, [2])])
def test_a_sink_has_more_than_ten_times_the_mean(weight, sinks):
    """Of 36 patches, 35 have 0.01: w > 10 · (0.35 + w) / 36 where w > 3.5 / 26 = 0.1346."""
    row = np.full(36, 0.01)
    row[2] = weight
    assert sink_patches(np.stack([row] * 5), range(36)) == sinks
