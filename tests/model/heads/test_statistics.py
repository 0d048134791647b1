"""Means over queries and their standard errors, against formulas over all numbers and resampling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.model.heads.statistics import Accumulator, mean_and_error

KEY = ("self", 0)


def drawn_clusters(seed: int, n: int, longest: int = 9) -> list[np.ndarray]:
    """Sequences of numbers, of unequal lengths; those of one sequence are alike."""
    drawing = np.random.default_rng(seed)
    return [drawing.normal(drawing.normal(2, 1), 0.5, drawing.integers(0, longest)) for _ in range(n)]


def accumulator_of(clusters: list[np.ndarray], at_once: int = 1) -> Accumulator:
    """One head and one metric, so many sequences in a batch."""
    accumulator = Accumulator()
    for start in range(0, len(clusters), at_once):
        batch = clusters[start : start + at_once]
        totals = np.array([cluster.sum() for cluster in batch])[:, None, None]
        counts = np.array([float(len(cluster)) for cluster in batch])[:, None, None]
        accumulator.add(KEY, totals, counts)
    return accumulator


def told(clusters: list[np.ndarray], at_once: int = 1) -> tuple[float | None, float | None]:
    return mean_and_error(accumulator_of(clusters, at_once).sums[KEY][0, 0])


def ratio(clusters: list[np.ndarray]) -> float:
    return float(np.concatenate(clusters).mean())


@given(seed=st.integers(0, 999), n=st.integers(2, 30), at_once=st.integers(1, 7))
def test_the_mean_and_its_error_are_those_of_a_ratio_of_cluster_totals(seed, n, at_once):
    """Cochran's v(R̂) = s² / (c x̄²) without the finite population, where s² is that of y − R̂ x."""
    clusters = drawn_clusters(seed, n)
    counted = [cluster for cluster in clusters if len(cluster)]
    mean, error = told(clusters, at_once)
    if not counted:
        assert (mean, error) == (None, None)
        return
    assert mean == pytest.approx(ratio(counted))
    if len(counted) < 2:
        assert error is None
        return
    residuals = [cluster.sum() - mean * len(cluster) for cluster in counted]
    lengths = [len(cluster) for cluster in counted]
    expected = np.std(residuals, ddof=1) / np.sqrt(len(counted)) / np.mean(lengths)
    assert error == pytest.approx(expected, abs=1e-7)


@given(seed=st.integers(0, 999), n=st.integers(2, 30), size=st.integers(1, 5))
def test_of_clusters_of_one_size_it_is_the_error_of_their_means(seed, n, size):
    clusters = list(np.random.default_rng(seed).normal(size=(n, size)))
    means = [cluster.mean() for cluster in clusters]
    mean, error = told(clusters)
    assert mean == pytest.approx(np.mean(means), abs=1e-12)
    assert error == pytest.approx(np.std(means, ddof=1) / np.sqrt(n), abs=1e-7)


def test_it_is_what_the_jackknife_finds():
    """Sequences left out, one after the other: no formula for the error of a ratio is needed."""
    clusters = [cluster for cluster in drawn_clusters(3, 400) if len(cluster)]
    c = len(clusters)
    totals = np.array([cluster.sum() for cluster in clusters])
    counts = np.array([len(cluster) for cluster in clusters])
    without = (totals.sum() - totals) / (counts.sum() - counts)
    jackknife = np.sqrt((c - 1) / c * ((without - without.mean()) ** 2).sum())
    _, error = told(clusters)
    assert error == pytest.approx(jackknife, rel=0.02)


def test_it_is_what_drawing_again_finds():
    """The bootstrap draws whole sequences. Queries drawn by themselves would seem much surer."""
    clusters = [cluster for cluster in drawn_clusters(4, 300) if len(cluster)]
    totals = np.array([cluster.sum() for cluster in clusters])
    counts = np.array([len(cluster) for cluster in clusters])
    drawn = np.random.default_rng(0).integers(len(clusters), size=(4000, len(clusters)))
    bootstrap = np.std(totals[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    _, error = told(clusters)
    assert error == pytest.approx(bootstrap, rel=0.06)
    queries = np.concatenate(clusters)
    assert error > 1.5 * queries.std() / np.sqrt(len(queries))


def test_the_error_covers_the_truth_as_often_as_it_should():
    """In 95 of 100 corpora, the true mean is less than 1.96 errors away."""
    covered = 0
    for seed in range(400):
        clusters = [cluster for cluster in drawn_clusters(1000 + seed, 60) if len(cluster)]
        mean, error = told(clusters, at_once=60)
        covered += abs(mean - 2) < 1.96 * error
    assert covered / 400 == pytest.approx(0.95, abs=0.03)


def test_numbers_that_are_all_the_same_have_no_error():
    mean, error = told([np.full(n, 0.3) for n in (1, 5, 2, 7)])
    assert mean == pytest.approx(0.3)
    assert error == pytest.approx(0, abs=1e-7)


def test_one_sequence_has_no_error_and_none_has_no_mean():
    assert told([np.array([1.0, 3.0])]) == (2.0, None)
    assert told([np.array([1.0, 3.0]), np.array([])]) == (2.0, None)
    assert told([np.array([])]) == (None, None)


def test_a_sequence_in_which_no_query_counts_is_no_sequence():
    clusters = drawn_clusters(5, 6, longest=4)
    assert any(len(cluster) == 0 for cluster in clusters)
    counted = [cluster for cluster in clusters if len(cluster)]
    assert told(clusters) == told(counted)


def accumulators(seed: int, n: int) -> list[Accumulator]:
    """Of windows of a corpus: two layers of two stacks, two heads, three metrics."""
    drawing = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        accumulator = Accumulator(sequences=2, tokens=int(drawing.integers(5, 50)), cut=1)
        accumulator.layers, accumulator.heads = {"encoder": (2, 2), "cross": (1, 2)}, {}
        for key in (("cross", 0), ("encoder", 1), ("encoder", 0)):
            accumulator.heads[key] = 2
            counts = drawing.integers(0, 5, size=(2, 2, 3)).astype(float)
            accumulator.add(key, drawing.normal(size=(2, 2, 3)) * counts, counts)
        made.append(accumulator)
    return made


OF_STACK = {"encoder": ["entropy", "self", "same"], "cross": ["entropy", "first", "same"]}
NAMES = ["entropy", "self", "first", "same"]


def test_what_is_included_is_added_up_whatever_the_order():
    parts = accumulators(0, 5)
    forth, back = Accumulator(), Accumulator()
    for part in parts:
        forth.merge(part)
    for part in reversed(parts):
        back.merge(part)
    assert (forth.sequences, forth.cut, forth.tokens) == (10, 5, sum(part.tokens for part in parts))
    assert (back.sequences, back.cut, back.tokens) == (forth.sequences, forth.cut, forth.tokens)
    assert forth.layers == parts[0].layers
    assert forth.heads == parts[0].heads
    for one, other in zip(forth.rows(NAMES, OF_STACK), back.rows(NAMES, OF_STACK), strict=True):
        assert one.values == pytest.approx(other.values)
        assert one.errors == pytest.approx(other.errors)


def test_the_same_order_gives_the_same_bits():
    """So a run that goes on, and one among several processes, end at the very same sums."""
    parts = accumulators(1, 7)
    whole, first, second = Accumulator(), Accumulator(), Accumulator()
    for part in parts:
        whole.merge(part)
    for part in parts[:4]:
        first.merge(part)
    second.merge(first)
    for part in parts[4:]:
        second.merge(part)
    for key, sums in whole.sums.items():
        assert sums.tobytes() == second.sums[key].tobytes()


def test_what_is_included_stays_as_it_was():
    [part, other] = accumulators(2, 2)
    before = {key: sums.copy() for key, sums in part.sums.items()}
    whole = Accumulator()
    whole.merge(part)
    whole.merge(other)
    whole.add(("cross", 0), np.ones((1, 2, 3)), np.ones((1, 2, 3)))
    for key, sums in before.items():
        assert np.array_equal(part.sums[key], sums)
    assert part.sequences == 2


def test_rows_are_by_stack_and_layer_and_head_and_a_stack_has_its_own_metrics():
    [accumulator] = accumulators(3, 1)
    rows = accumulator.rows(NAMES, OF_STACK)
    places = [(row.stack, row.layer, row.head) for row in rows]
    assert places == [
        *[("encoder", 0, 0), ("encoder", 0, 1), ("encoder", 1, 0), ("encoder", 1, 1)],
        *[("cross", 0, 0), ("cross", 0, 1)],
    ]
    for row in rows:
        assert list(row.values) == list(row.errors) == NAMES
        assert row.values["first" if row.stack == "encoder" else "self"] is None
        for k, name in enumerate(OF_STACK[row.stack]):
            sums = accumulator.sums[row.stack, row.layer][row.head, k]
            assert (row.values[name], row.errors[name]) == mean_and_error(sums)


def test_the_sums_are_those_of_their_names():
    accumulator = accumulator_of([np.array([1.0, 2.0]), np.array([4.0]), np.array([])], at_once=2)
    assert accumulator.sums[KEY][0, 0].tolist() == [2, 3, 7, 4 + 1, 6 + 4, 9 + 16]
