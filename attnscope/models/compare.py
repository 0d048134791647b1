"""Compares attnscope's maps with the model's own, and an observed model with itself unobserved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.models.checkpoint import Checkpoint
from attnscope.models.loading import told_as_the_models_fault
from attnscope.models.maps import Seen, Wanted, eager_maps, main_output, run
from attnscope.models.reading import Reading
from attnscope.results import AttentionMaps, Check

if TYPE_CHECKING:
    import torch

TOLERANCE = 1e-5
"""How far weights may be apart in float32: a model's layers add up what rounding does."""


def compare(
    checkpoint: Checkpoint, model: Any, reading: Reading, wanted: Wanted, seen: Seen
) -> list[Check]:
    """Two comparisons with the model itself.

    Its own eager attention returns its weights; ours, computed from q, k, mask and scale, must be
    the same. And observing must not change what the model computes, in any bit.

    Args:
        checkpoint: where the eager model is loaded from.
        model: the one that was observed.
        reading, wanted: what it read, and which maps are compared.
        seen: what came of it.

    Returns:
        A check for the maps of each stack, and one for the output.
    """
    with told_as_the_models_fault(checkpoint):
        plain = main_output(run(model, reading))
    theirs = {each.stack: each for each in eager_maps(checkpoint, model, reading, wanted).stacks}
    tolerance = _tolerance(model.dtype)
    checks = [_of_maps(ours, theirs[ours.stack], tolerance) for ours in seen.stacks]
    if seen.eager:
        checks = [
            Check(each.name, None, None, None, note="these maps are the model's own") for each in checks
        ]
    difference = float((plain - seen.output).abs().nan_to_num().max())
    name = "output, observed = unobserved"
    return [*checks, Check(name, difference, 0.0, ok=difference == 0)]


def _of_maps(ours: AttentionMaps, theirs: AttentionMaps, tolerance: float) -> Check:
    pairs = [(own.attention, other.attention) for own, other in zip(ours.maps, theirs.maps, strict=True)]
    largest = max(float(abs(own - other).max()) for own, other in pairs)
    note = ""
    if largest > tolerance and all(abs(other.sum(-1) - 1).max() < 1e-3 for _, other in pairs):
        # A sink may take its part after the softmax, and the weights be returned as they were before.
        largest = max(float(abs(own / own.sum(-1, keepdims=True) - other).max()) for own, other in pairs)
        note = (
            "compared without the sink's part, which the model takes off after it returned its weights"
        )
    n = len(pairs)
    name = (
        f"{n} {ours.stack} map{'s' * (n > 1)} = eager's"
        if ours.stack != "self"
        else f"{n} map{'s' * (n > 1)} = eager's"
    )
    return Check(
        name, largest, tolerance, ok=largest <= tolerance, note=note if largest <= tolerance else ""
    )


def _tolerance(dtype: torch.dtype) -> float:
    """What rounding may do: in narrow dtypes, where the model rounds its scores and we do not, more."""
    import torch

    return max(TOLERANCE, 16 * torch.finfo(dtype).eps) if dtype != torch.float32 else TOLERANCE
