"""Compares the gradients of two sides: of their common inputs, and of the weights that both have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from attnscope.base.errors import SizeError, SourceError, first_line
from attnscope.base.process.default_dtype import default_dtype
from attnscope.base.process.random_state import seed_torch
from attnscope.base.spelling import spelled
from attnscope.code.compare.divergence.find_divergences import slightly_larger
from attnscope.code.compare.divergence.first_difference import difference, numbers, usual_gap
from attnscope.code.compare.result import ComparedGradient
from attnscope.code.pairs.implementation import Side, described, tensors_of
from attnscope.code.pairs.pairing import WeightCopy
from attnscope.code.pairs.rounding import CLOSE, STRICT, usual_size
from attnscope.observe.operators.tape import Widened, tensors_in


@dataclass(frozen=True)
class Gradients:
    """The gradients of one side, of the sum of its output times fixed random numbers."""

    #: By the `id` of the tensor that was passed, in the sum over all parameters that got it.
    inputs: Mapping[int, torch.Tensor]
    #: By the name of the parameter.
    weights: Mapping[str, torch.Tensor]


def compared_gradients(
    a: Side,
    b: Side,
    copies: Sequence[WeightCopy],
    dtype: torch.dtype,
    seed: int,
    outputs: tuple[int, int] = (0, 0),
) -> list[ComparedGradient]:
    """Compare the gradients of both sides in float64; what rounding in a dtype explains is equal.

    Code that raises in float64 is differentiated in its dtype, as `run_exactly` runs it. `outputs` says
    which of the tensors that each side returns is its output.
    """
    sides = list(zip((a, b), outputs, strict=True))
    double = torch.float64
    try:
        exact = [_gradients(*each, each[0].in_dtype(double), double, seed, exact=True) for each in sides]
    except SourceError:
        larger = slightly_larger(dtype)
        exact = [_gradients(*each, each[0].scaled(dtype, larger), dtype, seed) for each in sides]
    narrow = [_gradients(*each, each[0].in_dtype(dtype), dtype, seed) for each in sides]
    pairs = list(_common(a, b, copies, *exact))
    largest = min(
        max((usual_size(numbers(each)) for each in gradients), default=0.0)
        for gradients in ([first for *_, first, _ in pairs], [second for *_, second in pairs])
    )
    compared = []
    in_dtype = _common(a, b, copies, *narrow)
    for (name, other, first, second), (*_, first_narrow, second_narrow) in zip(
        pairs, in_dtype, strict=True
    ):
        rounding = min(usual_gap(first, first_narrow), usual_gap(second, second_narrow))
        # A gradient that is 0 but for rounding, as that of the score of a single key, has no size:
        # the others of the run tell what rounding is.
        tolerance = max(CLOSE * rounding, STRICT * largest)
        found = difference(first, second, tolerance)
        status = "equal" if found.is_equal else "different"
        if found.is_equal and bool(first.isnan().any()):
            status = "undecided"  # NaN on both sides shows nothing
        shape = tuple(first.shape)
        compared.append(ComparedGradient(name, other, shape, found.largest, rounding, status))
    return compared


def _gradients(
    side: Side, output: int, own: Side, dtype: torch.dtype, seed: int, *, exact: bool = False
) -> Gradients:
    """Run a side forwards and backwards.

    `own` is the copy that is run, and the inputs of `side` name the gradients.
    """
    leaves = {name: each for name, each in tensors_of(own).items() if each.is_floating_point()}
    weights = own.parameters
    variables: list[torch.Tensor] = [*leaves.values(), *weights.values()]
    for tensor in variables:
        tensor.requires_grad_()
    seed_torch(seed)
    try:
        wider = Widened() if exact else nullcontext()
        with described(side.title), default_dtype(dtype), torch.enable_grad(), wider:
            out = list(tensors_in(own.call()))[output]
        seed_torch(seed)
        direction = torch.randn(out.shape, dtype=torch.float64).to(out.dtype)
        found = torch.autograd.grad(out, variables, direction, allow_unused=True)
    except (RuntimeError, SourceError) as error:
        message = f"{side.title} has no gradients: {first_line(error).rstrip('.')}."
        raise SourceError(message, hint=f"leave out {spelled(backward=True)}") from error
    gradients = [
        torch.zeros_like(tensor) if each is None else each
        for tensor, each in zip(variables, found, strict=True)
    ]
    inputs: dict[int, torch.Tensor] = {}
    for name, each in zip(leaves, gradients, strict=False):
        key = id(side.inputs[name])
        inputs[key] = inputs[key] + each if key in inputs else each
    return Gradients(inputs, dict(zip(weights, gradients[len(leaves) :], strict=True)))


def _common(
    a: Side, b: Side, copies: Sequence[WeightCopy], of_a: Gradients, of_b: Gradients
) -> Iterator[tuple[str, str, torch.Tensor, torch.Tensor]]:
    """Yield the gradients that both sides have, with their names on both sides."""
    for key in of_a.inputs:
        if key in of_b.inputs:
            yield _names(a, key), _names(b, key), of_a.inputs[key], of_b.inputs[key]
    for copy in copies:
        if copy.a in of_a.weights and copy.b in of_b.weights:
            first = _part(of_a.weights[copy.a], copy.a_elements)
            second = _part(of_b.weights[copy.b], copy.b_elements)
            if first.shape != second.shape:
                raise SizeError(f"the gradients of {copy.a} and {copy.b} have different shapes.")
            role = f"{copy.role}: " if copy.role else ""
            yield f"{role}{copy.a}", copy.b, first, second


def _names(side: Side, key: int) -> str:
    """Return the parameters that got a tensor."""
    return ", ".join(name for name, each in side.inputs.items() if id(each) == key)


def _part(gradient: torch.Tensor, elements: torch.Tensor | None) -> torch.Tensor:
    return gradient if elements is None else gradient.reshape(-1)[elements]
