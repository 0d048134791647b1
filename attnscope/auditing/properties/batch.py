"""Batch: a sequence's outputs do not depend on the other sequences, or on their order."""

from __future__ import annotations

import torch

from attnscope.auditing.measure.difference import Rows, RunDifference, difference, equality
from attnscope.auditing.models.probe import Probe
from attnscope.auditing.result import BROKEN, HOLDS, UNDECIDED, Property

NAME = "batch"
SOURCE = "every model"


def batch(probe: Probe) -> Property:
    """Exchange the other sequence of a batch of two, and their order."""
    text = probe.ids[:, : probe.n // 2]
    first, second = (probe.texts.drawn(text.shape[1]) for _ in range(2))
    pairs = {"the other sequence": ((text, second), 0), "the order of sequences": ((first, text), 1)}
    amounts = []
    for changed, (pair, row) in pairs.items():
        found = _compared(probe, (text, first), pair, row)
        if found.status == "different":
            evidence = probe.evidence(found, changed)
            moves = f"exchanging {changed} moves position {found.position}"
            return Property(NAME, BROKEN, SOURCE, moves, evidence)
        if found.status == "undecided":
            return Property(NAME, UNDECIDED, SOURCE, found.why)
        amounts.append(found.amount)
    equal = f"exchanging the other sequence, or their order, moves nothing, {equality(max(amounts))}"
    return Property(NAME, HOLDS, SOURCE, equal)


def _compared(
    probe: Probe,
    before: tuple[torch.Tensor, torch.Tensor],
    after: tuple[torch.Tensor, torch.Tensor],
    row: int,
) -> RunDifference:
    """Compare the first sequence of a batch with itself in another row of the other batch."""

    def runs(exact: bool) -> tuple[Rows, Rows]:
        one = probe.once(
            ("batch", exact),
            lambda: probe.subject.run(exact=exact, **probe.inputs(torch.cat(before))),
        )
        other = probe.subject.run(exact=exact, **probe.inputs(torch.cat(after)))
        return one.rows(), other.rows(row=row)

    return difference(runs)
