"""Effects of heads that are measured exactly: a run of the model for each head, many in one batch.

Source of activation patching: Vig et al. (2020), "Causal Mediation Analysis for Interpreting Neural
NLP"; Heimersheim and Nanda (2024), "How to use and interpret activation patching"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from attnscope.head_effects.baseline import Baseline

Advance = Callable[[int], bool]
"""Called after each batch with the number of its changes; returns whether to go on."""


@dataclass(frozen=True)
class Change:
    """A change of one head.

    Attributes:
        head: the head.
        positions: the queries whose output is replaced; None: all.
    """

    head: int
    positions: tuple[int, ...] | None


def changes_of(
    heads: Sequence[int], at: Sequence[int] | None, each_position: bool, n_position: int
) -> list[Change]:
    """List the changes of a layer's heads: one for each head, or for each head and position.

    Args:
        heads: the heads.
        at: the positions to change; None: all.
        each_position: whether to change each position by itself.
        n_position: the number of queries.
    """
    if not each_position:
        positions = None if at is None else tuple(at)
        return [Change(head, positions) for head in heads]
    places = range(n_position) if at is None else at
    return [Change(head, (place,)) for head in heads for place in places]


def exact_effects(
    baseline: Baseline,
    index: int,
    changes: Sequence[Change],
    others: torch.Tensor,
    n_row: int,
    advance: Advance,
) -> list[float | None]:
    """Return how much the metric changes with each change of one layer; None: it was interrupted.

    Args:
        baseline: the run without a change.
        index: the layer, as an index into `baseline.layers`.
        changes: the changes.
        others: the outputs that replace those of the heads, `n_Q n_head d_V`.
        n_row: the number of changes in a batch.
        advance: called after each batch; returns whether to go on.
    """
    effects: dict[Change, float | None] = dict.fromkeys(changes)
    for batch in _batches_of_positions(changes, n_row):
        rows = [_replaced(baseline.outputs[index], others, change) for change in batch]
        first = baseline.first_computed(batch[0].positions)
        values = baseline.run(index, torch.stack(rows), [change.head for change in batch], first)
        effects |= zip(batch, (values.double() - baseline.value).tolist(), strict=True)
        if not advance(len(batch)):
            break
    return [effects[change] for change in changes]


def _batches_of_positions(changes: Sequence[Change], n_row: int) -> Iterator[Sequence[Change]]:
    """Divide changes into batches, each of changes at the same positions."""
    by_positions: dict[tuple[int, ...] | None, list[Change]] = {}
    for change in changes:
        by_positions.setdefault(change.positions, []).append(change)
    for same in by_positions.values():
        yield from batches(same, n_row)


def _replaced(own: torch.Tensor, others: torch.Tensor, change: Change) -> torch.Tensor:
    """Return a head's output with some positions replaced, `n_Q d_V`."""
    if change.positions is None:
        return others[:, change.head]
    output = own[:, change.head].clone()
    places = list(change.positions)
    output[places] = others[places, change.head]
    return output


def batches(changes: Sequence[Change], n_row: int) -> Iterator[Sequence[Change]]:
    """Divide changes into batches."""
    for start in range(0, len(changes), n_row):
        yield changes[start : start + n_row]


def mean_output(output: torch.Tensor) -> torch.Tensor:
    """Return the mean of heads' outputs over positions, `n_Q n_head d_V`, in float32 at least."""
    precise = output.to(torch.promote_types(output.dtype, torch.float32))
    return precise.mean(dim=0, keepdim=True).expand_as(output)
