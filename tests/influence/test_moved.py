"""What counts as moved, and what as rounding."""

from __future__ import annotations

import torch

from attnscope.influence.measure.moved import moved, relative


def runs(own: float, exact: float, rounding: float = 1e-7, dtype: torch.dtype = torch.float32):
    """Two runs whose outputs differ so far at position 2, in a dtype and in float64."""
    base = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4)

    def run(is_exact):
        gap, first = (exact, base) if is_exact else (own, base + rounding)
        second = first.clone()
        second[2, 0] += gap
        return tuple({"output": each if is_exact else each.to(dtype)} for each in (first, second))

    return run


def test_equal_bits_need_no_second_run():
    calls = []

    def run(is_exact):
        calls.append(is_exact)
        return {"output": torch.ones(3, 2)}, {"output": torch.ones(3, 2)}

    assert moved(run).is_equal
    assert calls == [False]


def test_what_vanishes_in_float64_is_rounding():
    assert moved(runs(own=2e-7, exact=1e-16)).is_equal


def test_what_stays_in_float64_has_moved():
    found = moved(runs(own=1e-3, exact=1e-3))
    assert (found.status, found.stage, found.position) == ("moved", "output", 2)
    assert abs(found.amount - 1e-3) < 1e-9


def test_what_stays_in_float64_has_moved_even_if_the_dtype_hides_it():
    assert moved(runs(own=0.008, exact=1e-4, rounding=0.01, dtype=torch.bfloat16)).status == "moved"


def test_parts_in_float32_are_rounding():
    assert moved(runs(own=2e-7, exact=2e-9)).is_equal


def test_a_large_difference_in_a_narrow_dtype_alone_is_undecided():
    found = moved(runs(own=0.5, exact=1e-16, rounding=0.01, dtype=torch.bfloat16))
    assert found.status == "undecided"
    assert "bfloat16" in found.why


def test_a_model_that_does_not_run_in_float64_is_decided_by_large_differences_alone():
    def without(own):
        inner = runs(own=own, exact=0)

        def run(is_exact):
            if is_exact:
                raise RuntimeError("no float64 kernel")
            return inner(False)

        return run

    assert moved(without(0.5)).status == "moved"
    found = moved(without(1e-6))
    assert found.status == "undecided"
    assert "no float64 kernel" in found.why


def test_nan_is_undecided_and_a_new_nan_has_moved():
    ones, nan = torch.ones(3, 2), torch.full((3, 2), float("nan"))
    assert moved(lambda _: ({"output": nan}, {"output": nan})).status == "undecided"
    assert moved(lambda exact: ({"output": ones}, {"output": nan})).status == "moved"


def test_differences_are_relative_to_the_largest_number():
    first, second = torch.tensor([[100.0], [1.0]]), torch.tensor([[100.0], [2.0]])
    assert relative(first, second).tolist() == [0.0, 0.01]
