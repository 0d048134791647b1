"""Which of the tensors that code returns is its output: the last that depends on attention·V."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from attnscope.observe.operators.chain import calls_before
from attnscope.observe.operators.roles import weighted_values
from attnscope.observe.operators.tape import Tape, TorchCall, Value


def ranked_outputs(tape: Tape, returned: Sequence[Value]) -> list[int]:
    """Find which of the tensors that code returned may be its output, the likeliest first.

    The output is the tensor that is computed last of those that depend on V, or more precisely: on the
    last product of attention and V that any of them depends on. Scores, attention, and caches of K and
    V do not. Scalars such as a loss, and integers such as predicted tokens, come after the others. If no
    attention is found, the output is the tensor that depends on the most arguments and weights, and of
    several the first.

    Args:
        tape: the tape of the call.
        returned: what the call returned, in order.

    Returns:
        Positions in `returned`: at least one.
    """
    calls = [set(calls_before(value, through=lambda _: True)) for value in returned]
    products = weighted_values(tape) if len(returned) > 1 else ()
    known = [call for call in products if any(call in each for each in calls)]
    last = max(known, key=lambda call: call.outputs[0].index, default=None)
    if last is None:
        order = [-len(_sources(value, each)) for value, each in zip(returned, calls, strict=True)]
    else:
        order = [-value.index for value in returned]
    positions = [i for i, each in enumerate(calls) if last is None or last in each]
    return sorted(positions, key=lambda i: (_is_beside(returned[i]), order[i]))


def fitting(
    a: Sequence[Value], b: Sequence[Value], ranked: tuple[Sequence[int], Sequence[int]]
) -> tuple[int, int]:
    """Choose the outputs of two calls: the likeliest that have as many elements; else the likeliest.

    Args:
        a, b: what the calls returned.
        ranked: which of these may be the output, the likeliest first.
    """
    pairs = sorted(product(*map(enumerate, ranked)), key=lambda pair: pair[0][0] + pair[1][0])
    fits = ((i, j) for (_, i), (_, j) in pairs if a[i].tensor.numel() == b[j].tensor.numel())
    return next(fits, (ranked[0][0], ranked[1][0]))


def _is_beside(value: Value) -> bool:
    """Check whether a tensor is a scalar or holds integers, like what code returns beside its output."""
    tensor = value.tensor
    return tensor.ndim == 0 or not (tensor.is_floating_point() or tensor.is_complex())


def _sources(value: Value, calls: set[TorchCall]) -> set[Value]:
    """Return the arguments and weights that a tensor depends on."""
    values = {value, *(parent for call in calls for parent in call.parents)}
    return {each for each in values if each.input is not None or each.is_weight}
