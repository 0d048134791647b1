"""The result of a comparison, from both sides' runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

import attnscope
from attnscope.comparison.anatomy.anatomy import NoAttentionError
from attnscope.comparison.anatomy.operands import axis_of_positions
from attnscope.comparison.backward import compared_gradients
from attnscope.comparison.causes import N_CAUSES
from attnscope.comparison.divergence.roots import (
    SOURCES,
    Difference,
    difference,
    require_tensor,
    tensor_of,
    unraveled,
)
from attnscope.comparison.divergence.state import UNCHANGED, State, n_head_of
from attnscope.comparison.examine import Examination, Runs, examine, run_both
from attnscope.comparison.sides.pairing import Pairing
from attnscope.comparison.sides.side import Recorded, Side
from attnscope.errors import SizeError
from attnscope.files import shown_path
from attnscope.results.common import Check
from attnscope.results.comparison import ComparedTensor, Comparison, Site, WeightCopy


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
    exact = run_both(a, b, torch.float64, pairing.seed, exact=True)
    narrow = run_both(a, b, dtype, pairing.seed)
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
        return _by_output(result, exact, narrow, str(error))
    _check_shapes(examination, a, b)
    result.sizes = _sizes(examination)
    result.divergences = examination.divergences
    result.explained = examination.explained and all(each.cause for each in examination.divergences)
    result.n_causes = N_CAUSES
    result.status = "different" if examination.divergences else "equal"
    if not examination.divergences and not examination.explained:
        result.status = "undecided"
    result.tensors = list(_tensors(examination))
    if examination.left_out:
        longer, shorter = (a, b) if examination.left_out == "a" else (b, a)
        result.notices.append(
            f"{shorter.title} ends with {examination.end}: what {longer.title} computes after that is"
            " left out"
        )
    result.notices += [*a.notices, *b.notices, *_dropout_notices(a, b)]
    result.notices += _idle_notices(b, exact.b)
    if part != "b":
        result.notices += _weight_notices(a, b, copies, exact.b)
    result.notices += list(_notices(examination, pairing.dtype))
    if not examination.left_out:
        result.checks = [_check(exact, narrow, result.status == "equal")]
        if pairing.backward:
            result.gradients = compared_gradients(a, b, copies or [], dtype, pairing.seed)
            if any(each.status == "different" for each in result.gradients):
                result.status = "different"
    elif pairing.backward:
        result.notices.append("gradients were not compared: those of the whole outputs are not alike")
    return result


def _check(exact: Runs, narrow: Runs, is_equal: bool) -> Check:
    """Compare the outputs in the run's dtype."""
    a, b = narrow.a.output.tensor, narrow.b.output.tensor
    found = difference("output", a, b)
    rounding = sum(_rounding_of_outputs(exact, narrow))
    note = "largest difference of the outputs; rounding on both sides together is the tolerance"
    return Check("output", found.largest, rounding, is_equal, note)


def _rounding_of_outputs(exact: Runs, narrow: Runs) -> list[float]:
    """Return how far the run's dtype is from float64 in the output of each side."""
    pairs = (exact.a, narrow.a), (exact.b, narrow.b)
    return [difference("output", one.output.tensor, other.output.tensor).largest for one, other in pairs]


def _by_output(result: Comparison, exact: Runs, narrow: Runs, reason: str) -> Comparison:
    """Compare only the outputs, because one side has no attention that could be found."""
    a, b = exact.a.output.tensor, exact.b.output.tensor
    if a.shape != b.shape:
        raise _error_of_shapes("output", a.shape, b.shape, result.a, result.b)
    found = difference("output", a, b, min(_rounding_of_outputs(exact, narrow)))
    result.status = "equal" if found.is_equal else "different"
    result.checks = [_check(exact, narrow, found.is_equal)]
    result.divergences = [] if found.is_equal else None
    result.notices.append(f"only the outputs were compared: {reason}")
    return result


def _check_shapes(examination: Examination, a: Side, b: Side) -> None:
    """Raise a SizeError if the outputs, or what they first differ in, have different shapes."""
    for each in examination.divergences:
        found = examination.found.get(each.role)
        if found is not None and not found.is_comparable:
            raise _other_shapes(examination, each.role, a, b)


def _other_shapes(examination: Examination, role: str, a: Side, b: Side) -> SizeError:
    """Return an error that says which axis of a tensor has another size."""
    is_output = role == "output"
    one, other = (
        each.role(role).value.tensor.shape if is_output else require_tensor(each, role).shape
        for each in (examination.a, examination.b)
    )
    axes = () if is_output else examination.a.role(role).axes
    along = [axis_of_positions(each.anatomy) for each in (examination.a, examination.b)]
    if along[0] != along[1] and -2 in along:
        first, other_side = (b, a) if along[0] == -2 else (a, b)
        return SizeError(
            f"{first.title} attends along the first axis of its inputs, and {other_side.title} along the"
            " last but one.",
            hint="--init batch_first=True, or inputs that are arranged for it",
        )
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
    sizes = {"n_batch": n_lead // n_head, "n_head": n_head} if n_head else {"lead": n_lead}
    sizes |= {"n_Q": n_Q, "n_K": n_K, "d_head": Q.shape[-1]}
    return sizes | ({"d_V": V.shape[-1]} if V.shape[-1] != Q.shape[-1] else {})


def _tensors(examination: Examination) -> Iterable[ComparedTensor]:
    """Yield the tensors that both sides have, each with its status."""
    parted = {each.role for each in examination.divergences}
    ends = examination.a.anatomy.end, examination.b.anatomy.end
    of_scale = {each.role for each in examination.divergences if each.cause and "scale" in each.cause}
    n_head = n_head_of(examination.a, examination.b)
    for role, found in examination.found.items():
        is_idle = role in UNCHANGED and not _is_stage(examination, role)
        if is_idle or (role == "output" and ends[0] == ends[1] != "output"):
            continue
        tensor = require_tensor(examination.a, role)
        dims, shape = _axes(examination, role, tensor, n_head)
        yield ComparedTensor(
            role=role,
            dims=dims,
            shape=shape,
            a=_site(examination.a, role, is_scale=role in of_scale),
            b=_site(examination.b, role, is_scale=role in of_scale),
            largest=found.largest if found.is_comparable else None,
            index=dict(zip(dims, _unfolded(found.index, shape), strict=False)) if found.index else {},
            share=found.share,
            rounding=examination.rounding.get(role),
            status=_status(examination, role, found, parted),
            factor=found.factor,
        )


def _is_stage(examination: Examination, role: str) -> bool:
    """Return whether either side has a stage of its own, that changes something."""
    for state in (examination.a, examination.b):
        own, before = state.tensor(role), tensor_of(state, UNCHANGED[role])
        if own is not None and before is not None and not difference(role, before, own).is_equal:
            return True
    return False


def _status(examination: Examination, role: str, found: Difference, parted: set[str]) -> str:
    if role in parted:
        return "different"
    if found.is_equal or examination.is_small(role):
        return "equal"
    later = [each for each, sources in SOURCES.items() if role in sources and each in examination.found]
    if later and all(examination.found[each].is_equal for each in later):
        return "form"
    return "follows" if parted else "form"


def _axes(
    examination: Examination, role: str, tensor: torch.Tensor, n_head: int | None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names and sizes of a tensor's axes, heads apart from sequences if these are known."""
    own = examination.a.role(role)
    dims, shape = own.axes, tuple(tensor.shape)
    n_batch = require_tensor(examination.a, "Q").shape[0] // n_head if n_head else 1
    if dims[0] == "heads" and n_head and shape[0] % n_batch == 0:
        heads = "n_head" if shape[0] == n_batch * n_head else "n_kv_head"
        return ("n_batch", heads, *dims[1:]), (n_batch, shape[0] // n_batch, *shape[1:])
    if dims[0] == "lead" and n_head:
        return ("n_batch", "n_head", *dims[1:]), (shape[0] // n_head, n_head, *shape[1:])
    if dims[0] == "tokens" and own.value.tensor.ndim == 3:
        n = "n_Q" if role[0] in "Qxo" else "n_K"
        first, second = own.value.tensor.shape[:2]
        if role == "output" and n_head and first != n_batch == second:
            return (n, "n_batch", "d_feat"), (first, second, shape[-1])
        if role != "output" and n_head:  # arranged sequence by sequence
            first, second = n_batch, shape[0] // n_batch
        return ("n_batch", n, "d_feat"), (first, second, shape[-1])
    return dims, shape


def _unfolded(index: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return an index whose first axis counts several, by these axes."""
    n_counted = len(shape) - len(index) + 1
    return (*unraveled(index[0], shape[:n_counted]), *index[1:])


def _site(state: State, role: str, *, is_scale: bool = False) -> Site:
    """Return where a side computes a tensor.

    Args:
        state: the side.
        role: the tensor.
        is_scale: whether it matters where the scores are scaled.
    """
    own = state.role(role)
    scaled = state.anatomy.scaled if is_scale and role == "scores" else None
    shown = scaled or own.site or own.value
    place = shown.place
    inside = own.elements is None
    shape = tuple(own.tensor.shape if inside else shown.tensor.shape)
    if place is None:
        return Site(shown.input or shown.weight or role, "", None, None, shape)
    expression = f"inside {place.text}" if inside else place.text
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
    """Yield sentences about what differs less than rounding."""
    if examination.small and not examination.divergences:
        first = examination.small[0]
        size = examination.found[first.role].largest
        why = f": {first.explanation}" if first.cause else ""
        where = f"in float64 they differ by {size:.1e} from {first.role} on"
        yield f"{where}, less than rounding in {dtype}{why}"
