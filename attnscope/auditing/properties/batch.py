"""Batch: a sequence's outputs do not depend on the other sequences, or on their order."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnscope.auditing.measure.difference import Rows, RunDifference, difference
from attnscope.auditing.models.probe import Probe
from attnscope.auditing.properties.variants import PropertyTest, verdict
from attnscope.auditing.result import Property

NAME = "batch"
SOURCE = "every model"


def batch(probe: Probe) -> Property:
    """Exchange the other sequence of a batch of two, and their order."""
    text = probe.ids[:, : probe.n // 2]
    first, second = (probe.texts.drawn(text.shape[1]) for _ in range(2))
    pairs = {"the other sequence": ((text, second), 0), "the order of sequences": ((first, text), 1)}

    def variants() -> Iterator[PropertyTest]:
        for changed, (pair, row) in pairs.items():
            found = _compared(probe, (text, first), pair, row)
            moves = f"exchanging {changed} moves position {found.position}"
            yield PropertyTest("", found, changed, moves)
            if found.status == "undecided":
                return

    equal = "exchanging the other sequence, or their order, moves nothing"
    return verdict(probe, NAME, SOURCE, variants(), lambda _: equal, needs_all=True)


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
