"""Causal: what follows a position does not change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from attnscope.auditing.measure.difference import Rows, RunDifference, difference
from attnscope.auditing.models.probe import Probe, PropertyTest, verdict
from attnscope.auditing.models.subject import ModelRun, batch_norms_of, batch_statistics
from attnscope.auditing.result import BROKEN, HOLDS, NOT_APPLICABLE, UNDECIDED, Property
from attnscope.base.spelling import spelled

NAME = "causal"

MOST_TOKENS = 2**13
"""The tokens of the texts that are read, at most: of a text of up to 90, every position is changed."""

MOST_NUMBERS = 2**26
"""The numbers that are recorded of one batch, at most: half a GiB in float64."""


def causal(probe: Probe, rows_are_independent: Callable[[], bool]) -> Property:
    """Change all tokens from a position on, for each position: nothing before it may move.

    If the sequences of a batch do not influence each other, the changed texts are rows of one batch.
    """
    source = probe.causal_source
    if probe.causal is None:
        return Property(NAME, UNDECIDED, source, f"not tested: {spelled('causal')} tests it")
    if not probe.causal:
        return Property(NAME, NOT_APPLICABLE, source, "")
    each = _in_batches if rows_are_independent() else _one_by_one
    result = _tested(probe, cuts(probe), each)
    if result.status == HOLDS and batch_norms_of(probe.subject.module):
        norms = [*batch_norms_of(probe.subject.module), *batch_norms_of(probe.subject.exact)]
        some = sorted({1, probe.n // 4, probe.n // 2, probe.n - 1})
        with batch_statistics(norms):
            training = _tested(replace(probe, _runs={}), some, _one_by_one)
        if training.status == BROKEN:
            return Property(NAME, BROKEN, source, f"in training, {training.found}", training.evidence)
    return result


def _tested(
    probe: Probe,
    positions: list[int],
    changes: Callable[[Probe, list[int]], Iterator[tuple[int, RunDifference]]],
) -> Property:
    def variants() -> Iterator[PropertyTest]:
        for cut, found in changes(probe, positions):
            changed = f"tokens from position {cut} on"
            moves = f"changing {changed} moves position {found.position}"
            yield PropertyTest(f"changing {changed}", found, changed, moves, slice(cut, None))

    equal = f"changing tokens from {_list(positions, probe.n - 1)} on moves none before"
    return verdict(probe, NAME, probe.causal_source, variants(), lambda _: equal, needs_all=True)


def cuts(probe: Probe) -> list[int]:
    """Return the positions from which tokens are changed: all, unless the text is long.

    Of a long text, these are some at equal distances, and those around the edges of chunks.
    """
    n = probe.n
    step = 1 if probe.thorough else -(-n * (n - 1) // MOST_TOKENS)
    found = {*range(1, n, step), n // 4, n // 2, n - 1}
    for limit in probe.limits:
        found |= {limit, limit + 1}
    return sorted(each for each in found if 0 < each < n)


def _in_batches(probe: Probe, positions: list[int]) -> Iterator[tuple[int, RunDifference]]:
    """Yield what moves before each position, with the changed texts as rows below the text itself."""
    recorded = sum(tensor.numel() for tensor in probe.base(False).stages.values())
    size = max(1, MOST_NUMBERS // recorded - 1)
    for first in range(0, len(positions), size):
        part = positions[first : first + size]
        ids = torch.cat([probe.ids, *(probe.texts.changed(probe.ids, slice(cut, None)) for cut in part)])

        @cache
        def both(exact: bool, ids: torch.Tensor = ids) -> ModelRun:
            return probe.subject.run(exact=exact, **probe.inputs(ids))

        for row, cut in enumerate(part, 1):

            def runs(exact: bool, row: int = row, cut: int = cut, both: Any = both) -> tuple[Rows, Rows]:
                run = both(exact)
                return run.rows(slice(0, cut)), run.rows(slice(0, cut), row)

            yield cut, difference(runs)


def _one_by_one(probe: Probe, positions: list[int]) -> Iterator[tuple[int, RunDifference]]:
    """Yield what moves before each position, with each changed text in a run of its own."""
    for cut in positions:
        other = probe.texts.changed(probe.ids, slice(cut, None))

        def runs(exact: bool, cut: int = cut, other: torch.Tensor = other) -> tuple[Rows, Rows]:
            changed = probe.subject.run(exact=exact, **probe.inputs(other))
            return probe.base(exact).rows(slice(0, cut)), changed.rows(slice(0, cut))

        yield cut, difference(runs)


def _list(positions: list[int], n: int) -> str:
    """Return positions in words, of `n` that could be changed."""
    if len(positions) == n and n > 1:
        return f"each of {n} positions"
    if len(positions) > 6:
        return f"{len(positions)} of {n} positions"
    return f"position {', '.join(map(str, positions))}"
