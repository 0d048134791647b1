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
