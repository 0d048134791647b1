"""What one side adds or multiplies alone, or elsewhere: found in both orders, with its line."""

import inspect

import pytest
import torch

from tests.code.compare.both_orders import compared
from tests.code.compare.code import terms

X = torch.randn(2, 7, 40)


def source_of(site):
    """Return the line of the test's code that a site names."""
    return inspect.getsource(terms).splitlines()[site.line - 1].strip()


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
