"""Measure how far rounding alone moves a model's maps.

Two attentions that are the same in theory (fused and eager) round differently, and the layers above
amplify that. Most models normalise what they compute, and it stays near what one layer rounds. Where
nothing is normalised, as in MobileBERT (Sun et al. 2020, section 3.3: `NoNorm`), it grows from layer to
layer, and two runs may end in different maps without any fault.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from attnscope.checkpoints.find import Checkpoint
from attnscope.errors import ModelError
from attnscope.models.maps.capture import HeadSelection, MapCollector
from attnscope.models.running.attention_hook import Call, observing
from attnscope.models.running.forward import run
from attnscope.models.running.layers import stack_of
from attnscope.models.running.load import load_eager, told_as_the_models_fault
from attnscope.models.running.tokenize import Reading
from attnscope.models.running.tolerance import difference_of, largest_score, weight_tolerance, weights_of

if TYPE_CHECKING:
    import torch


def spread_of_rounding(
    checkpoint: Checkpoint, model: Any, reading: Reading, wanted: HeadSelection
) -> dict[str, float]:
    """The largest difference that rounding makes to the maps of a model's eager attention, by stack.

    The model runs twice. In the second run, what each attention returns is changed by as much as
    rounding may change it, up or down at random.

    Args:
        checkpoint: where it is loaded from once more, with eager attention.
        model: the one that is there: its dtype and device are taken.
        reading, wanted: what it reads, and which maps.

    Returns:
        Nothing of a stack whose attention is not seen, or returns other weights than those that follow
        from what it was given: what differs there is not rounding.
    """
    import torch

    eager = load_eager(checkpoint, model)
    plain, changed = (MapCollector(checkpoint.name, eager, reading, wanted) for _ in range(2))
    of_stack: dict[str, float] = defaultdict(float)
    of_layer: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)

    def see(call: Call) -> None:
        stack = stack_of(call.path, eager.config, cross=call.cross)
        off = math.inf if call.weights is None else _off(call)
        if not off <= weight_tolerance(call):
            plain.unexplained[stack] = "its weights do not follow from what it was given"
        of_layer[call.path] = _rounding(call, off)
        of_stack[stack] = max(of_stack[stack], of_layer[call.path])
        plain.take_call(call)

    def change(call: Call) -> torch.Tensor:
        changed.take_call(call)
        signs = torch.randint(0, 2, call.output.shape, generator=generator).to(call.output) * 2 - 1
        return call.output + min(1, of_layer[call.path]) * float(call.value.abs().max()) * signs

    with observing(eager, see), told_as_the_models_fault(checkpoint):
        run(eager, reading)
    spread = {stack: 1.0 for stack in plain.found if stack not in plain.unexplained}
    try:
        with observing(eager, change), told_as_the_models_fault(checkpoint):
            run(eager, reading)
    except ModelError:  # rounding makes infinite what was finite: nothing is known of the maps
        return spread
    return {stack: min(1, of_stack[stack] + _largest(plain, changed, stack)) for stack in spread}


def _rounding(call: Call, off: float) -> float:
    """How far rounding parts two ways of computing a layer's weights.

    Args:
        call: what the layer was given.
        off: how far its weights were from those that follow from that. A narrow dtype rounds there.
    """
    import torch

    dtype = torch.promote_types(call.query.dtype, torch.float32)
    return (16 + 4 * largest_score(call)) * torch.finfo(dtype).eps + 2 * off


def _off(call: Call) -> float:
    """How far the weights that attention returned are from those that follow from what it was given."""
    assert call.weights is not None
    off = 0.0
    for head in range(call.n_head):
        own, *_ = weights_of(call, [head])
        off = max(off, difference_of(own, call.weights[0, [head]].to(own)))
    return off


def _largest(first: MapCollector, second: MapCollector, stack: str) -> float:
    """The largest difference between two runs' maps of a stack."""
    pairs = zip(first.found[stack].maps, second.found[stack].maps, strict=True)
    return max(float(abs(one.attention - other.attention).max()) for one, other in pairs)
