"""Collect whole attention maps: run a model on one text or image, and recompute its weights.

The model runs once with a hook. For each selected layer, the weights of the selected heads are computed
from the queries, keys, mask and scale that its attention received; everything else is discarded. The
weights are checked by multiplying them with the values: if the result is not the output of the model's
own attention, or if the model does not call attention through transformers' registry, its maps are taken
from its own eager attention instead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.spelling import spelled
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.maps.capture import CollectedMaps, HeadSelection, MapCollector
from attnscope.model.run.attention_hook import observing
from attnscope.model.run.blockwise import FEW
from attnscope.model.run.eager import (
    SOME,
    check_returned,
    notice_of_masks,
    notice_of_outputs,
    returned_maps,
    why_eager,
)
from attnscope.model.run.forward import main_output, run
from attnscope.model.run.layers import STACKS, counts, stacks_that_run
from attnscope.model.run.load import as_model_error, disable_cache, load_eager
from attnscope.model.run.tokenize import Reading
from attnscope.model.run.value_norms import ValueNorms, checked, unweighed


def collect_maps(
    checkpoint: Checkpoint,
    model: Any,
    reading: Reading,
    selection: HeadSelection,
    *,
    keep: str | None = None,
    norms: ValueNorms | None = None,
    keep_weights: bool = False,
) -> CollectedMaps:
    """Run a model and collect the maps of the selected heads.

    Args:
        checkpoint: the model's checkpoint; it is loaded again if eager attention is needed.
        keep: a stack; the inputs and outputs of its first selected layer's attention are kept, too.
        norms: the norms of values by which weights are multiplied; None: they are not.
    """
    disable_cache(model)
    collector = MapCollector(
        checkpoint.name, model, reading, selection, keep, norms=norms, keep_weights=keep_weights
    )
    with checked(norms), observing(model, collector.compute), as_model_error(checkpoint):
        output = run(model, reading)
    collected = collector.result(main_output(output))
    stacks = selected_stacks(model, reading, selection)
    collected.eager = why_eager(checkpoint.name, stacks, collector.unexplained, collector.n_layer)
    if collected.eager and norms is not None:
        raise no_values(next(iter(collected.eager.values())))
    if collected.eager:
        eager = eager_maps(checkpoint, model, reading, selection, list(collected.eager))
        _take_eager(collected, eager)
        add_notice(
            collected,
            notice_of_outputs(checkpoint.name, collected.output, eager.output),
            collected.eager,
        )
    add_notice(collected, norms.notice if norms else None)
    if len(collected.eager) < len(stacks) and not reading.picture:
        few = first_tokens(reading, SOME)
        add_notice(
            collected, notice_of_masks(checkpoint.name, model, lambda: run(model, few, logits=False))
        )
    return collected


def norms_of_values(checkpoint: Checkpoint, model: Any, reading: Reading) -> ValueNorms:
    """Find the output projections of a model by a run on a few tokens, for the norms of values."""
    disable_cache(model)
    few = reading if reading.picture else first_tokens(reading, FEW)
    with as_model_error(checkpoint):
        return ValueNorms(checkpoint.name, model, lambda: run(model, few, logits=False))


def no_values(reason: str) -> ModelError:
    """Return the error that weights cannot be weighed by values, since these are unknown."""
    return ModelError(f"{reason}. So the values that its heads collect are unknown.", hint=unweighed())


def first_tokens(reading: Reading, n: int) -> Reading:
    """Truncate inputs to the first `n` tokens."""
    inputs = {name: tensor[:, :n] for name, tensor in reading.inputs.items()}
    return replace(reading, inputs=inputs, source=reading.source[:n], target=reading.target[:n])


def add_notice(
    collected: CollectedMaps, notice: str | None, stacks: Collection[str] | None = None
) -> None:
    """Add a notice, unless it is None, to the maps of some stacks, or of all."""
    for maps in collected.stacks if notice else []:
        if stacks is None or maps.stack in stacks:
            maps.notices.append(str(notice))


def selected_stacks(model: Any, reading: Reading, selection: HeadSelection) -> list[str]:
    """Return the selected stack, or all stacks that run."""
    picture, decodes = reading.picture is not None, bool(reading.target)
    runs = stacks_that_run(model.config, picture=picture, decodes=decodes)
    return [selection.stack] if selection.stack else runs


def _take_eager(collected: CollectedMaps, eager: CollectedMaps) -> None:
    """Replace stacks that could not be observed or explained by the model's own eager maps."""
    for stack in eager.stacks:
        stack.notices.append(
            f"{collected.eager[stack.stack]}. These maps are from its own eager attention."
        )
    known = {each.stack: each for each in collected.stacks if each.stack not in collected.eager}
    known |= {each.stack: each for each in eager.stacks}
    collected.stacks = [known[stack] for stack in STACKS if stack in known]
    collected.layers = {
        key: n for key, n in collected.layers.items() if key[0] not in collected.eager
    } | eager.layers
    collected.n_layer |= eager.n_layer


def eager_maps(
    checkpoint: Checkpoint,
    model: Any,
    reading: Reading,
    selection: HeadSelection,
    stacks: Collection[str],
) -> CollectedMaps:
    """Collect the maps that a model's own eager attention returns.

    They are captured where each layer returns them, so that layers without attention do not shift the
    indices of the others; or else taken from `output_attentions`.

    Args:
        checkpoint: the model's checkpoint, which is loaded again with eager attention.
    """
    eager = load_eager(checkpoint, model)
    collector = MapCollector(checkpoint.name, eager, reading, selection, stacks=stacks)
    with observing(eager, collector.collect), as_model_error(checkpoint):
        output = run(eager, reading)
    for stack in collector.unexplained:
        collector.forget(stack)
    if not set(stacks) <= set(collector.n_layer):
        # This holds all maps of all layers at once, but there is no other way.
        with as_model_error(checkpoint):
            output = run(eager, reading, output_attentions=True)
        picture = reading.picture is not None
        for stack, maps in returned_maps(checkpoint.name, output, model.config, picture=picture):
            if stack not in stacks or stack in collector.n_layer:
                continue
            for layer, attention in enumerate(maps):
                collector.collect_map(stack, layer, len(maps), attention)
    check_returned(
        checkpoint.name, model, stacks, collector.n_layer, other=f"another {spelled('stack')}"
    )
    return collector.result(main_output(output))


def bytes_of_maps(config: Any, reading: Reading, selection: HeadSelection) -> int:
    """Return the bytes of whole maps in float32, estimated from a configuration."""
    n = max(len(reading.source), len(reading.labels))
    if reading.picture:
        n = reading.picture.rows * reading.picture.columns
    return 4 * n * n * number_of_maps(config, reading, selection)


ROLLOUT_MATRICES = 3
"""The number of matrices of a map's size that a rollout needs while it is computed."""


def number_of_maps(config: Any, reading: Reading, selection: HeadSelection) -> int:
    """Return the number of selected heads, estimated from a configuration."""
    n_layer, n_head = counts(config, reading)
    if selection.layers is not None:
        n_layer = 1 if selection.layers == "first" else len(selection.layers)
    if selection.rollout:
        return (n_layer or 1) + ROLLOUT_MATRICES
    if selection.heads is not None:
        n_head = len(selection.heads)
    return (n_layer or 1) * (n_head or 1)
