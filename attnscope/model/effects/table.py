"""Average effects over prompts: means, or shares of a mean difference, with standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnscope.model.effects.measure import EffectSelection, PromptEffects
from attnscope.model.effects.options import (
    COLUMNS,
    FIRST_ORDER,
    FIRST_ORDER_PATCHED,
    MEAN,
    MEAN_OF_MANY,
    PATCHED,
    PATCHED_OF_MANY,
    STRONGEST,
    ZERO,
)
from attnscope.model.effects.prompt import MeasuredPrompt
from attnscope.model.effects.result import DirectSum, HeadEffects
from attnscope.model.heads.result import HeadRow
from attnscope.model.run.layers import STACKS

SHARES = (PATCHED, FIRST_ORDER)
"""The columns that are shares of a difference, if there are corrupted texts."""

UNDEFINED = 2.0**-18
"""The largest difference between two texts that rounding can make in float32, relative to the metric."""


def effects_table(
    model: str,
    prompts: Sequence[MeasuredPrompt],
    found: Sequence[PromptEffects],
    selection: EffectSelection,
) -> HeadEffects:
    """Return the means of the effects over prompts.

    Args:
        found: the effects on the prompts that were measured, the first of them at least.
    """
    first, of_first, n = found[0], prompts[0], len(found)
    layers = sorted(first.layers, key=lambda each: (STACKS.index(each.stack), each.number))
    keys = [(layer.stack, layer.number, head) for layer in layers for head in selection.heads_of(layer)]
    spans = np.array([each.baseline - (each.corrupted or 0.0) for each in found])
    corrupted = first.corrupted is not None
    columns = {
        name: MeasuredColumn.of(found, name, keys, spans if name in SHARES and corrupted else None)
        for name in COLUMNS
        if name in first.values
    }
    rows = [
        HeadRow(
            *key,
            {name: column.means[index] for name, column in columns.items()},
            {name: column.errors[index] for name, column in columns.items()},
        )
        for index, key in enumerate(keys)
    ]
    n_head: dict[str, tuple[int, int]] = {}
    for layer in layers:
        if any(row.stack == layer.stack for row in rows):
            _, most = n_head.get(layer.stack, (0, 0))
            n_head[layer.stack] = layer.n_layer, max(most, layer.n_head)
    table = HeadEffects(
        model=model,
        metrics=_meanings(list(columns), selection, corrupted=corrupted, several=n > 1),
        metric=of_first.meaning,
        baseline=sum(each.baseline for each in found) / n,
        layers=n_head,
        rows=rows,
        corrupted=_mean([each.corrupted for each in found]),
        prompts=n,
        tokens=sum(len(each.source) + len(each.target) for each in prompts[:n]),
        blocked=_mean([each.blocked for each in found]),
        resolution={name: each.resolution for name, each in columns.items() if each.resolution},
    )
    table.notices = [notice for prompt in prompts for notice in prompt.notices]
    table.notices += [notice for effects in found for notice in effects.notices]
    if any(column.is_undefined for column in columns.values()):
        table.notices.append(
            f"shares are undefined: the metric is {table.baseline:.4g} on both texts, so that there is"
            " no difference to restore."
        )
    if len(prompts) == 1:
        table.answer, table.against = of_first.answer, of_first.against
        table.sequence = of_first.source
    if selection.each_position:
        table.places = first.places
        table.positions = {name: column.of_first for name, column in columns.items()}
        tokens = of_first.tokens_of(rows[0].stack)
        table.sequence = tokens + (of_first.continued if tokens is of_first.source else [])
    if n == 1 and (direct := first.direct) is not None:
        of_heads, off = sum(float(each.sum()) for each in direct.heads), direct.total - direct.value
        table.direct = DirectSum(of_heads, direct.parts, direct.value, off, direct.capped)
    table.correlation = _correlation(table, PATCHED if corrupted else ZERO)
    return table


def _meanings(
    columns: Sequence[str], selection: EffectSelection, *, corrupted: bool, several: bool
) -> dict[str, str]:
    """Return the meaning of each column."""
    others = {FIRST_ORDER: FIRST_ORDER_PATCHED} if corrupted else {}
    others |= {PATCHED: PATCHED_OF_MANY, MEAN: MEAN_OF_MANY} if several else {}
    by_itself = STRONGEST if selection.each_position else ""
    return {name: others.get(name, COLUMNS[name]) + by_itself for name in columns}


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of numbers that all prompts have, or none has."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _correlation(table: HeadEffects, exact: str) -> float | None:
    """Return Pearson's correlation of the estimates and the exact effects; None: it is undefined.

    These are of heads, or of positions of heads. Exact effects below the resolution are left out.
    """
    names = FIRST_ORDER, exact
    if not {*names} <= {*table.metrics}:
        return None
    if table.positions:
        array = np.stack([table.positions[name].ravel() for name in names])
    else:
        array = np.array([[row.values[name] for row in table.rows] for name in names], dtype=float)
    resolved = np.abs(array[1]) > table.resolution.get(exact, -1)
    array = array[:, np.isfinite(array).all(axis=0) & resolved]
    if array.shape[1] < 3 or not array.std(axis=1).all():
        return None
    return float(np.corrcoef(array)[0, 1])


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
        noise = float(np.sqrt((resolution**2).sum()) / n / abs(span))
        return cls(_known(means), _known(errors), effects[0] / span, noise, is_undefined)


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
