"""The output: which of the returned tensors it is (the last that depends on attention·V), and what is
computed after the output projection: nothing, a residual connection, a norm, or a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from attnscope.observe.operator_names import CONTRACTIONS
from attnscope.observe.operators.anatomy import Anatomy, leaf
from attnscope.observe.operators.chain import calls_before, way_between
from attnscope.observe.operators.follow import followed
from attnscope.observe.operators.roles import weighted_values
from attnscope.observe.operators.tape import Tape, TorchCall, Value
from attnscope.observe.torch_internals.dispatch import registered_name


def ranked_outputs(tape: Tape, returned: Sequence[Value]) -> list[int]:
    """Find which of the tensors that code returned may be its output, the likeliest first.

    The output is the tensor that is computed last of those that depend on V, or more precisely: on the
    last product of attention and V that any of them depends on. Scores, attention, and caches of K and
    V do not. Scalars such as a loss, and integers such as predicted tokens, come after the others. If no
    attention is found, the output is the tensor that depends on the most arguments and weights, and of
    several the first.

    Returns:
        Positions in `returned`: at least one.
    """
    calls = [set(calls_before(value)) for value in returned]
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


NORMS = {"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"}
MEANS = {"mean", "var", "std", "var_mean", "norm", "sum"}


def goes_on(anatomy: Anatomy) -> bool:
    """Check whether code goes on after its output projection: adds its input, normalises, or projects.

    Anything else, such as a product with a number, is part of its attention.
    """
    x = anatomy.roles.get("x")
    if x is None or anatomy.end != "output":
        return False
    places = followed(anatomy.tape, x.value)
    if anatomy.output not in places:  # there is a product on the way
        return x.value in _all_sources(anatomy.output)
    way = way_between(x.value, anatomy.output, places)
    return any(_is_residual(each, x.value) or _is_norm(each, x.value) for each in way[1:])


def projects_again(anatomy: Anatomy) -> bool:
    """Check whether code multiplies by weights after its output projection, as in an MLP."""
    x = anatomy.roles.get("x")
    if x is None:
        return False
    calls = calls_before(anatomy.output, through=lambda call: x.value not in call.outputs)
    return any(
        call.name in CONTRACTIONS
        and any(map(leaf, call.parents))
        and x.value in {source for each in call.parents for source in (each, *_all_sources(each))}
        for call in calls
    )


def _all_sources(value: Value) -> set[Value]:
    """Return all tensors that a tensor comes from."""
    return {each for call in calls_before(value) for each in call.parents}


def _is_residual(value: Value, x: Value) -> bool:
    """Check whether a call adds something that comes from an argument, but not from x."""
    if value.name not in ("add", "sub"):
        return False
    return any(
        any(source.input is not None for source in {each, *_all_sources(each)})
        and x not in {each, *_all_sources(each)}
        for each in value.parents
    )


def _is_norm(value: Value, x: Value) -> bool:
    """Check whether a call normalises, or multiplies by a mean of what comes from x."""
    if value.name in NORMS:
        return True
    others = (call for each in value.parents for call in calls_before(each))
    return value.name in ("mul", "div", "sub") and any(
        call.name in MEANS and x in {*call.parents, *(s for p in call.parents for s in _all_sources(p))}
        for call in others
    )


def opaque_operators(tape: Tape, outputs: Iterable[Value]) -> list[str]:
    """Return what a call computes with and no tape shows, in words."""
    names = [registered_name(call.func) for call in tape.calls]
    unknown = [each for each in outputs if each.call is None and not (each.weight or each.input)]
    found = [name for name in names if name] + ["code outside of torch" for _ in unknown]
    return list(dict.fromkeys(found))
