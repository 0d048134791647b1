"""Measure how much rounding alone changes a model's maps.

Two implementations of the same attention (fused and eager) round differently, and later layers amplify
the difference. In most models, normalisation keeps it near the rounding error of one layer. Without
normalisation, as in MobileBERT (Sun et al. 2020, section 3.3: `NoNorm`), it grows from layer to layer,
and two correct runs may produce different maps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from attnscope.arrays import largest_difference
from attnscope.checkpoints.checkpoint import Checkpoint
from attnscope.errors import ModelError
from attnscope.models.maps.capture import HeadSelection, MapCollector
from attnscope.models.running.attention_hook import Call, observing
from attnscope.models.running.forward import run
from attnscope.models.running.layers import stack_of
from attnscope.models.running.load import as_model_error, load_eager
from attnscope.models.running.tokenize import Reading
from attnscope.models.running.tolerance import largest_score, weight_tolerance, weights_of

if TYPE_CHECKING:
    import torch


def spread_of_rounding(
    checkpoint: Checkpoint, model: Any, reading: Reading, selection: HeadSelection
) -> dict[str, float]:
    """Measure by stack how much rounding can change the maps of a model's eager attention.

    The model runs twice. In the second run, the output of each attention is perturbed by as much as
    rounding can change it, up or down at random.

    Args:
        checkpoint: the model's checkpoint, which is loaded again with eager attention.
        model: the loaded model, whose dtype and device are used.
        reading, selection: its inputs, and the selected maps.

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

    def capture(call: Call) -> None:
        stack = stack_of(call.path, eager.config, cross=call.cross)
        difference = math.inf if call.weights is None else _difference(call)
        if not difference <= weight_tolerance(call):
            unperturbed.unexplained[stack] = "its weights do not follow from its inputs"
        of_layer[call.path] = _rounding(call, difference)
        of_stack[stack] = max(of_stack[stack], of_layer[call.path])
        unperturbed.collect(call)

    def perturb(call: Call) -> torch.Tensor:
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
    return {stack: min(1, of_stack[stack] + _largest(unperturbed, perturbed, stack)) for stack in spread}


def _rounding(call: Call, difference: float) -> float:
    """Return the largest difference by rounding between two computations of a layer's weights.

    Args:
        call: the inputs and outputs of the layer's attention.
        difference: the result of `_difference`, which is where rounding in a narrow dtype shows.
    """
    import torch

    dtype = torch.promote_types(call.query.dtype, torch.float32)
    return (16 + 4 * largest_score(call)) * torch.finfo(dtype).eps + 2 * difference


def _difference(call: Call) -> float:
    """Return the largest difference of the weights that attention returned from those of its inputs."""
    assert call.weights is not None
    difference = 0.0
    for head in range(call.n_head):
        computed, *_ = weights_of(call, [head])
        difference = max(difference, largest_difference(computed, call.weights[0, [head]].to(computed)))
    return difference


def _largest(first: MapCollector, second: MapCollector, stack: str) -> float:
    """Return the largest difference between the maps of a stack in two runs."""
    pairs = zip(first.maps[stack].maps, second.maps[stack].maps, strict=True)
    return max(float(abs(one.attention - other.attention).max()) for one, other in pairs)
