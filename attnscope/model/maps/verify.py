"""Compare attnscope's maps with the model's own, and the output of a model with and without hooks."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.base.arrays import largest_difference
from attnscope.base.errors import ModelError
from attnscope.base.spelling import spelled
from attnscope.document.grid.pooling import Pooling
from attnscope.document.result import Check
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.maps.capture import CollectedMaps, HeadSelection, MapCollector
from attnscope.model.maps.collect import eager_maps
from attnscope.model.maps.result import AttentionMaps
from attnscope.model.run.attention_hook import AttentionCall, observing
from attnscope.model.run.forward import main_output, run
from attnscope.model.run.layers import stack_of
from attnscope.model.run.load import as_model_error, load_eager
from attnscope.model.run.tokenize import Reading
from attnscope.model.run.validate import (
    NotWeightsError,
    eager_tolerance,
    largest_score,
    weight_tolerance,
    weights_of,
)

if TYPE_CHECKING:
    import numpy as np
    import torch


def verify(
    checkpoint: Checkpoint,
    model: Any,
    reading: Reading,
    selection: HeadSelection,
    collected: CollectedMaps,
    *,
    what: str = "map",
) -> list[Check]:
    """Make two comparisons with the model itself.

    The weights computed from queries, keys, mask and scale must equal those that its own eager attention
    returns. And the hooks must not change a single bit of the model's output. Maps that were pooled
    during the run are compared with its own, pooled; then attnscope computed attention in place of the
    model, so that the output differs by rounding and is not compared.

    Returns:
        A check for the maps of each stack, and one for the output, unless maps are pooled.
    """
    eager_stacks = [each for each in collected.stacks if each.stack in collected.eager]
    ours = [each for each in collected.stacks if each.stack not in collected.eager]
    checks = [
        Check(
            _name(each, what),
            None,
            None,
            None,
            note="not compared: these maps are from its eager attention",
        )
        for each in eager_stacks
    ]
    if ours:
        stacks = [each.stack for each in ours]
        try:
            eager = eager_maps(checkpoint, model, reading, selection, stacks)
        except NotWeightsError:
            note = "not compared: its eager attention does not return weights"
            checks += [Check(_name(each, what), None, None, None, note=note) for each in ours]
        else:
            theirs = {each.stack: each for each in eager.stacks}
            of_maps = {
                each.stack: _of_maps(each, theirs[each.stack], model.dtype, what) for each in ours
            }
            if any(not check.ok for check in of_maps.values()):
                spread = _spread_of_rounding(checkpoint, model, reading, selection)
                for stack in of_maps.keys() & spread.keys():
                    of_maps[stack] = _beside_rounding(of_maps[stack], spread[stack], model.dtype)
            checks += of_maps.values()
    if any(each.pooling for each in ours):
        return checks
    with as_model_error(checkpoint):
        plain = main_output(run(model, reading))
    difference = largest_difference(collected.output, plain)
    return [*checks, Check.within("output, hooked = unhooked", difference, 0.0)]


def _of_maps(ours: AttentionMaps, theirs: AttentionMaps, dtype: torch.dtype, what: str) -> Check:
    """Compare two sets of maps by their largest difference."""
    import torch

    pairs = _pairs(ours, theirs)
    tolerance, note = eager_tolerance(dtype)
    largest = _largest(pairs)
    whole = max(1e-3, pairs[0][1].shape[-1] * torch.finfo(dtype).eps)
    if not largest <= tolerance and all(abs(other.sum(-1) - 1).max() <= whole for _, other in pairs):
        # A sink may take its part after the softmax, while the weights returned are those before.
        without = _largest([(one / one.sum(-1, keepdim=True), other) for one, other in pairs])
        if without <= tolerance:
            largest = without
            note = (
                "compared without the sink's share, which the model removes from the weights that"
                " it returned"
            )
    return Check.within(_name(ours, what), largest, tolerance, note)


def _beside_rounding(check: Check, spread: float, dtype: torch.dtype) -> Check:
    """Return the same check, with `ok` None if rounding alone explains the difference."""
    import torch

    if check.ok or check.max_abs_diff is None or not check.max_abs_diff <= spread:
        return check
    note = f"rounding alone makes two runs of its eager attention differ by up to {spread:.2g}"
    note += " here, because each layer amplifies it"
    return replace(
        check, ok=None, note=note if dtype == torch.float64 else f"{note}: {spelled('dtype', 'float64')}"
    )


def _pairs(ours: AttentionMaps, theirs: AttentionMaps) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of maps to compare; for pooled maps, of the means and the maxima of the cells."""
    import torch

    pairs = []
    for one, other in zip(ours.maps, theirs.maps, strict=True):
        if ours.pooling is None:
            pairs.append((one.attention, other.attention))
        else:
            mean, largest = _pooled(other.attention, ours.pooling)
            pairs += [(one.mean, mean), (one.max, largest)]
    return [(torch.from_numpy(one), torch.from_numpy(other)) for one, other in pairs]


def _pooled(attention: np.ndarray, pooling: Pooling) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the largest weight of each cell of a whole map."""
    import numpy as np

    first = pooling.queries[0].start
    rows, columns = (
        [cell.start - first for cell in pooling.queries],
        [cell.start for cell in pooling.keys],
    )
    high, wide = (np.array([len(cell) for cell in axis]) for axis in (pooling.queries, pooling.keys))
    sums = np.add.reduceat(np.add.reduceat(attention, rows, axis=0), columns, axis=1)
    largest = np.maximum.reduceat(np.maximum.reduceat(attention, rows, axis=0), columns, axis=1)
    return (sums / high[:, None] / wide).astype("float32"), largest


def _largest(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the largest difference in any pair; NaN if only one of two values is NaN."""
    import torch

    return float(torch.tensor([largest_difference(*pair) for pair in pairs]).max())


def _name(maps: AttentionMaps, what: str) -> str:
    n = len(maps.maps)
    kind = "" if maps.stack == "self" else f"{maps.stack} "
    kind = f"{kind}pooled " if maps.pooling else kind
    theirs = "those" if n > 1 else "that"
    return f"{n} {kind}{what}{'s' * (n > 1)} = {theirs} of the model's own eager attention"


# How much rounding alone changes.


def _spread_of_rounding(
    checkpoint: Checkpoint, model: Any, reading: Reading, selection: HeadSelection
) -> dict[str, float]:
    """Measure by stack how much rounding can change the maps of a model's eager attention.

    Two implementations of the same attention (fused and eager) round differently, and later layers
    amplify the difference. In most models, normalisation keeps it near the rounding error of one layer.
    Without normalisation, as in MobileBERT (Sun et al. 2020, section 3.3: `NoNorm`), it grows from layer
    to layer, and two correct runs may produce different maps.

    The model runs twice. In the second run, the output of each attention is perturbed by as much as
    rounding can change it, up or down at random.

    Args:
        checkpoint: the model's checkpoint, which is loaded again with eager attention.

    Returns:
        The largest difference of each stack, except stacks whose attention cannot be captured, or
        returns weights that do not follow from its inputs: differences there are not rounding.
    """
    import torch

    eager = load_eager(checkpoint, model)
    unperturbed, perturbed = (MapCollector(checkpoint.name, eager, reading, selection) for _ in range(2))
    of_stack: dict[str, float] = defaultdict(float)
    of_layer: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)

    def capture(call: AttentionCall) -> None:
        stack = stack_of(call.path, eager.config, cross=call.cross)
        difference = math.inf if call.weights is None else _difference_of_weights(call)
        if not difference <= weight_tolerance(call):
            unperturbed.unexplained[stack] = "its weights do not follow from its inputs"
        of_layer[call.path] = _rounding(call, difference)
        of_stack[stack] = max(of_stack[stack], of_layer[call.path])
        unperturbed.collect(call)

    def perturb(call: AttentionCall) -> torch.Tensor:
        perturbed.collect(call)
        signs = torch.randint(0, 2, call.output.shape, generator=generator).to(call.output) * 2 - 1
        return call.output + min(1, of_layer[call.path]) * float(call.value.abs().max()) * signs

    with observing(eager, capture), as_model_error(checkpoint):
        run(eager, reading)
    spread = {stack: 1.0 for stack in unperturbed.maps if stack not in unperturbed.unexplained}
    try:
        with observing(eager, perturb), as_model_error(checkpoint):
            run(eager, reading)
    except ModelError:  # a finite value became infinite by rounding, so nothing is known of the maps
        return spread
    return {
        stack: min(1, of_stack[stack] + _largest_of_stack(unperturbed, perturbed, stack))
        for stack in spread
    }


def _rounding(call: AttentionCall, difference: float) -> float:
    """Return the largest difference by rounding between two computations of a layer's weights.

    Args:
        difference: that of the weights themselves, where rounding in a narrow dtype shows.
    """
    import torch

    dtype = torch.promote_types(call.query.dtype, torch.float32)
    return (16 + 4 * largest_score(call)) * torch.finfo(dtype).eps + 2 * difference


def _difference_of_weights(call: AttentionCall) -> float:
    """Return the largest difference of the weights that attention returned from those of its inputs."""
    assert call.weights is not None
    difference = 0.0
    for head in range(call.n_head):
        computed, *_ = weights_of(call, [head])
        difference = max(difference, largest_difference(computed, call.weights[0, [head]].to(computed)))
    return difference


def _largest_of_stack(first: MapCollector, second: MapCollector, stack: str) -> float:
    """Return the largest difference between the maps of a stack in two runs."""
    pairs = zip(first.maps[stack].maps, second.maps[stack].maps, strict=True)
    return max(float(abs(one.attention - other.attention).max()) for one, other in pairs)
