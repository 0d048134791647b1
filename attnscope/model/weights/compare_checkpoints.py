"""Compare the heads of two checkpoints by their weights: `attnscope.compare_checkpoints`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.text import nearest
from attnscope.model.files.adapter import AdaptedWeights, read_adapter
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.heads import Heads, heads_of
from attnscope.model.files.indices import Indices, check_indices, enumerated, parse_indices
from attnscope.model.files.layouts import Stack, choose_stack, find_stacks
from attnscope.model.files.tensors import Weights, open_weights
from attnscope.model.weights.differences import HeadDifferences
from attnscope.model.weights.head_weights import find_weights
from attnscope.model.weights.layer_difference import HINT, ROTATED, LayerDifference, check_comparable
from attnscope.model.weights.notices import Noticed, some

Opened = tuple[Checkpoint, Weights]
"""A checkpoint and its tensors, with an adapter or without."""


def compare_checkpoints(
    a: Any,
    b: Any = None,
    *,
    adapter: str | Path | None = None,
    stack: str | None = None,
    layers: Indices = None,
    heads: Indices = None,
    sort: str | None = None,
    reverse: bool = False,
    top: int | None = None,
    progress: Progress = silent,
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
        adapter: a folder in which PEFT has saved a LoRA adapter, which is merged into `b` in float32.
        stack: the stack of layers, if there are several; None: all.
        layers, heads: an index from 0, several, a range, or `0-3`; None or `all`: all.
        sort: the metric by which heads are ranked when shown, largest first; `rows` keep their order.
        reverse: rank the smallest first.
        top: the number of heads to show.
        progress: called with the progress of the work.

    Returns:
        For each head the relative changes of its weights, of QK and of OV, and the ranks of the changes.

    Raises:
        ModelError: there is no such model, stack, layer or head, files cannot be read, or the sizes of
            the two differ; or the adapter is not LoRA, or does not belong to `b`.
        OptionError: there is no such metric, or neither `b` nor an adapter.
    """
    if b is None and adapter is None:
        raise OptionError(
            "there is one model, but a comparison takes two.", hint="a second model, or --adapter FOLDER"
        )
    one = find_weights(a)
    other = one if b is None else find_weights(b)
    tensors = open_weights(one), open_weights(other)
    adapted = None if adapter is None else _adapted(other, tensors[1], adapter)
    pairs = _pairs((one, tensors[0]), (other, adapted or tensors[1]), stack)
    sizes = {each.stack.name: (each.stack.n_layer, each.n_head) for each, _ in pairs}
    chosen_layers, chosen_heads = parse_indices("--layer", layers), parse_indices("--head", heads)
    check_indices(
        one.name,
        list(sizes),
        chosen_layers or [],
        chosen_heads or [],
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
        sort=sort,
        reverse=reverse,
        top=top,
    )
    _check_metric(sort, pairs)
    if adapted is not None and adapted.unused:
        table.notices.append(f"{other.name} has no {some(adapted.unused)}, which the adapter adapts")
    with stage(progress, f"comparing {table.a} and {table.b} …"):
        _compare(table, pairs, chosen_layers, chosen_heads, progress, exact=b is None)
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
            hint=f"--sort {nearest(sort, metrics) or 'W_Q'}",
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
