"""The numbers of the optional stages: which values they may have."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled


def check_rope_theta(value: float) -> None:
    """Raise an OptionError unless a number can be the base of rotary positions."""
    if not 0 < value < inf:
        raise OptionError(
            f"the rotary base is {value:g}, but it must be above 0.", hint=spelled(rope_theta=10000)
        )


def check_softcap(value: float) -> None:
    """Raise an OptionError unless a number can bound scores; infinity bounds nothing."""
    if not value > 0:
        raise OptionError(
            f"the soft cap is {value:g}, but it must be above 0.", hint=spelled(softcap=50)
        )


def check_scale(value: float) -> None:
    """Raise an OptionError unless a number can be the factor of the scores."""
    if not isfinite(value):
        raise OptionError(f"the scale is {value:g}, but it must be finite.", hint=spelled(scale=0.125))


def check_dropout(value: float) -> None:
    """Raise an OptionError unless a number can be the fraction of weights that training drops."""
    if not 0 <= value <= 1:
        raise OptionError(
            f"dropout is {value}, but a probability is between 0 and 1.", hint=spelled(dropout=0.1)
        )


CHECKS: dict[str, Callable[[float], None]] = {
    "dropout": check_dropout,
    "rope_theta": check_rope_theta,
    "scale": check_scale,
    "softcap": check_softcap,
}
"""By the name of the argument."""
