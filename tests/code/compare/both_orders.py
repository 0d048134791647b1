"""Two modules with the same weights, one of them with a mistake, beside each other in both orders."""

import torch

from attnscope import compare


def compared(a, b, *inputs):
    torch.manual_seed(0)
    return compare(a(), b(), *inputs, weights="same")


def causes(result):
    """Return which tensors differ first, and why."""
    assert result.explained == all(each.cause for each in result.divergences)
    return [(each.role, each.cause) for each in result.divergences]


def assert_named_in_both_orders(right, wrong, inputs, roles, cause, in_reverse=None):
    assert causes(compared(right, wrong, *inputs)) == [(role, cause) for role in roles.split()]
    in_reverse = in_reverse or cause
    assert causes(compared(wrong, right, *inputs)) == [(role, in_reverse) for role in roles.split()]


def assert_equal_in_both_orders(one, other, inputs):
    assert causes(compared(one, other, *inputs)) == causes(compared(other, one, *inputs)) == []
