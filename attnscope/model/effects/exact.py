"""Effects of heads that are measured exactly: a run of the model for each head, many in one batch.

Source of activation patching: Vig et al. (2020), "Causal Mediation Analysis for Interpreting Neural
NLP"; Heimersheim and Nanda (2024), "How to use and interpret activation patching"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from attnscope.model.effects.baseline import Baseline

Advance = Callable[[int], bool]
"""Called after each batch with the number of its changes; returns whether to go on."""


@dataclass(frozen=True)
class Change:
    """A change of one head."""

    head: int
    positions: tuple[int, ...] | None  #: the queries whose output is replaced; None: all


def changes_of(
    heads: Sequence[int], at: Sequence[int] | None, each_position: bool, n_position: int
) -> list[Change]:
    """List the changes of a layer's heads: one for each head, or for each head and position."""
    if not each_position:
        positions = None if at is None else tuple(at)
        return [Change(head, positions) for head in heads]
    places = range(n_position) if at is None else at
    return [Change(head, (place,)) for head in heads for place in places]


def exact_effects(
    changes: Sequence[Change],
    measure: Callable[[Sequence[Change]], list[float]],
    n_row: int,
    advance: Advance,
) -> list[float | None]:
    """Return how much the metric changes with each change of one layer; None: it was interrupted.

    A function measures a batch of changes, all of which are at the same positions.
    """
    effects: dict[Change, float | None] = dict.fromkeys(changes)
    by_positions: dict[tuple[int, ...] | None, list[Change]] = {}
    for change in changes:
        by_positions.setdefault(change.positions, []).append(change)
    for same in by_positions.values():
        for start in range(0, len(same), n_row):
            batch = same[start : start + n_row]
            effects |= zip(batch, measure(batch), strict=True)
            if not advance(len(batch)):
                return [effects[change] for change in changes]
    return [effects[change] for change in changes]


def replaced_effects(
    baseline: Baseline, index: int, others: torch.Tensor, batch: Sequence[Change]
) -> list[float]:
    """Return how much the metric changes if heads of a layer have other outputs, `n_Q n_head d_V`."""
    rows = [_replaced(baseline.outputs[index], others, change) for change in batch]
    first = baseline.first_computed(batch[0].positions)
    values = baseline.run(index, torch.stack(rows), [change.head for change in batch], first)
    return (values.double() - baseline.value).tolist()


def _replaced(own: torch.Tensor, others: torch.Tensor, change: Change) -> torch.Tensor:
    """Return a head's output with some positions replaced, `n_Q d_V`."""
    if change.positions is None:
        return others[:, change.head]
    output = own[:, change.head].clone()
    places = list(change.positions)
    output[places] = others[places, change.head]
    return output


def mean_output(output: torch.Tensor) -> torch.Tensor:
    """Return the mean of heads' outputs over positions, `n_Q n_head d_V`, in float32 at least."""
    precise = output.to(torch.promote_types(output.dtype, torch.float32))
    return precise.mean(dim=0, keepdim=True).expand_as(output)


LAYERS, HEADS = 4, 8  #: the most layers, and the most heads of each, whose outputs are rounded otherwise


def rounds(model: torch.nn.Module) -> str | None:
    """Return the dtype of 16 bits in which a model computes; None: it has more bits."""
    dtypes = [each.dtype for each in model.parameters() if each.is_floating_point()]
    narrow = [each for each in dtypes if each in (torch.bfloat16, torch.float16)]
    return str(narrow[0]).removeprefix("torch.") if narrow else None


def resolution_of(baseline: Baseline, n_row: int) -> float:
    """Return three times the largest change of the metric that rounding alone makes in a few runs.

    An effect is a difference between two runs, each of which rounds otherwise, so that the difference of
    their roundings is in it. How large that is, runs tell in which heads' outputs are rounded otherwise,
    and nothing else is changed.

    That is at least three times the distance between two numbers of the model's dtype that are as large
    as the logits that the metric reads.
    """
    drawing = torch.Generator().manual_seed(0)
    largest = _spacing(baseline)
    n_layer = len(baseline.layers)
    for index in range(0, n_layer, -(-n_layer // LAYERS)):
        heads = list(range(min(baseline.layers[index].n_head, HEADS, n_row)))
        replaced = [_rounded(baseline.outputs[index][:, head], drawing) for head in heads]
        values = baseline.run(index, torch.stack(replaced), heads)
        largest = max(largest, float((values.double() - baseline.value).abs().max()))
    return 3 * largest


def _rounded(output: torch.Tensor, drawing: torch.Generator) -> torch.Tensor:
    """Return numbers, each a unit in the last place or two larger or smaller."""
    signs = torch.randint(2, output.shape, generator=drawing).to(output.device) * 2 - 1
    precise = output.float()
    return (precise + precise * signs * torch.finfo(output.dtype).eps).to(output.dtype)


def _spacing(baseline: Baseline) -> float:
    """Return the distance between numbers of the size of the logits that the metric reads."""
    prediction, metric = baseline.prediction, baseline.metric
    if prediction.dtype not in (torch.bfloat16, torch.float16) or metric.embedding is not None:
        return 0.0
    logits = prediction if metric.positions is not None else prediction[:, None]
    answers: Sequence[int] = [*metric.answer, *([] if metric.against is None else [metric.against])]
    size = float(logits[..., list(answers)].abs().float().mean())
    return size * torch.finfo(prediction.dtype).eps
