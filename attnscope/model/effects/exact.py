"""Effects of heads that are measured exactly: a run of the model for each head, many in one batch.

Source of activation patching: Vig et al. (2020), "Causal Mediation Analysis for Interpreting Neural
NLP"; Heimersheim and Nanda (2024), "How to use and interpret activation patching". Source of blocked
keys: Geva et al. (2023), "Dissecting Recall of Factual Associations in Auto-Regressive Language Models",
section 5 (attention knockout)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.model.effects.baseline import Baseline
from attnscope.model.effects.metric import predict
from attnscope.model.run.attention_hook import AttentionInputs, KernelCall, attention_inputs, intercepted
from attnscope.model.run.load import as_model_error
from attnscope.model.run.tokens import Token, parse_positions

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


# Blocked keys, which queries may not read, in one head or in all.

Heads = dict[int, list[list[int]]]
"""By the index of a layer: for each sequence, the heads in which keys are blocked."""


@dataclass(frozen=True)
class BlockedKeys:
    """Pairs of queries and keys, such that the query may not read the key."""

    pairs: Sequence[tuple[list[int], list[int]]]  #: the keys and the queries of each block
    #: which of them a layer's own mask shows, in any layer that ran: pairs of positions
    visible: set[tuple[int, int]] = field(default_factory=set)

    @property
    def notice(self) -> str | None:
        """A sentence about pairs that the model's own mask hides anyway; None: there are none."""
        every = {(query, key) for keys, queries in self.pairs for query in queries for key in keys}
        hidden = sorted(every - self.visible)
        if not hidden:
            return None
        query, key = hidden[0]
        which = (
            f"{len(hidden):,} of the {len(every):,} blocked pairs of a query and a key are hidden anyway"
        )
        if len(hidden) == len(every):
            which = "no query reads the blocked keys anyway"
        return f"{which}: the model's own mask hides key {key} from query {query}."

    def hidden(self, n_Q: int, n_K: int, device: torch.device) -> torch.Tensor:
        """Return which keys are hidden, `n_Q n_K`."""
        hidden = torch.zeros(n_Q, n_K, dtype=torch.bool, device=device)
        for keys, queries in self.pairs:
            hidden[torch.tensor(queries)[:, None], torch.tensor(keys)[None]] = True
        return hidden


def blocked_effects(
    baseline: Baseline, index: int, blocks: BlockedKeys, changes: Sequence[Change]
) -> list[float]:
    """Return how much the metric changes if keys are blocked in one head of a layer, for each head."""
    heads = {index: [[change.head] for change in changes]}
    values = _run(baseline, blocks, heads, len(changes), restart=True)
    return (values.double() - baseline.value).tolist()


def blocked_at_once(baseline: Baseline, blocks: BlockedKeys, heads: dict[int, list[int]]) -> float:
    """Return how much the metric changes if keys are blocked in several heads of several layers."""
    values = _run(baseline, blocks, {index: [own] for index, own in heads.items()}, 1, restart=False)
    return float(values[0]) - baseline.value


def _run(
    baseline: Baseline, blocks: BlockedKeys, heads: Heads, n_row: int, *, restart: bool
) -> torch.Tensor:
    """Return the metric of several sequences, in which keys are blocked in some heads.

    If it may restart, the layers before the only one with such heads return what they returned before.
    """
    index = {(layer.path, layer.turn): i for i, layer in enumerate(baseline.layers)}
    turns: dict[str, int] = {}

    def call(kernel: KernelCall) -> Any:
        turn = turns[kernel.path] = turns.get(kernel.path, -1) + 1
        own = heads.get(index.get((kernel.path, turn), -1))
        if own is None:
            return kernel.compute()
        return replace(kernel, mask=_mask(attention_inputs(kernel), blocks, own)).compute()

    repeated = {name: each.expand(n_row, *each.shape[1:]) for name, each in baseline.inputs.items()}
    path = baseline.layers[min(heads)].path if restart and baseline.restarts else ""
    with (
        torch.no_grad(),
        as_model_error(baseline.checkpoint),
        baseline.states.replayed(path, n_row),
        intercepted(baseline.model, call, kernels=("sdpa", "eager")),
    ):
        return baseline.metric.of(predict(baseline.model, repeated, baseline.metric))


def _mask(inputs: AttentionInputs, blocks: BlockedKeys, heads: list[list[int]]) -> torch.Tensor:
    """Return a mask that is added to the scores, `n_batch n_head n_Q n_K`, with more keys hidden."""
    n_batch, n_head, n_Q, _ = inputs.query.shape
    n_K = inputs.key.shape[-2]
    added = inputs.added_mask()
    if added is None:
        added = inputs.query.new_zeros(1, 1, n_Q, n_K)
    hidden = blocks.hidden(n_Q, n_K, inputs.query.device)
    lowest = torch.finfo(inputs.query.dtype).min
    visible = added > lowest / 2
    seen = (visible & hidden).expand(n_batch, n_head, n_Q, n_K).any(dim=0).any(dim=0)
    blocks.visible.update(map(tuple, seen.nonzero().tolist()))
    alone = (visible & ~hidden).any(dim=-1) < visible.any(dim=-1)
    if inputs.sinks is None and bool(alone.any()):
        query = int(alone.nonzero()[0, -1])
        raise OptionError(
            f"{spelled('block')} leaves query {query} no key to read.",
            hint="fewer keys, or another query",
        )
    mask = added.expand(n_batch, n_head, n_Q, n_K).clone()
    for row, own in enumerate(heads):
        mask[row, own] = mask[row, own].masked_fill(hidden, lowest)
    return mask


def parse_blocks(
    text: str, keys: Sequence[Token], queries: Sequence[Token]
) -> list[tuple[list[int], list[int]]]:
    """Return the keys and the queries of each block in a text: `0-3>last`, several separated by `;`."""
    blocks = []
    for part in text.split(";"):
        left, arrow, right = part.partition(">")
        if not arrow:
            raise OptionError(
                f"{spelled('block', f'{shortened(part.strip())!r}')} has no >.",
                hint=spelled(block="'KEYS>QUERIES'"),
            )
        blocks.append(
            (
                parse_positions(left, keys, "block"),
                parse_positions(right, queries, "block"),
            )
        )
    return blocks
