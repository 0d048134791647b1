"""Fewer queries than keys: where a causal reference has them is an option, and is said."""

import pytest

from attnscope import AttnscopeError, compare
from tests.code.compare.code import aligned

TAKEN = "5 queries, 7 keys: sdpa aligns its causal mask "


def notices(code, **options):
    result = compare(code, "sdpa", causal=True, **options)
    return result.status, result.notices


@pytest.mark.sweep
def test_the_alignment_that_was_taken_is_said():
    assert notices(aligned.first) == ("equal", [TAKEN + "top-left, query 0 at key 0"])
    assert notices(aligned.last, align="bottom-right") == (
        "equal",
        [TAKEN + "bottom-right, query 4 at key 6"],
    )
    even = dict.fromkeys("QKV", "2,3,5,8")
    assert notices(aligned.last, inputs=even) == ("equal", [])  # where it does not matter


@pytest.mark.sweep
def test_a_difference_that_the_other_alignment_explains_names_it():
    assert notices(aligned.last) == (
        "different",
        [TAKEN + "top-left, query 0 at key 0", 'with align="bottom-right", both are equal'],
    )
    assert notices(aligned.first, align="bottom-right")[1][1] == 'with align="top-left", both are equal'
    status, [_] = notices(aligned.between)
    assert status == "different"


@pytest.mark.sweep
def test_the_number_of_keys_before_the_queries_is_an_option():
    assert notices(aligned.last, past=2) == ("equal", [])
    assert notices(aligned.between, past=1) == ("equal", [])
    assert notices(aligned.between, past=2)[0] == "different"


@pytest.mark.sweep
def test_rotary_positions_follow_the_alignment():
    assert notices(aligned.last_rotated, rope=True, align="bottom-right")[0] == "equal"
    assert notices(aligned.last_rotated, rope=True, past=2)[0] == "equal"
    assert notices(aligned.last_rotated, rope=True)[0] == "different"
    with pytest.raises(AttnscopeError, match="need 1 more keys than queries: n_Q is 5, and n_K is 7"):
        notices(aligned.last_rotated, rope=True, past=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"align": "last"}, "align is 'last'"),
        ({"past": -1}, "past is -1, but takes numbers from 0"),
        ({"past": 2, "align": "top-left"}, "both say which key query 0 is at"),
    ],
)
def test_what_the_options_cannot_mean_is_refused(options, message):
    with pytest.raises(AttnscopeError, match=message):
        notices(aligned.first, **options)


def test_an_alignment_without_positions_has_no_effect_and_that_is_said(capsys):
    with pytest.warns(UserWarning, match="align has no effect"):
        compare(aligned.first, "sdpa", align="top-left")
