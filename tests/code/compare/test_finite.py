"""Outputs are equal only if they show it: not where both are NaN, nor beside one huge number."""

import warnings

import pytest
import torch

from attnscope import AttnscopeError, compare
from tests.code.compare.code import numbers


def compared(a, b, **options):
    return compare(getattr(numbers, a), getattr(numbers, b), **options)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["nan", "infinite"])
def test_outputs_without_a_finite_number_are_not_comparable(kind):
    for other in ("right", "wrong"):
        with pytest.raises(AttnscopeError, match="neither has a finite number") as failure:
            compared(f"right_{kind}", f"{other}_{kind}")
    assert "numbers.py:" in failure.value.message
    assert compared("right", f"right_{kind}").status == "different"  # in one of them is a mistake


def test_outputs_with_the_same_nan_are_undecided_unless_the_others_differ():
    result = compared("right_blind", "right_blind")
    assert result.status == "undecided"
    [notice] = [each for each in result.notices if "NaN on both sides" in each]
    assert notice.startswith("20% of the compared numbers")  # one query of five
    assert "masked_fill(hidden, -torch.inf).softmax(-1)" in notice
    wrong = compared("right_blind", "wrong_blind")
    assert [each.cause for each in wrong.divergences] == ["another scale"]


def test_gradients_that_are_nan_on_both_sides_are_undecided():
    assert compared("right", "right", backward=True).status == "equal"
    result = compared("at_a_corner", "at_a_corner", backward=True)
    assert {each.status for each in result.tensors} == {"equal"}
    assert (result.status, result.gradients[0].status) == ("undecided", "undecided")
    assert "gradients are NaN on both sides, which shows nothing: Q, K" in result.notices[-1]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["large", "filled", "hidden", "complex"])
def test_a_mistake_shows_beside_huge_numbers_and_in_imaginary_parts(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compared(f"right_{kind}", f"right_{kind}").status == "equal"
        assert compared(f"right_{kind}", f"wrong_{kind}").status == "different"


def test_huge_numbers_are_compared_with_themselves():
    assert compared("right_filled", "other_fill").status == "different"


def test_what_overflows_in_the_dtype_of_the_run_is_not_equal_in_it():
    assert compared("right", "overflowing", dtype="float32").status == "equal"
    result = compared("right", "overflowing", dtype="float16")
    assert result.status == "undecided"
    assert "equal in float64, but in float16 not all of b's output is finite" in result.notices[-1]


def test_sharp_attention_hides_no_difference_although_most_weights_are_tiny():
    shapes = {"Q": (2, 3, 5, 8), "K": (2, 3, 7, 8), "V": (2, 3, 7, 6)}
    inputs = {name: 9 * torch.randn(shape) for name, shape in shapes.items()}
    assert compared("right", "right", inputs=inputs).status == "equal"
    assert compared("right", "wrong", inputs=inputs).status == "different"
