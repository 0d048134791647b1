"""The result of a comparison, from both sides' runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

import torch

import attnscope
from attnscope.base.errors import SizeError, SourceError
from attnscope.base.process.files import shown_path
from attnscope.base.spelling import spelled
from attnscope.code.compare.axes import axes_of, index_of, place_of, sizes_of, with_stated_names
from attnscope.code.compare.backward import compared_gradients
from attnscope.code.compare.causes import ANY, N_CAUSES
from attnscope.code.compare.causes.case import Case
from attnscope.code.compare.causes.projections import OTHER_FEATURES
from attnscope.code.compare.divergence.find_divergences import (
    BothRuns,
    Examination,
    examine,
    explained,
    run_both,
    run_exactly,
    sites_of,
)
from attnscope.code.compare.divergence.first_difference import (
    TensorDifference,
    compared_pair,
    difference,
    sources_of,
    usual_gap,
)
from attnscope.code.compare.divergence.state import UNCHANGED, RoleTensors, n_head_of
from attnscope.code.compare.notices import (
    add_weight_notices,
    dropout_notices,
    idle_notices,
    left_out_notices,
    output_notices,
    require_finite,
    rounding_notices,
    undecided_because,
)
from attnscope.code.compare.result import ComparedTensor, Comparison, Divergence, Site
from attnscope.code.pairs.implementation import Side, all_same
from attnscope.code.pairs.pairing import Pairing, WeightCopy
from attnscope.document.result import Check
from attnscope.observe.operators.anatomy import Anatomy, NoAttentionError, Role
from attnscope.observe.operators.output import opaque_operators
from attnscope.observe.operators.place import SourceExpression, function_at, place_of_call
from attnscope.observe.operators.projections import axis_of_positions, tokens
from attnscope.observe.operators.tape import Value


def comparison_of(
    a: Side, b: Side, copies: list[WeightCopy] | None, pairing: Pairing, *, part: str | None = None
) -> Comparison:
    """Run both sides and compare all that they compute.

    `part` is the side that may compute more than the other, as in `examine`.
    """
    dtype = getattr(torch, pairing.dtype)
    plain = [side.plain_results(dtype, pairing.seed) for side in (a, b)]
    narrow = run_both(a, b, dtype, pairing.seed)
    for side, results, run in zip((a, b), plain, (narrow.a, narrow.b), strict=True):
        if not all_same(results, [each.tensor for each in run.returned]):
            raise SourceError(
                f"{side.title} cannot be compared: it returns other numbers while a tape records what it"
                " calls of torch than it does by itself."
            )
    exact, why = run_exactly(a, b, dtype, pairing.seed)
    runs = (a, exact.a), (b, exact.b)
    require_finite(*runs)
    opaque = [name for _, run in runs for name in opaque_operators(run.tape, run.returned)]
    result = Comparison(
        a.title,
        b.title,
        "undecided",
        dtype=pairing.dtype,
        device="cpu",
        seed=pairing.seed,
        weights=copies,
        opaque=list(dict.fromkeys(opaque)),
    )
    try:
        examination = examine(exact, narrow, part=part)
    except NoAttentionError as error:
        result.notices += output_notices(*runs)
        _by_output(result, exact, narrow, str(error))
        result.tensors = [with_stated_names(each, (a, b)) for each in result.tensors]
        return result
    _check_shapes(examination, a, b)
    result.sizes = sizes_of(examination)
    anatomies = examination.a.anatomy, examination.b.anatomy
    result.divergences = [
        _with_sites(each, examination.sites.get(each.role, {}), anatomies)
        for each in examination.divergences
    ]
    result.explained = examination.explained and all(each.cause for each in examination.divergences)
    result.n_causes = N_CAUSES
    result.status = "different" if examination.divergences else "equal"
    if not examination.divergences and not examination.explained:
        result.status = "undecided"
    last = list(examination.found)[-1]
    _doubt(result, exact, narrow, examination.a[last])
    result.tensors = [with_stated_names(each, (a, b)) for each in _tensors(examination)]
    result.notices += left_out_notices(examination, a, b)
    active = any("dropout active" in (each.cause or "") for each in examination.divergences)
    result.notices += [*why, *a.notices, *b.notices, *dropout_notices(a, b, beside=active)]
    result.notices += output_notices(*runs)
    add_weight_notices(result, a, b, exact, part)
    result.notices += idle_notices(examination, result.tensors)
    result.notices += [] if why else list(rounding_notices(examination, pairing.dtype))
    if not examination.left_out:
        result.checks = [_check(exact, narrow, result.status == "equal")]
        if pairing.backward:
            outputs = exact.a.position, exact.b.position
            result.gradients = compared_gradients(a, b, copies or [], dtype, pairing.seed, outputs)
            if any(each.status == "different" for each in result.gradients):
                result.status = "different"
            doubtful = ", ".join(each.a for each in result.gradients if each.status == "undecided")
            if doubtful and result.status == "equal":
                result.status = "undecided"
                result.notices.append(
                    f"gradients are NaN on both sides, which shows nothing: {doubtful}"
                )
    elif pairing.backward:
        result.notices.append("gradients were not compared: those of the whole outputs are not alike")
    return result


def _doubt(result: Comparison, exact: BothRuns, narrow: BothRuns, end: torch.Tensor) -> None:
    """Make a result undecided if the two are equal only in what is not finite."""
    if result.status == "equal":
        runs = (exact.a, exact.b), (narrow.a, narrow.b)
        reason = undecided_because(*runs, end, result.dtype or "")
        if reason is not None:
            result.status = "undecided"
            result.notices.append(reason)


def _check(exact: BothRuns, narrow: BothRuns, is_equal: bool) -> Check:
    """Compare the outputs in the run's dtype."""
    a, b = narrow.a.output.tensor, narrow.b.output.tensor
    found = difference(a, b)
    rounding = sum(_rounding_of_outputs(exact, narrow))
    note = "largest difference of the outputs; rounding on both sides together is the tolerance"
    return Check("output", found.largest, rounding, is_equal, note)


def _rounding_of_outputs(exact: BothRuns, narrow: BothRuns) -> list[float]:
    """Measure how far the output of each side in the run's dtype is from the one in float64."""
    pairs = (exact.a, narrow.a), (exact.b, narrow.b)
    return [usual_gap(one.output.tensor, other.output.tensor) for one, other in pairs]


def _by_output(result: Comparison, exact: BothRuns, narrow: BothRuns, reason: str) -> None:
    """Compare only the outputs, because one side has no attention that could be found."""
    a, b = exact.a.output.tensor, exact.b.output.tensor
    if a.shape != b.shape:
        raise _error_of_shapes("output", a.shape, b.shape, result.a, result.b)
    rounding = min(_rounding_of_outputs(exact, narrow))
    found = difference(a, b, rounding)
    result.status = "equal" if found.is_equal else "different"
    result.checks = [_check(exact, narrow, found.is_equal)]
    result.divergences = [] if found.is_equal else _of_output(exact, found, rounding)
    if result.divergences:
        result.explained, result.n_causes = True, len(ANY)
    result.tensors = [_output_row(exact, found, rounding)]
    _doubt(result, exact, narrow, a)
    result.notices.append(f"only the outputs were compared: {reason}")


def _of_output(exact: BothRuns, found: TensorDifference, rounding: float) -> list[Divergence] | None:
    """Find the first operation after which two outputs differ; None if it is not known."""
    sides = Anatomy(exact.a.tape, exact.a.output), Anatomy(exact.b.tape, exact.b.output)
    for each in sides:
        elements = each.output.flat_indices
        axes = tuple(f"axis_{i}" for i in range(elements.ndim))
        each.add(Role.arranged("output", each.output, elements, axes))
    a, b = sides
    case = Case("output", RoleTensors(a), RoleTensors(b), found, rounding)
    divergence, cause = explained(case)
    sites = sites_of(case, cause)
    return [_with_sites(divergence, sites, sides)] if sites else None


def _output_row(exact: BothRuns, found: TensorDifference, rounding: float) -> ComparedTensor:
    """Return the outputs as the only tensor that both sides are known to have."""
    shape = tuple(exact.a.output.tensor.shape)
    dims = tuple(f"axis_{i}" for i in range(len(shape)))
    return ComparedTensor(
        role="output",
        dims=dims,
        shape=shape,
        a=_site_of("output", exact.a.output),
        b=_site_of("output", exact.b.output),
        largest=found.largest,
        index=dict(zip(dims, found.index, strict=False)),
        share=found.share,
        rounding=rounding,
        status="equal" if found.is_equal else "different",
        factor=found.factor,
    )


def _check_shapes(examination: Examination, a: Side, b: Side) -> None:
    """Raise a SizeError if both attend along other axes, or differ first in tensors of other shapes."""
    if examination.divergences:
        _check_axes(examination, a, b)
    for role in (each.role for each in examination.divergences):
        found = examination.found.get(role)
        if found is not None and not found.is_comparable:
            is_output = role == "output"
            one, other = (
                each.role(role).value.tensor.shape if is_output else each[role].shape
                for each in (examination.a, examination.b)
            )
            axes = () if is_output else examination.a.role(role).axes
            raise _error_of_shapes(role, one, other, a.title, b.title, axes)


def _check_axes(examination: Examination, a: Side, b: Side) -> None:
    """Raise a SizeError if both attend along other axes of the same input."""
    found = []
    for state, side in ((examination.a, a), (examination.b, b)):
        axis, received = axis_of_positions(state.anatomy), tokens(state.anatomy, "Q")
        if axis is None or received is None:
            return
        found.append((axis, side, received[0].tensor))
    (axis, first, x), (last, other, y) = sorted(found, key=lambda each: each[0])
    if axis == last or not torch.equal(x, y):
        return
    shape = x.shape
    raise SizeError(
        f"{first.title} attends along axis {len(shape) + axis} of its inputs ({shape[axis]} positions),"
        f" and {other.title} along axis {len(shape) + last} ({shape[last]}).",
        hint="inputs that are arranged for it"
        if not first.has_batch_second
        else f"batch_first=True where {first.title} is built ({spelled('init')}, if it is a class),"
        " or inputs that are arranged for it",
    )


def _error_of_shapes(
    name: str, a: Sequence[int], b: Sequence[int], of_a: str, of_b: str, axes: Sequence[str] = ()
) -> SizeError:
    first, second = ("×".join(map(str, each)) for each in (a, b))
    where = "they are not comparable"
    if len(a) == len(b):
        place = next(i for i, (one, other) in enumerate(zip(a, b, strict=True)) if one != other)
        axis = AXES.get(axes[place], axes[place]) if axes else f"axis {place}"
        where = f"{axis} is {a[place]} and {b[place]}, and so they are not comparable"
    return SizeError(
        f"{name} is {first} in {of_a}, and {second} in {of_b}: {where}.",
        hint=f"the same sizes for both: {spelled('init')}, {spelled('inputs')}",
    )


AXES = {"lead": "n_batch·n_head", "heads": "n_batch·n_head", "tokens": "n_batch·n", "features": "d_feat"}
"""How messages call an axis that counts several."""


def _tensors(examination: Examination) -> Iterable[ComparedTensor]:
    """Yield the tensors that both sides have, each with its status."""
    divergent = {each.role for each in examination.divergences}
    ends = examination.a.anatomy.end, examination.b.anatomy.end
    causes = {each.role: each.cause or "" for each in examination.divergences}
    n_head = n_head_of(examination.a, examination.b)
    for role, found in examination.found.items():
        is_idle = role in UNCHANGED and not _is_stage(examination, role)
        is_again = role == "output" and ends[0] == ends[1] != "output"
        if role not in divergent and (is_idle or is_again):
            continue
        tensor = examination.a[role]
        dims, shape = axes_of(examination, role, tensor, n_head)
        largest = _largest(examination, role, found) if found.is_comparable else None
        yield ComparedTensor(
            role=role,
            dims=dims,
            shape=shape,
            a=_site(examination.a, role, causes.get(role, "")),
            b=_site(examination.b, role, causes.get(role, "")),
            largest=largest,
            index=index_of(place_of(examination, role, found, n_head), dims, shape),
            share=_share(examination, role, found),
            rounding=examination.rounding.get(role),
            status=_status(examination, role, found, divergent),
            factor=found.factor,
        )


def _largest(examination: Examination, role: str, found: TensorDifference) -> float:
    """Return the largest difference; of keys that only one side hides, that of the scores themselves."""
    if found.largest != float("inf"):
        return found.largest
    one, two = (each[role][found.index] for each in (examination.a, examination.b))
    gap = float((one - two).abs())
    return gap if isfinite(gap) else found.largest


def _share(examination: Examination, role: str, found: TensorDifference) -> float:
    """Return the share of elements that differ by more than rounding in the run's dtype."""
    tolerance = examination.tolerances.get(role, 0.0)
    if found.largest <= tolerance or not found.is_comparable:
        return found.share
    pair = compared_pair(examination.a, examination.b, role)
    return difference(*pair, tolerance).share


def _is_stage(examination: Examination, role: str) -> bool:
    """Check whether either side has a stage of its own that changes something."""
    states = examination.a, examination.b
    pairs = [(each.tensor(UNCHANGED[role]), each.tensor(role)) for each in states]
    return any(x is not None and y is not None and not difference(x, y).is_equal for x, y in pairs)


def _status(examination: Examination, role: str, found: TensorDifference, divergent: set[str]) -> str:
    if role in divergent:
        return "different"
    if not found.is_comparable:
        return "form"
    if found.is_equal or examination.is_small(role):
        return "equal"
    if _comes_from(role, divergent, examination.found):
        return "follows"
    return "form" if examination.explained else "different"


def _comes_from(role: str, divergent: set[str], found: Collection[str]) -> bool:
    """Check whether a tensor is computed from one of those that differ first."""
    sources = sources_of(role, found)
    return any(each in divergent or _comes_from(each, divergent, found) for each in sources)


def _site(state: RoleTensors, role: str, cause: str = "") -> Site:
    """Find the expression with which a side computes a tensor.

    A scale may be in another line than the scores, and a split in another one than the projection.
    """
    own, shown = state.role(role), None
    if "scale" in cause and role == "scores":
        shown = state.anatomy.scaled
    elif cause == OTHER_FEATURES:
        shown = state.anatomy.way(f"{role[0]}_split", role[0])[1]
    shown = shown or own.site or own.value
    return _site_of(role, shown, own.tensor if own.elements is None else None)


def _with_sites(
    divergence: Divergence, known: Mapping[str, Value], anatomies: Sequence[Anatomy]
) -> Divergence:
    """Add the lines of the results that show a mistake.

    A function that both sides run, with the same code, has no mistake: then it is where they call it.
    """
    ran = [{_function(call.place) for call in each.tape.calls} for each in anatomies]
    shared = ran[0] & ran[1] - {""}
    sites = {}
    for side, each in known.items():
        if each.place is None:
            continue
        calls = () if each.call is None else each.call.around
        places = [each.place, *map(place_of_call, calls)]
        shown = next((place for place in places if _function(place) not in shared), each.place)
        sites[side] = _site_at(shown, tuple(each.tensor.shape))
    return replace(divergence, a=sites.get("a"), b=sites.get("b"))


def _site_of(role: str, shown: Value, inside: torch.Tensor | None = None) -> Site:
    """Describe where a tensor of a tape is computed, or another one inside its kernel."""
    place = shown.place
    shape = tuple((shown.tensor if inside is None else inside).shape)
    if place is None:
        return Site(shown.input or shown.weight or role, "", None, None, shape)
    site = _site_at(place, shape)
    return site if inside is None else replace(site, expression=f"inside {place.text}")


def _site_at(place: SourceExpression, shape: tuple[int, ...]) -> Site:
    """Describe a place where a tensor of a shape is computed."""
    return Site(place.variable, place.text, _shown_file(place.file), place.line, shape)


def _function(place: SourceExpression | None) -> str:
    """Return the function in which a place is; empty if it is in none."""
    return "" if place is None else function_at(place.file, place.line)


def _shown_file(file: str) -> str:
    """Return a file as messages name it: from its package on, if it is an installed one."""
    installed = Path(torch.__file__).parent.parent
    if Path(file).is_relative_to(installed):
        return str(Path(file).relative_to(installed))
    own = Path(attnscope.__file__).parent.parent
    if Path(file).is_relative_to(own) and not Path(file).is_relative_to(Path.cwd()):
        return str(Path(file).relative_to(own))
    return str(shown_path(file))
