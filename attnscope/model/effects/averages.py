"""Average effects over prompts: means, or shares of a mean difference, with standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnscope.model.effects.columns import FIRST_ORDER, PATCHED
from attnscope.model.effects.measure import PromptEffects

SHARES = (PATCHED, FIRST_ORDER)
"""The columns that are shares of a difference, if there are corrupted texts."""

UNDEFINED = 2.0**-18
"""The largest difference between two texts that rounding can make in float32, relative to the metric."""


@dataclass(frozen=True)
class MeasuredColumn:
    """One column of the table."""

    #: the effect on each head; of several prompts, the mean. None: not measured, or undefined.
    means: list[float | None]
    errors: list[float | None]  #: the standard errors of these means; None for a single prompt
    of_first: np.ndarray  #: the effects on the first prompt, `n_head n_position`
    resolution: float  #: what rounding to 16 bits changes; 0: the model has more bits
    is_undefined: bool  #: whether these are shares of nothing

    @classmethod
    def of(
        cls, found: Sequence[PromptEffects], name: str, keys: Sequence[Any], spans: np.ndarray | None
    ) -> MeasuredColumn:
        """Collect a column from all prompts.

        Of several prompts, a share is that of the mean difference, since shares of small differences
        would dominate their mean. Its standard error is that of a ratio of means: Cochran (1977),
        Sampling Techniques, equation 6.13. `spans` has each prompt's difference between both texts, if
        there are shares.
        """
        effects = np.stack([_effects_of(each, name, keys) for each in found])
        resolution = np.array([each.resolution.get(name, 0.0) for each in found])
        n, span, is_undefined = len(found), 1.0, False
        if spans is not None:
            span = float(spans.mean())
            sizes = [max(abs(each.baseline), abs(each.corrupted or 0.0), 1.0) for each in found]
            limit = max(UNDEFINED * float(np.mean(sizes)), float(resolution.mean()))
            is_undefined = abs(span) <= limit
            span = np.nan if is_undefined else span
        totals = np.stack([_strongest(effects[:, index]) for index in range(len(keys))])
        means = totals.mean(axis=1) / span
        errors = np.full(len(keys), np.nan)
        if n > 1:
            residuals = totals - (means[:, None] * spans if spans is not None else 0.0)
            errors = residuals.std(axis=1, ddof=1) / n**0.5 / abs(span)
        return cls(
            _known(means),
            _known(errors),
            effects[0] / span,
            float(np.sqrt((resolution**2).sum()) / n / abs(span)),
            is_undefined,
        )


def _known(values: np.ndarray) -> list[float | None]:
    """Return numbers as a list, with None for NaN."""
    return [None if np.isnan(each) else each for each in values.tolist()]


def _effects_of(effects: PromptEffects, column: str, keys: Sequence[Any]) -> np.ndarray:
    """Return the effects of one column on one prompt, `n_head n_position`; NaN: not measured."""
    of_heads = effects.values.get(column, {})
    longest = max((len(each) for each in of_heads.values()), default=1)
    return np.array([of_heads.get(key, [None] * longest) for key in keys], dtype=float)


def _strongest(effects: np.ndarray) -> np.ndarray:
    """Return the effect at the strongest position, or the only one, of `n_prompt n_position`."""
    known = np.nan_to_num(np.abs(effects), nan=-1.0)
    return np.take_along_axis(effects, known.argmax(axis=-1)[:, None], axis=-1)[:, 0]
