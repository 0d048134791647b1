"""Modules that keep their weights: where they differ, do the weights explain it, or the code?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnscope.comparison.report import comparison_of
from attnscope.comparison.result import Comparison
from attnscope.errors import AttnscopeError
from attnscope.implementations.implementation import Side
from attnscope.implementations.options import Pairing
from attnscope.implementations.same_inputs import is_live, keep_weights, with_weights_of


def explain_weights(
    result: Comparison,
    sides: tuple[Side, Side],
    targets: tuple[Any, Any],
    pairing: Pairing,
    part: str | None,
) -> None:
    """Add to a result with which weights both ran, and whether their weights explain a difference.

    Args:
        result: the comparison.
        sides: what was compared.
        targets: what the user passed: code, or the layer of a model.
        pairing, part: as in `comparison_of`.
    """
    keeps = keep_weights(*targets, pairing)
    if keeps or all(map(is_live, targets)):
        result.weights_used = "own" if keeps else "same"
    a, b = sides
    if not keeps or result.is_equal or a.module is None or b.module is None:
        return
    try:
        copies = with_weights_of(a, b, pairing, draws=False)
        again = comparison_of(a, b, copies, replace(pairing, backward=False), part=part)
    except AttnscopeError as error:
        result.notices.append(f"whether their weights explain it is unknown: {error.message}")
        return
    if again.is_equal:
        words = f"with the weights of {a.title} in both, they are equal: only their weights differ"
    elif again.divergences:
        first = again.divergences[0]
        cause = f" ({first.cause})" if first.cause else ""
        words = f"with the same weights they differ, too, first in {first.role}{cause}: so does the code"
    else:
        words = "with the same weights they differ, too"
    result.notices.append(words)
