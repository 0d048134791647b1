"""Functions whose outputs are not finite, complex, or dominated by one number."""

import torch


def right(Q, K, V, factor=1.0):
    return (factor * Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-1) @ V


def wrong(Q, K, V):
    return right(Q, K, V, factor=3.0)


def right_nan(Q, K, V):
    return right(Q, K, V) * float("nan")


def wrong_nan(Q, K, V):
    return wrong(Q, K, V) * float("nan")


def right_infinite(Q, K, V):
    return right(Q, K, V).abs() / 0


def wrong_infinite(Q, K, V):
    return wrong(Q, K, V).abs() / 0


def right_blind(Q, K, V, factor=1.0):
    """Query 1 sees no key."""
    hidden = torch.arange(Q.shape[-2])[:, None] == 1
    return (factor * Q @ K.mT / Q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ V


def wrong_blind(Q, K, V):
    return right_blind(Q, K, V, factor=3.0)


def _with(output, number):
    return output.index_fill(-1, torch.tensor([0]), number)


def right_large(Q, K, V):
    output = right(Q, K, V)
    return _with(output, torch.finfo(output.dtype).min)


def wrong_large(Q, K, V):
    output = wrong(Q, K, V)
    return _with(output, torch.finfo(output.dtype).min)


def right_filled(Q, K, V):
    return _with(right(Q, K, V), -1e9)


def wrong_filled(Q, K, V):
    return _with(right(Q, K, V) + 1e-3, -1e9)


def other_fill(Q, K, V):
    return _with(right(Q, K, V), -1.1e9)


def right_hidden(Q, K, V):
    return _with(right(Q, K, V), -torch.inf)


def wrong_hidden(Q, K, V):
    return _with(wrong(Q, K, V), -torch.inf)


def right_complex(Q, K, V):
    return torch.complex(V.mean(-2, keepdim=True).expand(*Q.shape[:-1], -1), right(Q, K, V))


def wrong_complex(Q, K, V):
    return torch.complex(V.mean(-2, keepdim=True).expand(*Q.shape[:-1], -1), wrong(Q, K, V))


def overflowing(Q, K, V):
    return right(Q, K, V) * 1e6 / 1e6


def at_a_corner(Q, K, V):
    """The slope of √0 is infinite, and infinity times 0 is NaN."""
    output = right(Q, K, V)
    return output + (output - output).abs().sqrt()
