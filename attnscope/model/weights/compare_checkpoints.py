"""Compare the heads of two checkpoints by their weights: `attnscope.compare_checkpoints`."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isinf
from pathlib import Path
from typing import Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.options import with_keywords
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled
from attnscope.base.text import nearest
from attnscope.model.files.adapter import AdaptedWeights, read_adapter
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.heads import Heads, heads_of
from attnscope.model.files.indices import check_indices, enumerated, parse_indices
from attnscope.model.files.layouts import Stack, choose_stack, find_stacks
from attnscope.model.files.tensors import Weights, open_weights
from attnscope.model.heads.result import HeadRow, head_name
from attnscope.model.weights.differences import HeadDifferences
from attnscope.model.weights.head_weights import find_weights
from attnscope.model.weights.layer_difference import (
    CIRCUITS,
    HINT,
    ROTATED,
    LayerDifference,
    check_comparable,
)
from attnscope.model.weights.matrix_change import Order, described
from attnscope.model.weights.options import ComparedHeads

Opened = tuple[Checkpoint, Weights]
"""A checkpoint and its tensors, with an adapter or without."""


@with_keywords
def compare_checkpoints(
    a: Any, b: Any = None, *, of: ComparedHeads, progress: Progress = silent
) -> HeadDifferences:
    """Compare the attention weights of two checkpoints of one architecture, head by head.

    For example, a model before and after fine-tuning::

        change = attnscope.compare_checkpoints("gpt2", "./my-finetuned-gpt2")
        change = attnscope.compare_checkpoints("gpt2", adapter="./my-lora")
        change[3, 7].values["QK"]  # relative change of W_Qᵀ·W_K in layer 3, head 7
        change.ranked("OV", top=10)
        change.save("change.html")

    Layers are read one after the other, by ranges of bytes, without torch or transformers where weights
    are stored as safetensors.

    Args:
        a, b: the checkpoints, each as in `head_weights`: a folder, a hub name, a GGUF file, another file
            of weights beside its config.json, or a model that transformers has loaded. If `b` is None,
            it is `a` with the adapter.
        progress: called with the progress of the work.

    Returns:
        For each head the relative changes of its weights, of QK and of OV, and the ranks of the changes.

    Raises:
        ModelError: there is no such model, stack, layer or head, files cannot be read, or the sizes of
            the two differ; or the adapter is not LoRA, or does not belong to `b`.
        OptionError: there is no such metric, or neither `b` nor an adapter.
    """
    if b is None and of.adapter is None:
        raise OptionError(
            "there is one model, but a comparison takes two.",
            hint=f"a second model, or {spelled(adapter='FOLDER')}",
        )
    one = find_weights(a)
    other = one if b is None else find_weights(b)
    tensors = open_weights(one), open_weights(other)
    adapted = None if of.adapter is None else _adapted(other, tensors[1], of.adapter)
    pairs = _pairs((one, tensors[0]), (other, adapted or tensors[1]), of.stack)
    sizes = {each.stack.name: (each.stack.n_layer, each.n_head) for each, _ in pairs}
    layers, heads = parse_indices("layers", of.layers), parse_indices("heads", of.heads)
    check_indices(
        one.name,
        list(sizes),
        layers or [],
        heads or [],
        n_layer={name: n_layer for name, (n_layer, _) in sizes.items()},
        n_head={(each.stack.name, i): each.n_head for each, _ in pairs for i in each.stack.numbers},
    )
    table = HeadDifferences(
        a=one.name,
        b=other.name,
        adapter=None if adapted is None else adapted.adapter.name,
        dtypes=("", ""),
        metrics={},
        layers=sizes,
        rows=[],
        sort=of.sort,
        reverse=of.reverse,
        top=of.top,
    )
    _check_metric(of.sort, pairs)
    if adapted is not None and adapted.unused:
        table.notices.append(f"{other.name} has no {some(adapted.unused)}, which the adapter adapts")
    with stage(progress, f"comparing {table.a} and {table.b} …"):
        _compare(table, pairs, layers, heads, progress, exact=b is None)
    return table


def _check_metric(sort: str | None, pairs: list[tuple[Heads, Heads]]) -> None:
    """Raise an OptionError if no stack has the metric by which heads are ranked."""
    if sort is None:
        return
    first = [LayerDifference(one, other, min(one.stack.numbers)) for one, other in pairs]
    metrics = list(dict.fromkeys(name for each in first for name in each.metrics))
    if sort not in metrics:
        raise OptionError(
            f"there is no metric {sort}: there are {enumerated(metrics)}.",
            hint=spelled(sort=nearest(sort, metrics) or "W_Q"),
        )


def _compare(
    table: HeadDifferences,
    pairs: list[tuple[Heads, Heads]],
    layers: list[int] | None,
    heads: list[int] | None,
    progress: Progress,
    *,
    exact: bool,
) -> None:
    """Compare the selected layers, and add their rows and what is noticed to the table."""
    todo = [
        (one, other, layer)
        for one, other in pairs
        for layer in sorted(one.stack.numbers)
        if layers is None or layer in layers
    ]
    noticed = Noticed()
    dtypes: set[tuple[str, str]] = set()
    for done, (one, other, layer) in enumerate(todo):
        progress(f"comparing layer {layer} of {table.a} and {table.b} …", done / len(todo))
        difference = LayerDifference(one, other, layer, exact=exact)
        table.metrics |= {n: m for n, m in difference.metrics.items() if table.metrics.get(n) != ROTATED}
        dtypes |= difference.dtypes
        rows = [*difference.rows([i for i in range(one.n_head) if heads is None or i in heads])]
        table.rows += rows
        noticed.add(difference, rows)
    of_a, of_b = zip(*sorted(dtypes), strict=True)
    table.dtypes = " and ".join(dict.fromkeys(of_a)), " and ".join(dict.fromkeys(of_b))
    table.notices += noticed.sentences(table)
    for row in table.rows:  # layers of one model may have different tensors
        missing = dict.fromkeys(name for name in table.metrics if name not in row.values)
        row.values.update(missing)
        row.errors.update(missing)


def _adapted(checkpoint: Checkpoint, tensors: Weights, adapter: str | Path) -> AdaptedWeights:
    """Merge an adapter into a checkpoint's tensors."""
    stacks = find_stacks(tensors.names, checkpoint.config(), checkpoint.name)
    turns = any(stack.layout.transposed for stack in stacks)
    return AdaptedWeights(tensors, read_adapter(adapter), turns)


def _pairs(of_a: Opened, of_b: Opened, stack: str | None) -> list[tuple[Heads, Heads]]:
    """Pair the stacks of two checkpoints by name."""
    (a, tensors_a), (b, tensors_b) = of_a, of_b
    marks = (" (A)", " (B)") if a.name == b.name else ("", "")
    ours, theirs = _stacks(a, tensors_a, stack, marks[0]), _stacks(b, tensors_b, stack, marks[1])
    if ours.keys() != theirs.keys():
        name_a, name_b = f"{a.name}{marks[0]}", f"{b.name}{marks[1]}"
        raise ModelError(
            f"{name_a} and {name_b} cannot be compared: {name_a} has {enumerated(ours)} attention,"
            f" {name_b} has {enumerated(theirs)} attention.",
            hint=HINT,
        )
    pairs = [(ours[name], theirs[name]) for name in ours]
    for pair in pairs:
        check_comparable(*pair)
    return pairs


def _stacks(checkpoint: Checkpoint, tensors: Weights, name: str | None, mark: str) -> dict[str, Heads]:
    """Open the stacks of a checkpoint; only one if it has a name. Errors add a mark to its name."""
    config = checkpoint.config()
    stacks: list[Stack] = find_stacks(tensors.names, config, checkpoint.name)
    chosen = stacks if name is None else [choose_stack(stacks, name, checkpoint.name)]
    return {each.name: heads_of(checkpoint.name + mark, config, tensors, each) for each in chosen}


# What the numbers do not say.

MOST_NAMED = 3
"""The most tensors or heads that a notice names."""


@dataclass
class Noticed:
    """What is noticed in layers, one after the other."""

    others: list[str] = field(default_factory=list)
    #: what the two say of rotary positions, where they differ.
    rotations: dict[str, None] = field(default_factory=dict)
    #: by the matrices whose features have another order, and that order: the heads.
    permuted: dict[tuple[tuple[str, ...], Order], list[HeadRow]] = field(default_factory=dict)
    #: by the reason: the heads whose W_Q and W_K change, but not their product.
    undecided: dict[str, list[HeadRow]] = field(default_factory=dict)

    def add(self, difference: LayerDifference, rows: list[HeadRow]) -> None:
        """Add what is noticed in a layer."""
        self.others += difference.other_tensors()
        self.rotations |= dict.fromkeys(difference.other_rotation())
        for key, heads in difference.permuted.items():
            self.permuted.setdefault(key, []).extend(row for row in rows if row.head in heads)
        undecided = [row for row in rows if _is_undecided(row)]
        if undecided and difference.undecided:
            self.undecided.setdefault(difference.undecided, []).extend(undecided)

    def sentences(self, table: HeadDifferences) -> list[str]:
        """Return what is to be said beside the numbers of a table."""
        notices = []
        if self.others:
            notices.append(
                f"other tensors of attention differ, which belong to no head: {some(self.others)}"
            )
        if self.rotations:
            notices.append(
                "positions are rotated otherwise, so that heads with equal weights attend otherwise:"
                f" {some([*self.rotations])}"
            )
        notices += _of_circuits(table.rows)
        rotated = table.metrics.get("QK") == ROTATED
        notices += [_permutation(*each, rotated=rotated) for each in self.permuted.items()]
        notices += [
            "W_Q and W_K change, but W_Qᵀ·W_K does not; what heads attend to is undecided, because"
            f" {why}: {_places(rows)}"
            for why, rows in self.undecided.items()
        ]
        return notices + _of_values(table)


def _of_circuits(rows: list[HeadRow]) -> list[str]:
    """Name the heads whose weights change, but not what these do."""
    notices = []
    for name, (left, right, _) in CIRCUITS.items():
        of_rows = [(row, row.values.get) for row in rows]
        cancelled = [row for row, of in of_rows if of(name) == 0 and of(left) and of(right)]
        if cancelled:
            notices.append(
                f"{left} and {right} change, but {name} does not up to rounding, as if the head's basis"
                f" was rotated: {_places(cancelled)}"
            )
    return notices


def _of_values(table: HeadDifferences) -> list[str]:
    """Name the heads with changes that are infinite, or are none."""
    notices = []
    for name in table.metrics:
        undefined = [row for row in table.rows if isinf(row.values.get(name) or 0)]
        if undefined:
            notices.append(
                f"{name} is 0 in A and not in B, so that its relative change is infinite:"
                f" {_places(undefined)}"
            )
    missing = [row for row in table.rows if None in row.values.values() and not _is_undecided(row)]
    if missing:
        notices.append(f"NaN or infinity among the weights, which have no change: {_places(missing)}")
    return notices


def _is_undecided(row: HeadRow) -> bool:
    """Check whether a head's weights have changes, but its QK has none."""
    values = row.values
    return values.get("QK", 0) is None and None not in (values["W_Q"], values["W_K"])


def _permutation(found: tuple[tuple[str, ...], Order], rows: list[HeadRow], *, rotated: bool) -> str:
    """Say which matrices have the features of a head in another order, and what follows."""
    names, order = found
    what = "features" if "W_O" in names else "rows"
    other_pairs = rotated and {"W_Q", "W_K"} <= {*names} and all(row.values["QK"] for row in rows)
    follows = ", so that positions rotate other features together" if other_pairs else ""
    return (
        f"{what} of {enumerated(names)} are permuted within heads, {described(order)}{follows}:"
        f" {_places(rows)}"
    )


def _places(rows: list[HeadRow]) -> str:
    """Name the first few heads."""
    return some([head_name(row.layer, row.head) for row in rows])


def some(names: list[str]) -> str:
    """Name the first few, and count the others."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
