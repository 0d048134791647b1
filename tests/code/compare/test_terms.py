"""What one side adds or multiplies alone, or elsewhere: found in both orders, with its line."""

import inspect

import pytest
import torch

from tests.code.compare.both_orders import (
    assert_equal_in_both_orders,
    assert_named_in_both_orders,
    compared,
)
from tests.code.compare.code import terms

X = torch.randn(2, 7, 40)


def source_of(site):
    """Return the line of the test's code that a site names."""
    return inspect.getsource(terms).splitlines()[site.line - 1].strip()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("right", "wrong", "role", "cause", "in_reverse"),
    [
        ("Gated", "Plain", "x_merged", "gate missing", "gate added"),
        ("GatedWhenMerged", "Plain", "x_merged", "factor missing", "factor added"),
        ("Gated", "GatedBySilu", "x_merged", "another function", "another function"),
        ("Biased", "Plain", "scores_masked", "position bias missing", "position bias added"),
        ("Biased", "BiasedBeforeTheScale", "scores_masked", "position bias in another place", "position bias in another place"),
        ("Difference", "OneMap", "attention_drop", "second map missing", "second map added"),
        ("DifferenceInOne", "OneMap", "attention_drop", "second map missing", "second map added"),
        ("Difference", "SumOfMaps", "attention_drop", "another function", "another function"),
        ("Difference", "SecondMapMasked", "attention_drop", "mask added", "mask missing"),
    ],
)  # fmt: skip
def test_a_term_of_one_side_is_found_in_both_orders(right, wrong, role, cause, in_reverse):
    right, wrong = getattr(terms, right), getattr(terms, wrong)
    assert_named_in_both_orders(right, wrong, [X], role, cause, in_reverse)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("one", "other"),
    [("Gated", "GatedWhenMerged"), ("Biased", "BiasedInOneStep"), ("Difference", "DifferenceInOne")],
)
def test_the_same_in_other_steps_has_no_cause(one, other):
    assert_equal_in_both_orders(getattr(terms, one), getattr(terms, other), [X])


@pytest.mark.sweep
def test_a_gate_is_named_with_its_line_and_the_weights_that_the_other_side_does_not_use():
    for a, b, side in ((terms.Gated, terms.Plain, "a"), (terms.Plain, terms.Gated, "b")):
        result = compared(a, b, X)
        [each] = result.divergences
        gate = "return y * self.g(x).sigmoid().unflatten(-1, (self.h, -1))"
        assert source_of(getattr(each, side)) == gate
        assert source_of(each.b if side == "a" else each.a) == "y = y.flatten(2)"
        assert "nor does it use g.bias, g.weight" in each.explanation
        assert any("g.weight, g.bias" in note and "not used" in note for note in result.notices)


@pytest.mark.sweep
def test_of_a_sum_the_term_that_differs_is_named():
    inputs = torch.randn(2, 7, 24), torch.randn(1, 7, 24)
    for a, b in ((terms.TwoTerms, terms.WrongTerm), (terms.WrongTerm, terms.TwoTerms)):
        [each] = compared(a, b, *inputs).divergences
        assert (each.role, each.cause) == ("scores_masked", "another operand")
        assert {source_of(each.a), source_of(each.b)} == {"return q + self.w", "return q + self.u"}
        in_a, in_b = ("w", "u") if a is terms.TwoTerms else ("u", "w")
        assert each.explanation == f"b computes this with {in_b}, a with {in_a}"


def test_a_bias_that_is_added_before_the_scale_is_named_with_both_lines():
    [each] = compared(terms.Biased, terms.BiasedBeforeTheScale, X).divergences
    assert source_of(each.a) == "return q @ k.mT / q.shape[-1] ** 0.5 + self.bias"
    assert source_of(each.b) == "return (q @ k.mT + self.bias) / q.shape[-1] ** 0.5"
    assert "adds bias to" in each.explanation


def test_another_bias_is_not_said_to_be_missing():
    [each] = compared(terms.Biased, terms.OtherBias, X).divergences
    assert (each.role, each.cause) == ("scores_masked", "another operand")
    assert each.explanation == "b computes this with other, a with bias"
