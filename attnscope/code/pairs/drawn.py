"""Draws the weights of a module that begin constant, behind which a mistake may hide.

Gains of one hide whether a norm is before or after a rotation; zeros hide everything that they
multiply, and which of several biases is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

import torch
from torch import nn

from attnscope.code.pairs.pairing import WeightCopy

NEAREST, FURTHEST = 0.25, 0.75
"""How far drawn values are from the constant, as a part of it: none stays, and no gain turns over."""

FAINT = 1e-2
"""A constant below this, as in LayerScale, hides what it multiplies, as zero does."""


def draw_constants(module: nn.Module, generator: torch.Generator) -> list[str]:
    """Draw all parameters and learned buffers of a module that are constant, in place.

    Each gets values around its constant: gains of one lie between 0.25 and 1.75, of both signs around
    zero. Parameters that need no gradient, beside others that do, are not trained, and stay. The values
    are drawn in float32, which all wider dtypes hold exactly. The names of what was drawn are returned.
    """
    drawn = []
    with torch.no_grad():
        for name, weights in _learned(module):
            constant = _constant(weights)
            if constant is not None:
                weights.copy_(_drawn_around(constant, weights.shape, generator))
                drawn.append(name)
    return drawn


def draw_shared(
    source: nn.Module, target: nn.Module, copies: Sequence[WeightCopy], seed: int
) -> list[str]:
    """Draw the constant weights that two modules share, the same values in both, in place.

    What only one of them has stays: its constant may be why the two are equal. The names in the source
    are returned.
    """
    drawn = deepcopy(source)
    names = draw_constants(drawn, torch.Generator().manual_seed(seed))
    values, ours, theirs = (
        {**dict(each.named_parameters()), **dict(each.named_buffers())}
        for each in (drawn, source, target)
    )
    shared = [each for each in copies if each.a in names]
    of_buffers = [name for name, _ in source.named_buffers() if name in names and name in theirs]
    shared += [WeightCopy(None, name, "", name, "", tuple(ours[name].shape)) for name in of_buffers]
    with torch.no_grad():
        for each in shared:
            part, elements = values[each.a], each.a_elements
            part = part if elements is None else part.reshape(-1)[elements.reshape(-1)]
            _write(ours[each.a], part, each.a_elements)
            _write(theirs[each.b], part, each.b_elements)
    return list(dict.fromkeys(each.a for each in shared))


def _write(tensor: torch.Tensor, values: torch.Tensor, elements: torch.Tensor | None) -> None:
    """Write values to some elements of a tensor, or to all, transposed if only that fits."""
    if elements is None:
        tensor.copy_(values if values.shape == tensor.shape else values.mT)
        return
    flat = tensor.clone().reshape(-1)
    flat[elements.reshape(-1)] = values.to(flat)
    tensor.copy_(flat.reshape(tensor.shape))


def _learned(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what training changes: parameters with gradients, and the statistics of batch norms."""
    parameters = [
        (name, each)
        for name, each in module.named_parameters()
        if not nn.parameter.is_lazy(each) and each.is_floating_point()
    ]
    trained = [(name, each) for name, each in parameters if each.requires_grad]
    yield from trained or parameters  # none at all: the user froze the module
    for name, buffer in module.named_buffers():
        if name.rpartition(".")[2] in ("running_mean", "running_var"):
            yield name, buffer


def _constant(weights: torch.Tensor) -> float | None:
    """Return the finite number that all elements are; None if there is none."""
    if not weights.numel():
        return None
    first = weights.reshape(-1)[0]
    return float(first) if bool(first.isfinite()) and bool((weights == first).all()) else None


def _drawn_around(constant: float, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Return values as far from a constant as it is large, at most 1; or as the usual weights are."""
    size = min(abs(constant), 1.0)
    if size < FAINT:
        size = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
    numbers = torch.rand(2, *shape, generator=generator, dtype=torch.float32)
    signs = torch.where(numbers[0] < 0.5, -1.0, 1.0)
    return constant + signs * size * (NEAREST + (FURTHEST - NEAREST) * numbers[1])
