"""What counts as moved, and what as rounding."""

from __future__ import annotations

import warnings

import pytest
import torch

from attnscope.auditing.measure.difference import difference, relative
from attnscope.code.pairs.rounding import usual_size


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

    assert difference(run).is_equal
    assert calls == [False]


BF16 = {"rounding": 0.01, "dtype": torch.bfloat16}


@pytest.mark.parametrize(
    ("outputs", "status"),
    [
        ({"own": 2e-7, "exact": 1e-16}, "equal"),  # it vanishes in float64
        ({"own": 1e-3, "exact": 1e-3}, "different"),
        ({"own": 0.008, "exact": 1e-4, **BF16}, "different"),  # hidden by rounding in the dtype
        ({"own": 2e-7, "exact": 2e-9}, "equal"),  # a part in float32
        ({"own": 0.5, "exact": 1e-16, **BF16}, "undecided"),  # too large for rounding
    ],
)
def test_what_stays_in_float64_is_a_difference(outputs, status):
    found = difference(runs(**outputs))
    assert found.status == status
    assert ("bfloat16" in found.why) == (status == "undecided")
    if status == "different":
        assert (found.stage, found.position) == ("output", 2)
        assert found.amount == pytest.approx(outputs["exact"], rel=1e-4)


def test_a_model_that_does_not_run_in_float64_is_decided_by_large_differences_alone():
    def without(own):
        inner = runs(own=own, exact=0)

        def run(is_exact):
            if is_exact:
                raise RuntimeError("no float64 kernel")
            return inner(False)

        return run

    assert difference(without(0.5)).status == "different"
    found = difference(without(1e-6))
    assert found.status == "undecided"
    assert "no float64 kernel" in found.why


def test_nan_is_undecided_and_a_new_nan_has_difference():
    ones, nan = torch.ones(3, 2), torch.full((3, 2), float("nan"))
    assert difference(lambda _: ({"output": nan}, {"output": nan})).status == "undecided"
    assert difference(lambda exact: ({"output": ones}, {"output": nan})).status == "different"


def test_differences_are_relative_to_the_largest_number():
    first, second = torch.tensor([[100.0], [1.0]]), torch.tensor([[100.0], [2.0]])
    assert relative(first, second).tolist() == [0.0, 0.01]


@pytest.mark.parametrize("large", [torch.finfo(torch.float64).min, -3e38, -1e9])
@pytest.mark.parametrize("columns", [1, 3])
def test_a_number_far_larger_than_the_others_is_no_scale_for_them(large, columns):
    """Words that do not exist have such logits."""
    first = torch.linspace(1, 2, 20, dtype=torch.float64).reshape(5, 4)
    first[:, :columns] = large
    second = first.clone()
    second[2, 3] += 0.5
    assert relative(first, first).tolist() == [0.0] * 5
    amounts = relative(first, second)
    assert amounts[2] > 0.2
    assert amounts.count_nonzero() == 1


def test_a_large_number_is_compared_with_itself():
    first = torch.tensor([[1e9, 1.0], [1e9, 2.0]], dtype=torch.float64)
    assert float(relative(first, first + torch.tensor([0.5, 0.0]))[0]) == pytest.approx(5e-10)
    assert float(relative(first, first * torch.tensor([2.0, 1.0]))[0]) == pytest.approx(0.5)


def test_imaginary_parts_are_numbers_too():
    first = torch.tensor([[1 + 1j], [2 + 0j], [1 + 2j]])
    second = torch.tensor([[1 + 1j], [2 + 1j], [1 + 2j]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert relative(first, second).tolist() == [0.0, 0.5, 0.0]


def test_outliers_are_far_larger_than_most_and_than_what_is_usual_at_least():
    assert usual_size(torch.tensor([1.0] * 20 + [5e3, -2e4])) == 5e3
    small = torch.tensor([2.0**-20] * 20 + [-0.5])
    assert (usual_size(small), usual_size(small, least=1.0)) == (2.0**-20, 0.5)
    assert usual_size(torch.tensor([0.0, torch.inf, torch.nan])) == 0.0
