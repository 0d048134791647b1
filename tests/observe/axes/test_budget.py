"""The budget of a search: an estimate of memory, and limits in time and number of runs."""

import time

import pytest

from attnscope.observe.axes import budget
from attnscope.observe.axes.budget import MemoryEstimate, OverBudget, RunBudget, budget_after

GIB = 2**30


@pytest.mark.parametrize(
    ("shape", "sizes", "times"),
    [
        ((2, 16, 48), {"B": 4, "T": 16, "d": 48, "n_head": 4}, 2),
        ((2, 16, 48), {"B": 2, "T": 32, "d": 96, "n_head": 4}, 4),
        ((2, 4, 16, 16), {"B": 2, "T": 48, "d": 48, "n_head": 4}, 9),
        ((2, 4, 16, 12), {"B": 2, "T": 16, "d": 96, "n_head": 4}, 2),  # d / n_head
        ((2, 4, 16, 12), {"B": 2, "T": 16, "d": 96, "n_head": 8}, 2),
        ((192, 48), {"B": 2, "T": 16, "d": 96, "n_head": 4}, 4),  # 4·d, or n_head·d
        ((32, 48), {"B": 4, "T": 32, "d": 48, "n_head": 4}, 4),  # B·T
        ((31, 3), {"B": 2, "T": 48, "d": 48, "n_head": 4}, 3),  # unknown: 2·T-1, and a constant
    ],
)
def test_a_tensor_grows_with_the_sizes_of_its_axes(shape, sizes, times):
    original = {"B": 2, "T": 16, "d": 48, "n_head": 4}
    all_axes = ((2, 4, 16, 48), 0)  # so that no name stands for a number of layers
    estimate = MemoryEstimate([(shape, 1000), all_axes], original)
    assert estimate.n_bytes == 1000
    assert estimate.with_sizes(sizes) == 1000 * times


def test_a_size_that_is_no_axis_may_be_a_number_of_layers():
    estimate = MemoryEstimate([((48, 48), 1000)], {"d": 48, "n_layer": 5})
    assert estimate.with_sizes({"d": 48, "n_layer": 50}) == 10_000


def test_the_default_is_the_larger_of_1_gib_and_4_times_the_first_run_and_5_seconds():
    small, large = budget_after(GIB // 8, None), budget_after(GIB, None)
    assert (small.n_bytes, small.seconds) == (
        GIB,
        3 * 5.0,
    )  # conftest.py gives tests three times as long
    assert (large.n_bytes, large.seconds) == (4 * GIB, 3 * 5.0)
    assert budget_after(GIB, 1000).n_bytes == 1000


def test_after_its_last_run_a_search_ends_and_says_so():
    limits = RunBudget(GIB, 60.0, n_runs=2)
    assert [limits.start() for _ in range(4)] == [True, True, False, False]
    assert "stopped after 2 runs" in limits.notice(is_complete=True)


@pytest.mark.parametrize(("clock", "seconds"), [("process_time", 6), ("monotonic", 60)])
def test_time_ends_a_search_and_the_run_under_way(monkeypatch, clock, seconds):
    monkeypatch.setattr(budget, "BETWEEN_LOOKS", 0)
    limits = RunBudget(GIB, 5.0)
    assert limits.start()
    limits.check(0, GIB)
    now = getattr(time, clock)() + seconds
    monkeypatch.setattr(budget.time, clock, lambda: now)
    with pytest.raises(OverBudget):
        limits.check(0, GIB)
    assert not limits.start()
    assert "stopped after 5 seconds" in limits.notice(is_complete=True)


def test_the_cpu_time_is_asked_for_once_in_a_while(monkeypatch):
    asked = []
    limits = RunBudget(GIB, 5.0)
    monkeypatch.setattr(budget.time, "process_time", lambda: asked.append(1) or limits.begun[0])
    monkeypatch.setattr(budget.time, "monotonic", lambda: limits.begun[1] + 0.001 * len(asked))
    for _ in range(100):
        limits.check(0, GIB)
    assert len(asked) == 1


def test_a_run_ends_where_it_exceeds_its_memory():
    limits = RunBudget(GIB, 60.0)
    limits.check(1000, 1000)
    with pytest.raises(OverBudget):
        limits.check(1001, 1000)
    assert not limits.too_large
    with pytest.raises(OverBudget):
        limits.check(GIB + 1, GIB)
    assert limits.too_large


def test_a_run_that_is_too_large_is_mentioned_only_if_axes_lack_names():
    limits = RunBudget(GIB, 60.0)
    assert limits.allows(GIB)
    assert not limits.too_large
    assert not limits.allows(GIB + 1)
    assert limits.start()
    assert limits.notice(is_complete=True) is None
    assert "more memory than their limit of 1.0 GiB" in limits.notice(is_complete=False)


def test_nothing_to_say_of_a_search_within_its_limits():
    limits = RunBudget(GIB, 60.0)
    assert limits.start()
    assert limits.notice(is_complete=False) is None


def test_ctrl_c_ends_the_search_and_raises_only_while_code_runs():
    limits = RunBudget(GIB, 60.0)
    limits.interrupt()
    assert not limits.start()
    assert "stopped by Ctrl-C" in limits.notice(is_complete=True)
    running = RunBudget(GIB, 60.0)
    running.is_running = True
    with pytest.raises(KeyboardInterrupt):
        running.interrupt()
