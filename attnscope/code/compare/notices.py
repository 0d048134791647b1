"""What a comparison says beside its verdict: what was left out, not used or not finite, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from attnscope.base.errors import SourceError
from attnscope.base.process.files import place_text, shown_path
from attnscope.base.units import difference_text
from attnscope.code.compare.divergence.find_divergences import BothRuns, Examination, without_counterpart
from attnscope.code.compare.divergence.first_difference import difference, numbers
from attnscope.code.compare.result import ComparedTensor, Comparison
from attnscope.code.pairs.implementation import Recorded, Side
from attnscope.code.pairs.rounding import CLOSE
from attnscope.observe.operators.chain import first_not_finite


def left_out_notices(examination: Examination, a: Side, b: Side) -> Iterable[str]:
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


def output_notices(*sides: tuple[Side, Recorded]) -> Iterable[str]:
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


def add_weight_notices(result: Comparison, a: Side, b: Side, exact: BothRuns, part: str | None) -> None:
    """Add to a result what is said of weights that a side does not use, and of those that only b has."""
    idle_in_b = _idle(b, exact.b)
    idle_in_a = [each for each in _idle(a, exact.a) if each not in idle_in_b]
    for side, names in ((b, idle_in_b), (a, idle_in_a if part is None else [])):
        if names:
            result.notices.append(f"{_are(names, side)} not used")
    if part == "b" or result.weights is None:
        return
    known = {*idle_in_b, *(each.b for each in result.weights)}
    zeros = {name: not bool(each.any()) for name, each in b.parameters.items() if name not in known}
    result.zeroed = [name for name, is_zero in zeros.items() if is_zero]
    own = [name for name, is_zero in zeros.items() if not is_zero]
    for names, words in ((result.zeroed, "set to 0"), (own, "left as drawn")):
        if names:
            result.notices.append(f"{_are(names, b)} {words}: {a.title} has none like that")


def _idle(side: Side, run: Recorded) -> list[str]:
    """Return the weights that a side does not use."""
    used = {each.weight for each in run.tape.values}
    return [name for name in side.parameters if name not in used]


def _are(names: Sequence[str], side: Side) -> str:
    """Name weights of a side as the subject of a sentence."""
    return f"{', '.join(names)} of {side.title} {'is' if len(names) == 1 else 'are'}"


def dropout_notices(*sides: Side, beside: bool) -> list[str]:
    """Return a sentence for each side whose dropout is off, because it runs in evaluation mode.

    `beside` says that other dropout is active.
    """
    what = "the dropout of modules (nn.Dropout)" if beside else "dropout"
    found = []
    for side in sides:
        modules = side.module.modules() if side.module is not None else ()
        rates = sorted({each.p for each in modules if isinstance(each, nn.Dropout) and each.p > 0})
        if rates:
            found.append(f"{what} is off in {side.title} (p = {', '.join(f'{p:g}' for p in rates)})")
    return found


def rounding_notices(examination: Examination, dtype: str) -> Iterable[str]:
    """Yield sentences about tensors without a counterpart, and what differs less than rounding."""
    if lost := without_counterpart(examination.found):
        yield f"{', '.join(lost)} have other shapes on both sides, and were not compared"
    if examination.small and not examination.divergences:
        first = examination.small[0]
        size, rounding = examination.found[first.role].largest, examination.rounding.get(first.role, 0.0)
        why = f": {first.explanation}" if first.cause else ""
        limit = f"{'less than' if size <= rounding else 'about as much as'} rounding in {dtype}"
        if size > CLOSE * rounding:  # as one side's cosines from a table in the run's dtype
            limit = f"and in {dtype} by no more than rounding"
        where = f"in float64 they differ by {difference_text(size)} from {first.role} on"
        yield f"{where}, {limit}{why}"


def idle_notices(examination: Examination, tensors: Iterable[ComparedTensor]) -> Iterable[str]:
    """Yield sentences about tensors that differ without effect on the output, and why."""
    others = [each for each in tensors if each.status == "form" and each.largest is not None]
    names = [each.role for each in others if each.factor is None]  # a factor may be in the scale
    if names:
        yield f"{_differ(names)} without effect on the output: {_why_idle(examination)}"
    a, b = examination.a, examination.b
    padding = [
        role
        for role in ("K", "V")
        if role in examination.found
        and examination.found[role].is_equal
        and not difference(a[role], b[role]).is_equal
    ]
    if padding:
        yield f"{_differ(padding)} at keys that both masks hide, which has no effect"


def _differ(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"


def _why_idle(examination: Examination) -> str:
    """Say why tensors that differ have no effect on the output."""
    a, b = (numbers(each["K"]) for each in (examination.a, examination.b))
    if a.shape == b.shape:
        added = a - b
        is_bias = difference(added, added[:, :1].expand_as(added)).is_equal
        if is_bias and not examination.found["K"].is_equal:
            return (
                "a key's bias cancels in the softmax, because it adds the same to all scores of a query"
            )
    if examination.found["scores"].is_equal or examination.is_small("scores"):
        return "the scores are the same"
    if examination.divergences:
        return "with what differs first corrected, the outputs are equal"
    return "attention and output are the same"


def require_finite(a: tuple[Side, Recorded], b: tuple[Side, Recorded]) -> None:
    """Raise if neither output has a finite number: then nothing can be compared."""
    outputs = [run.output.tensor for _, run in (a, b)]
    if all(each.numel() and not bool(each.isfinite().any()) for each in outputs):
        raise SourceError(
            f"the outputs of {a[0].title} and {b[0].title} are not comparable, because neither has a"
            f" finite number: {_origin(a[1])} in a, {_origin(b[1])} in b."
        )


def undecided_because(
    exact: tuple[Recorded, Recorded], narrow: tuple[Recorded, Recorded], end: torch.Tensor, dtype: str
) -> str | None:
    """Explain why it is undecided whether two sides are equal; None if it is decided.

    `end` is the last tensor of a that was compared; b's is equal where it is not NaN.
    """
    n_nan = int(end.isnan().sum())
    if n_nan:
        share = n_nan / end.numel()
        return (
            f"{share:.0%} of the compared numbers are NaN on both sides, which shows nothing; the others"
            f" are equal: {_origin(exact[0])} in a"
        )
    for letter, wide, run in zip("ab", exact, narrow, strict=True):
        before, after = wide.output.tensor, run.output.tensor
        if bool((before.isfinite() & ~after.isfinite()).any()):
            where = f"not all of {letter}'s output is finite: {_origin(run)}"
            return f"equal in float64, but in {dtype} {where}"
    return None


def _origin(run: Recorded) -> str:
    """Return in words where the first number that is not finite arises, of those in the output."""
    first, _, is_nan = first_not_finite(run.output)
    name, place = first.input or first.weight, first.place
    where = f"with {name or 'a constant'}"
    if name is None and place is not None:
        where = f"with {place.text} ({place_text(shown_path(place.file), place.line)})"
    return f"{'NaN' if is_nan else 'infinity'} begins {where}"
