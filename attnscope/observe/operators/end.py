"""What code computes after its output projection: nothing, a residual connection, a norm, or a layer."""

from __future__ import annotations

from attnscope.observe.operator_names import CONTRACTIONS
from attnscope.observe.operators.anatomy import Anatomy, leaf
from attnscope.observe.operators.chain import calls_before, way_between
from attnscope.observe.operators.follow import followed
from attnscope.observe.operators.tape import Value

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
        return x.value in _sources(anatomy.output)
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
        and x.value in {source for each in call.parents for source in (each, *_sources(each))}
        for call in calls
    )


def _sources(value: Value) -> set[Value]:
    """Return all tensors that a tensor comes from."""
    return {each for call in calls_before(value, through=lambda _: True) for each in call.parents}


def _is_residual(value: Value, x: Value) -> bool:
    """Check whether a call adds something that comes from an argument, but not from x."""
    if value.name not in ("add", "sub"):
        return False
    return any(
        any(source.input is not None for source in {each, *_sources(each)})
        and x not in {each, *_sources(each)}
        for each in value.parents
    )


def _is_norm(value: Value, x: Value) -> bool:
    """Check whether a call normalises, or multiplies by a mean of what comes from x."""
    if value.name in NORMS:
        return True
    others = (call for each in value.parents for call in calls_before(each, through=lambda _: True))
    return value.name in ("mul", "div", "sub") and any(
        call.name in MEANS and x in {*call.parents, *(s for p in call.parents for s in _sources(p))}
        for call in others
    )
