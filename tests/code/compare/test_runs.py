"""How both sides are run: in their own dtype if necessary, on copies of the inputs, twice the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnscope import compare
from attnscope.base.errors import SourceError

FILE = Path(__file__).parent / "code" / "runs.py"


def compared(one, other, **options):
    return compare(f"{FILE}:{one}", f"{FILE}:{other}", inputs=["x=B:2,T:9,d:8"], **options)


@pytest.mark.sweep
def test_code_that_runs_in_float32_only_is_compared_in_it():
    result = compared("Table", "TableInAnotherOrder")
    assert result.status == "equal"
    assert (
        sum(notice.startswith("compared in float32 alone: in float64, ") for notice in result.notices)
        == 1
    )
    assert not any(notice.startswith("in float64") for notice in result.notices)


def test_a_mistake_in_such_code_is_found_with_its_cause():
    result = compared("Table", "TableOfAnotherScale")
    assert result.status == "different"
    assert result.divergences[0].role == "scores"
    assert result.divergences[0].cause == "another scale"


@pytest.mark.sweep
def test_gradients_of_such_code_are_compared_in_its_dtype():
    result = compared("Table", "TableInAnotherOrder", backward=True)
    assert result.status == "equal"
    assert [(each.a, each.status) for each in result.gradients] == [
        ("x", "equal"), ("qkv.weight", "equal"), ("qkv.bias", "equal")
    ]  # fmt: skip
    assert all(0 < each.rounding < 1e-5 for each in result.gradients)
    result = compared("Table", "TableWithoutGradientsOfKeys", backward=True)
    assert result.status == "different"
    assert [each.status for each in result.gradients] == ["different"] * 3


def test_code_without_gradients_says_so_in_one_line():
    with pytest.raises(SourceError, match=r"TableOfNumpy has no gradients: .*numpy") as raised:
        compared("Table", "TableOfNumpy", backward=True)
    assert "\n" not in raised.value.message


def test_code_that_changes_its_inputs_leaves_those_of_the_other_side():
    assert compare(f"{FILE}:in_place", "sdpa").status == "equal"


def test_code_that_is_random_is_not_compared():
    with pytest.raises(SourceError, match="noisy cannot be compared: two runs on the same input differ"):
        compare(f"{FILE}:noisy", "sdpa")


def test_code_that_ends_the_process_is_not_blamed_on_the_inputs():
    with pytest.raises(
        SourceError, match=r"ends ends the process: SystemExit: 0 \(line \d+ of runs\.py"
    ):
        compare(f"{FILE}:ends", "sdpa")
