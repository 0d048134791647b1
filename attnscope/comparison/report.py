"""The result of a comparison, from both sides' runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path

import torch
from torch import nn

import attnscope
from attnscope.comparison.backward import compared_gradients
from attnscope.comparison.causes import N_CAUSES
from attnscope.comparison.causes.projections import OTHER_FEATURES
from attnscope.comparison.divergence.find_divergences import (
    BothRuns,
    Examination,
    examine,
    run_both,
    run_exactly,
    without_counterpart,
)
from attnscope.comparison.divergence.first_difference import (
    SOURCES,
    TensorDifference,
    compared_tensor,
    difference,
    require_tensor,
    tensor_of,
    unraveled,
    usual_gap,
)
from attnscope.comparison.divergence.state import UNCHANGED, RoleTensors, n_head_of
from attnscope.comparison.finite import require_finite, undecided_because
from attnscope.comparison.result import ComparedTensor, Comparison, Site
from attnscope.document.result import Check
from attnscope.errors import SizeError
from attnscope.implementations.implementation import Recorded, Side
from attnscope.implementations.options import Pairing
from attnscope.implementations.weight_copy import WeightCopy
from attnscope.observe.operators.anatomy import NoAttentionError, Role
from attnscope.observe.operators.operands import axis_of_positions, has_sequence_for_each_input, tokens
from attnscope.observe.operators.tape import Value
from attnscope.process.files import shown_path


def comparison_of(
    a: Side, b: Side, copies: list[WeightCopy] | None, pairing: Pairing, *, part: str | None = None
) -> Comparison:
    """Run both sides and compare all that they compute.

    Args:
        a, b: the sides.
        copies: which weights were copied to make them alike.
        pairing: the options.
        part: the side that may compute more than the other, as in `examine`.

    Raises:
        AttnscopeError: one side raises, or the outputs have different sizes.
    """
    dtype = getattr(torch, pairing.dtype)
    for side in (a, b):
        side.check_repeatable(dtype, pairing.seed)
    narrow = run_both(a, b, dtype, pairing.seed)
    exact, why = run_exactly(a, b, dtype, pairing.seed)
    require_finite((a, exact.a), (b, exact.b))
    result = Comparison(
        a.title,
        b.title,
        "undecided",
        dtype=pairing.dtype,
        device="cpu",
        seed=pairing.seed,
        weights=copies,
    )
    try:
        examination = examine(exact, narrow, part=part)
    except NoAttentionError as error:
        result.notices += _output_notices((a, exact.a), (b, exact.b))
        return _by_output(result, exact, narrow, str(error))
    _check_shapes(examination, a, b)
    result.sizes = _sizes(examination)
    result.divergences = examination.divergences
    result.explained = examination.explained and all(each.cause for each in examination.divergences)
    result.n_causes = N_CAUSES
    result.status = "different" if examination.divergences else "equal"
    if not examination.divergences and not examination.explained:
        result.status = "undecided"
    last = list(examination.found)[-1]
    _doubt(result, exact, narrow, require_tensor(examination.a, last))
    result.tensors = list(_tensors(examination))
    result.notices += _left_out_notices(examination, a, b)
    result.notices += [*why, *a.notices, *b.notices, *_dropout_notices(a, b)]
    result.notices += _output_notices((a, exact.a), (b, exact.b))
    result.notices += _idle_notices(b, exact.b)
    if part != "b":
        result.notices += _weight_notices(a, b, copies, exact.b)
    result.notices += [] if why else list(_notices(examination, pairing.dtype))
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
    """Make a result undecided if the two are equal only in what is not finite.

    Args:
        result: the result, which is changed.
        exact, narrow: both sides' runs.
        end: the last tensor of a that was compared.
    """
    if result.status == "equal":
        runs = (exact.a, exact.b), (narrow.a, narrow.b)
        reason = undecided_because(*runs, end, result.dtype or "")
        if reason is not None:
            result.status = "undecided"
            result.notices.append(reason)


def _check(exact: BothRuns, narrow: BothRuns, is_equal: bool) -> Check:
    """Compare the outputs in the run's dtype."""
    a, b = narrow.a.output.tensor, narrow.b.output.tensor
    found = difference("output", a, b)
    rounding = sum(_rounding_of_outputs(exact, narrow))
    note = "largest difference of the outputs; rounding on both sides together is the tolerance"
    return Check("output", found.largest, rounding, is_equal, note)


def _rounding_of_outputs(exact: BothRuns, narrow: BothRuns) -> list[float]:
    """Measure how far the output of each side in the run's dtype is from the one in float64."""
    pairs = (exact.a, narrow.a), (exact.b, narrow.b)
    return [usual_gap(one.output.tensor, other.output.tensor) for one, other in pairs]


def _by_output(result: Comparison, exact: BothRuns, narrow: BothRuns, reason: str) -> Comparison:
    """Compare only the outputs, because one side has no attention that could be found."""
    a, b = exact.a.output.tensor, exact.b.output.tensor
    if a.shape != b.shape:
        raise _error_of_shapes("output", a.shape, b.shape, result.a, result.b)
    rounding = min(_rounding_of_outputs(exact, narrow))
    found = difference("output", a, b, rounding)
    result.status = "equal" if found.is_equal else "different"
    result.checks = [_check(exact, narrow, found.is_equal)]
    result.divergences = [] if found.is_equal else None
    result.tensors = [_output_row(exact, found, rounding)]
    _doubt(result, exact, narrow, a)
    result.notices.append(f"only the outputs were compared: {reason}")
    return result


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
    for each in examination.divergences:
        found = examination.found.get(each.role)
        if found is not None and not found.is_comparable:
            raise _other_shapes(examination, each.role, a, b)


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
        else f"batch_first=True where {first.title} is built (--init, if it is a class),"
        " or inputs that are arranged for it",
    )


def _other_shapes(examination: Examination, role: str, a: Side, b: Side) -> SizeError:
    """Return an error that says which axis of a tensor has another size."""
    is_output = role == "output"
    one, other = (
        each.role(role).value.tensor.shape if is_output else require_tensor(each, role).shape
        for each in (examination.a, examination.b)
    )
    axes = () if is_output else examination.a.role(role).axes
    return _error_of_shapes(role, one, other, a.title, b.title, axes)


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
        hint="the same sizes for both: --init, --input",
    )


AXES = {"lead": "n_batch·n_head", "heads": "n_batch·n_head", "tokens": "n_batch·n", "features": "d_feat"}
"""How messages call an axis that counts several."""


def _sizes(examination: Examination) -> dict[str, int]:
    """Return the sizes of the axes by name."""
    state = examination.a
    scores, Q, V = (require_tensor(state, name) for name in ("scores", "Q", "V"))
    n_lead, n_Q, n_K = scores.shape
    n_head = n_head_of(examination.a, examination.b)
    sizes = {"n_head": n_head} if n_head else {"lead": n_lead}
    if n_head and _sequences_name(examination, n_lead // n_head) == "n_batch":
        sizes = {"n_batch": n_lead // n_head, **sizes}
    sizes |= {"n_Q": n_Q, "n_K": n_K, "d_head": Q.shape[-1]}
    return sizes | ({"d_V": V.shape[-1]} if V.shape[-1] != Q.shape[-1] else {})


def _sequences_name(examination: Examination, n_sequence: int) -> str:
    """Return the name of the axis of sequences: its size, if the inputs have another batch."""
    sides = examination.a.anatomy, examination.b.anatomy
    is_batch = any(has_sequence_for_each_input(each, n_sequence) for each in sides)
    return "n_batch" if is_batch else str(n_sequence)


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
        tensor = require_tensor(examination.a, role)
        dims, shape = _axes(examination, role, tensor, n_head)
        largest = _largest(examination, role, found) if found.is_comparable else None
        yield ComparedTensor(
            role=role,
            dims=dims,
            shape=shape,
            a=_site(examination.a, role, causes.get(role, "")),
            b=_site(examination.b, role, causes.get(role, "")),
            largest=largest,
            index=_index(found, dims, shape),
            share=_share(examination, role, found),
            rounding=examination.rounding.get(role),
            status=_status(examination, role, found, divergent),
            factor=found.factor,
        )


def _largest(examination: Examination, role: str, found: TensorDifference) -> float:
    """Return the largest difference; of keys that only one side hides, that of the scores themselves."""
    if found.largest != float("inf"):
        return found.largest
    one, two = (require_tensor(each, role)[found.index] for each in (examination.a, examination.b))
    gap = float((one - two).abs())
    return gap if isfinite(gap) else found.largest


def _share(examination: Examination, role: str, found: TensorDifference) -> float:
    """Return the share of elements that differ by more than rounding in the run's dtype."""
    tolerance = examination.tolerances.get(role, 0.0)
    if found.largest <= tolerance or not found.is_comparable:
        return found.share
    a, b = (compared_tensor(each, role) for each in (examination.a, examination.b))
    return difference(role, a, b, tolerance).share


def _is_stage(examination: Examination, role: str) -> bool:
    """Check whether either side has a stage of its own that changes something."""
    for state in (examination.a, examination.b):
        own, before = state.tensor(role), tensor_of(state, UNCHANGED[role])
        if own is not None and before is not None and not difference(role, before, own).is_equal:
            return True
    return False


def _status(examination: Examination, role: str, found: TensorDifference, divergent: set[str]) -> str:
    if role in divergent:
        return "different"
    if not found.is_comparable:
        return "form"
    if found.is_equal or examination.is_small(role):
        return "equal"
    later = [each for each, sources in SOURCES.items() if role in sources and each in examination.found]
    if later and all(examination.found[each].is_equal for each in later):
        return "form"
    return "follows" if divergent else "form"


def _axes(
    examination: Examination, role: str, tensor: torch.Tensor, n_head: int | None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names and sizes of a tensor's axes, heads apart from sequences if these are known.

    The name of an axis is its size where it is not known what it counts.
    """
    own = examination.a.role(role)
    dims, shape = own.axes, tuple(tensor.shape)
    if dims[0] == "tokens":
        return _axes_of_tokens(examination, own, n_head)
    if n_head is None:
        return dims, shape
    n_sequence = require_tensor(examination.a, "Q").shape[0] // n_head
    first = _sequences_name(examination, n_sequence)
    if dims[0] == "heads" and shape[0] % n_sequence == 0:
        heads = "n_head" if shape[0] == n_sequence * n_head else "n_kv_head"
        return (first, heads, *dims[1:]), (n_sequence, shape[0] // n_sequence, *shape[1:])
    if dims[0] == "lead":
        return (first, "n_head", *dims[1:]), (n_sequence, n_head, *shape[1:])
    return dims, shape


def _axes_of_tokens(
    examination: Examination, own: Role, n_head: int | None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names and sizes of the axes of a tensor that was arranged as `tokens features`.

    They are those of the code where it has the tokens sequence by sequence, too.
    """
    n_token, width = own.tensor.shape
    code = tuple(own.value.tensor.shape[:-1])
    n_lead, n_Q, n_K = require_tensor(examination.a, "scores").shape
    n, size = ("n_Q", n_Q) if own.name[0] in "Qxo" else ("n_K", n_K)
    n_sequence = n_lead // n_head if n_head else n_token // size
    if len(code) < 2:
        return own.axes, (n_token, width)
    first = _sequences_name(examination, n_sequence) if n_head else "n_batch"
    if own.name == "output" and code == (size, n_sequence) != (n_sequence, size):
        return (n, first, "d_feat"), (*code, width)
    if own.elements is not None and not bool((own.elements[:, 0].diff() > 0).all()):
        code = n_sequence, n_token // n_sequence  # the code has them in another order
    if code == (n_sequence, size):
        return (first, n, "d_feat"), (*code, width)
    names = [str(each) for each in code]
    if code[-1] == size:
        names[-1] = n
    return (*names, "d_feat"), (*code, width)


def _index(found: TensorDifference, dims: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, int]:
    """Locate the largest difference, by axis; an axis without a name is called `axis_0`."""
    if not found.index:
        return {}
    names = (f"axis_{i}" if dim.isdigit() else dim for i, dim in enumerate(dims))
    first, *others = found.index
    n_counted = len(shape) - len(others)  # the axes that the first one counts
    return dict(zip(names, (*unraveled(first, shape[:n_counted]), *others), strict=False))


def _site(state: RoleTensors, role: str, cause: str = "") -> Site:
    """Find the expression with which a side computes a tensor.

    Args:
        state: the side.
        role: the tensor.
        cause: why it differs: a scale may be in another line than the scores, and a split in another
            one than the projection.
    """
    own, shown = state.role(role), None
    if "scale" in cause and role == "scores":
        shown = state.anatomy.scaled
    elif cause == OTHER_FEATURES:
        shown = state.anatomy.way(f"{role[0]}_split", role[0])[1]
    shown = shown or own.site or own.value
    return _site_of(role, shown, own.tensor if own.elements is None else None)


def _site_of(role: str, shown: Value, inside: torch.Tensor | None = None) -> Site:
    """Describe where a tensor of a tape is computed, or another one inside its kernel."""
    place = shown.place
    shape = tuple((shown.tensor if inside is None else inside).shape)
    if place is None:
        return Site(shown.input or shown.weight or role, "", None, None, shape)
    expression = place.text if inside is None else f"inside {place.text}"
    return Site(place.variable, expression, _shown_file(place.file), place.line, shape)


def _shown_file(file: str) -> str:
    """Return a file as messages name it: from its package on, if it is an installed one."""
    installed = Path(torch.__file__).parent.parent
    if Path(file).is_relative_to(installed):
        return str(Path(file).relative_to(installed))
    own = Path(attnscope.__file__).parent.parent
    if Path(file).is_relative_to(own) and not Path(file).is_relative_to(Path.cwd()):
        return str(Path(file).relative_to(own))
    return str(shown_path(file))


def _left_out_notices(examination: Examination, a: Side, b: Side) -> Iterable[str]:
    """Yield a sentence about what one side computes beyond the tensor that both are compared up to."""
    if not examination.left_out:
        return
    first, end = examination.left_out == "a", examination.end
    longer, shorter = (a, b) if first else (b, a)
    if (examination.b if first else examination.a).anatomy.end == end:
        yield f"{shorter.title} ends with {end}: what {longer.title} computes after that is left out"
    else:
        yield (
            f"both are compared up to {end}, because {longer.title} goes on after its residual"
            f" connection, and {shorter.title} does not"
        )


def _output_notices(*sides: tuple[Side, Recorded]) -> Iterable[str]:
    """Yield a sentence where another returned tensor than the likeliest is compared, because it fits."""
    for side, run in sides:
        if run.position != run.ranked[0]:
            likely = run.returned[run.ranked[0]]
            shapes = ["×".join(map(str, each.tensor.shape)) for each in (run.output, likely)]
            where = f" of line {run.output.place.line}" if run.output.place is not None else ""
            yield (
                f"of the {len(run.returned)} tensors that {side.title} returns, that{where} is compared"
                f" ({shapes[0]}), because the last one ({shapes[1]}) does not fit"
            )


def _idle_notices(side: Side, run: Recorded) -> Iterable[str]:
    """Yield a sentence about weights that a side does not use."""
    used = {each.weight for each in run.tape.values}
    named = side.module.named_parameters() if side.module is not None else ()
    idle = [name for name, _ in named if name not in used]
    if idle:
        yield f"{', '.join(idle)} of {side.title} {'is' if len(idle) == 1 else 'are'} not used"


def _weight_notices(
    a: Side, b: Side, copies: Sequence[WeightCopy] | None, run: Recorded
) -> Iterable[str]:
    """Yield sentences about weights of b that a has not."""
    if copies is None or b.module is None:
        return
    known = {each.b for each in copies}
    used = {each.weight for each in run.tape.values}
    others = {
        name: each for name, each in b.module.named_parameters() if name in used and name not in known
    }
    zero = [name for name, each in others.items() if not bool(each.any())]
    own = [name for name in others if name not in zero]
    for names, words in ((zero, "set to 0"), (own, "left as drawn")):
        if names:
            verb = "is" if len(names) == 1 else "are"
            yield f"{', '.join(names)} of {b.title} {verb} {words}: {a.title} has none like that"


def _dropout_notices(*sides: Side) -> list[str]:
    """Return a sentence for each side whose dropout is off, because it runs in evaluation mode."""
    found = []
    for side in sides:
        modules = side.module.modules() if side.module is not None else ()
        rates = sorted({each.p for each in modules if isinstance(each, nn.Dropout) and each.p > 0})
        if rates:
            found.append(f"dropout is off in {side.title} (p = {', '.join(f'{p:g}' for p in rates)})")
    return found


def _notices(examination: Examination, dtype: str) -> Iterable[str]:
    """Yield sentences about tensors without a counterpart, and what differs less than rounding."""
    if lost := without_counterpart(examination.found):
        yield f"{', '.join(lost)} have other shapes on both sides, and were not compared"
    moved = [
        role
        for role, each in examination.found.items()
        if role in ("Q", "K")
        and each.is_comparable
        and not each.is_equal
        and not examination.is_small(role)
        and each.factor is None
    ]
    if moved and not examination.divergences and examination.explained:
        yield f"{', '.join(moved)} differ, but scores and outputs do not"
    if examination.small and not examination.divergences:
        first = examination.small[0]
        size = examination.found[first.role].largest
        why = f": {first.explanation}" if first.cause else ""
        where = f"in float64 they differ by {size:.1e} from {first.role} on"
        yield f"{where}, less than rounding in {dtype}{why}"
