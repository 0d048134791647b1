"""Runs both sides, in float64 and in the run's dtype, and finds which tensors differ first, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

import torch

from attnscope.base.errors import SourceError
from attnscope.base.process.default_dtype import default_dtype
from attnscope.code.compare.causes import best_hypothesis
from attnscope.code.compare.causes.case import Case, Hypothesis
from attnscope.code.compare.divergence.first_difference import (
    TensorDifference,
    compared_pair,
    difference,
    differences,
    roots,
    usual_gap,
)
from attnscope.code.compare.divergence.state import RoleTensors, matching_leads
from attnscope.code.compare.result import Divergence
from attnscope.code.pairs.implementation import Recorded, Side
from attnscope.code.pairs.rounding import CLOSE
from attnscope.observe.operators.anatomy import Anatomy, NoAttentionError
from attnscope.observe.operators.output import fitting, goes_on, projects_again
from attnscope.observe.operators.tape import NotReplayableError, Value

MAX_DIVERGENCES = 12
"""The number of divergences that are looked for, one after the other."""

HALF = 0.5
"""The part of a difference that the closest cause may leave, if none explains all of it."""


@dataclass
class Examination:
    """What two runs have in common."""

    #: The tensors by role, in float64.
    a: RoleTensors
    b: RoleTensors
    found: dict[str, TensorDifference]
    #: By role, the difference that the run's dtype causes on the side where it is smaller.
    rounding: dict[str, float]
    #: By role, the difference of both sides in the run's dtype.
    narrow: dict[str, float] = field(default_factory=dict)
    #: The tensors that differ although their sources are equal, or were corrected.
    divergences: list[Divergence] = field(default_factory=list)
    #: Those that differ in float64 by less than rounding in the run's dtype.
    small: list[Divergence] = field(default_factory=list)
    #: Whether the outputs are equal once all of these tensors are corrected.
    explained: bool = False
    #: The side, `a` or `b`, that computes more than the other, which is compared up to `end`; None if
    #: neither does, or both are compared as a whole.
    left_out: str | None = None
    end: str = "output"
    #: By role and side, the result that shows the mistake, as far as one is proved to do so.
    sites: dict[str, Mapping[str, Value]] = field(default_factory=dict)

    @property
    def tolerances(self) -> dict[str, float]:
        """By role, the difference that counts as rounding."""
        return {role: CLOSE * each for role, each in self.rounding.items()}

    def is_rounding(self, role: str) -> bool:
        """Check whether a tensor is equal in the run's dtype, whatever float64 brings to light.

        One side may compute its rotary angles in float64 then, and the other may have a table of them
        in float32.
        """
        return self.narrow.get(role, inf) <= self.tolerances.get(role, 0.0)

    def is_small(self, role: str) -> bool:
        """Check whether the difference of a tensor is rounding."""
        found = self.found[role].largest
        return found <= self.tolerances.get(role, 0.0) or self.is_rounding(role)


@dataclass
class BothRuns:
    """Both sides' runs in one dtype."""

    a: Recorded
    b: Recorded


def run_both(a: Side, b: Side, dtype: torch.dtype, seed: int, *, exact: bool = False) -> BothRuns:
    """Run both sides in a dtype, from the same random state.

    If `exact`, they get float64 where they ask for float32.
    """
    with default_dtype(dtype):
        first, second = (each.in_dtype(dtype).run(seed, exact=exact) for each in (a, b))
    ranked = first.ranked, second.ranked
    first.chosen, second.chosen = fitting(first.returned, second.returned, ranked)
    return BothRuns(first, second)


def run_exactly(a: Side, b: Side, dtype: torch.dtype, seed: int) -> tuple[BothRuns, list[str]]:
    """Run both sides in float64, beside which their dtype shows its rounding.

    Code that raises in float64 runs in its dtype again, with weights and inputs that are a little
    larger: so all numbers are rounded in another way. A sentence says so if the runs are not in float64.
    """
    try:
        return run_both(a, b, torch.float64, seed, exact=True), []
    except SourceError as error:
        factor, name = slightly_larger(dtype), str(dtype).removeprefix("torch.")
        scaled = run_both(a.scaled(dtype, factor), b.scaled(dtype, factor), dtype, seed)
        return scaled, [f"compared in {name} alone: in float64, {error.message}"]


def slightly_larger(dtype: torch.dtype) -> float:
    """Return a factor by which numbers are rounded in another way in a dtype."""
    return 1 + 2 * torch.finfo(dtype).eps


def states(runs: BothRuns) -> tuple[RoleTensors, RoleTensors]:
    """Return the tensors of both sides by role, arranged alike."""
    anatomies = []
    for side, run in zip("ab", (runs.a, runs.b), strict=True):
        try:
            anatomies.append(run.anatomy())
        except NoAttentionError as error:
            raise NoAttentionError(f"{side}: {error}") from error
    a, b = anatomies
    if a.form != b.form:
        raise NoAttentionError(f"a is {a.form}, and b is {b.form}")
    if "Q" in a.origins and "Q" in b.origins:
        return _by_origin(a), _by_origin(b)
    first, second = RoleTensors(a), RoleTensors(b)
    return first, RoleTensors(b, matching_leads(first.tensors(), second.tensors()))


def _by_origin(anatomy: Anatomy) -> RoleTensors:
    """Return the tensors with leads in the order of the places in the source that they come from.

    Leads of the same queries, as of rows that share one map, follow in the order of their values; the
    heads of a sequence are neighbours.
    """
    order = torch.arange(anatomy.roles["Q"].tensor.shape[0])
    width = anatomy.roles["Q_split"].value.tensor.shape[-1]
    keys = [anatomy.origins["Q"] % width]
    if "V" in anatomy.origins and "V_split" in anatomy.roles:
        keys.append(anatomy.origins["V"] // anatomy.roles["V_split"].value.tensor.shape[-1])
    keys.append(anatomy.origins["Q"] // width)
    for key in keys:  # the last one counts most
        order = order[key.flatten(1).min(1).values[order].argsort(stable=True)]
    return RoleTensors(anatomy, order)


def examine(exact: BothRuns, narrow: BothRuns, *, part: str | None = None) -> Examination:
    """Compare two runs in float64, and decide with those in the run's dtype what is rounding.

    `part` is the side that may compute more than the other: `a` after the heads are merged or projected,
    as a model's layer; `b` after the output projection, as code beside a reference.
    """
    a, b = states(exact)
    shorter, longer = (a.anatomy, b.anatomy) if part == "b" else (b.anatomy, a.anatomy)
    is_cut = (part == "a" or (part == "b" and goes_on(longer))) and _cut(longer, shorter)
    is_open = part == "a" and not is_cut and projects_again(longer) and not projects_again(shorter)
    if is_open and goes_on(shorter):  # it adds its input, and the layer has an MLP after that
        for each in (longer, shorter):
            each.roles.pop("output", None)
    examination = Examination(a, b, differences(a, b), *_rounding((a, b), narrow))
    examination.left_out = part if is_cut or (is_open and "output" not in shorter.roles) else None
    examination.end = shorter.end if is_cut else "x"
    _find_divergences(examination)
    return examination


def _cut(longer: Anatomy, shorter: Anatomy) -> bool:
    """Leave out what one side computes after the other's end; return whether there is anything."""
    end = shorter.end
    if end in ("output", longer.end):
        return False
    shorter.roles.pop("output", None)
    for role in ("output", "x"):
        if role != end:
            longer.roles.pop(role, None)
    return True


def _find_divergences(examination: Examination) -> None:
    """Find the tensors that differ first, one after the other, and whether nothing else differs.

    Each of them is corrected, and what follows is computed again; one that differs by less than
    rounding is corrected, too, and not counted.
    """
    a, b = (RoleTensors(each.anatomy, each.order) for each in (examination.a, examination.b))
    tolerances, is_strict = examination.tolerances, True
    while len(examination.divergences) < MAX_DIVERGENCES:
        lenient = differences(a, b, tolerances)
        found = differences(a, b) if is_strict else lenient
        first = _first_root(found, b)
        if first is None:
            examination.explained = True
            return
        ends = [role for role in ("attention", list(lenient)[-1]) if role in lenient]
        agrees = all(lenient[role].is_equal for role in ends)
        if is_strict and agrees and not lenient[first].is_equal:
            is_strict = False  # the difference, such as another order of features, has no effect
            continue
        case = Case(first, a, b, found[first], tolerances.get(first, 0.0))
        divergence, cause = explained(case)
        if lenient[first].is_equal or examination.is_rounding(first):
            examination.small.append(divergence)
            if len(examination.small) >= MAX_DIVERGENCES or not _replaced(b, first, a):
                tolerances, is_strict = tolerances | {first: inf}, False
            continue
        examination.divergences.append(divergence)
        examination.sites[first] = sites_of(case, cause)
        wrong, right = (a, b) if cause is not None and cause.wrong == "a" else (b, a)
        if not _replaced(wrong, first, right, None if cause is None else cause.corrected):
            return


def without_counterpart(found: Mapping[str, TensorDifference]) -> list[str]:
    """Return the tensors of other shapes, if scores and outputs have the same shapes on both sides.

    Queries of latent attention may be projected into the latent space, for example, in place of its
    keys out of it: scores and output are the same then, and what is between is not.
    """
    ends = [role for role in ("scores", list(found)[-1]) if role in found]
    if len(ends) < 2 or not all(found[role].is_comparable for role in ends):
        return []
    return [role for role, each in found.items() if not each.is_comparable]


def _first_root(found: Mapping[str, TensorDifference], b: RoleTensors) -> str | None:
    """Return the tensor that differs first in the order of b's code; None if the outputs are equal."""
    lost = without_counterpart(found)
    wrong = roots({role: each for role, each in found.items() if role not in lost})
    if not wrong:
        return None

    def time(role: str) -> int:
        known = b.anatomy.roles.get(role)
        return (known.site or known.value).index if known is not None else -1

    return min(wrong, key=lambda role: (time(role) < 0, time(role)))


def explained(case: Case) -> tuple[Divergence, Hypothesis | None]:
    """Return a divergence, with its cause or the closest one; and the hypothesis if it holds."""
    if not case.found.is_comparable:
        return Divergence(case.role, None, None, None), None
    best, largest = best_hypothesis(case), case.found.largest
    if best is not None and case.is_explained_by(best):
        return Divergence(case.role, best.name, best.text, best.rest.largest, largest), best
    if best is None or best.rest.largest > HALF * min(largest, float(best.observed.abs().max())):
        return Divergence(case.role, None, None, None, largest), None
    return Divergence(case.role, None, best.text, best.rest.largest, largest), None


def sites_of(case: Case, cause: Hypothesis | None) -> Mapping[str, Value]:
    """Return by side the result that shows a mistake: of the cause, or of the first operation."""
    found = case.operations
    sites = {} if found is None else {"a": found.a, "b": found.b}
    return sites if cause is None else {**sites, **cause.where}


def _replaced(
    state: RoleTensors, role: str, other: RoleTensors, corrected: torch.Tensor | None = None
) -> bool:
    """Replace a tensor of one side, by default with the other's, and return whether that succeeded."""
    for name in (role, role.removesuffix("_split")):
        own = state.tensor(name)
        new = other.tensor(name) if corrected is None or name != role else corrected
        if own is None or new is None or own.shape != new.shape:
            return False
        try:
            state.replace(name, new)
        except (NotReplayableError, RuntimeError):
            return False
        now = state.tensor(name)
        if now is not None and difference(new, now).is_equal:
            return True
    return False


def _rounding(
    exact: tuple[RoleTensors, RoleTensors], narrow: BothRuns
) -> tuple[dict[str, float], dict[str, float]]:
    """Return by role what the run's dtype causes on the side where it is less; and the gap in it."""
    try:
        runs = states(narrow)
    except NoAttentionError:
        return {}, {}
    one, two = (RoleTensors(run.anatomy, each.order) for each, run in zip(exact, runs, strict=True))
    roles = dict.fromkeys((*one.anatomy.roles, *two.anatomy.roles))
    rounding = {role: min(_gap(exact[0], one, role), _gap(exact[1], two, role)) for role in roles}
    pairs = {role: _pair(one, two, role) for role in roles}
    gaps = {  # not of those that differ in outliers
        role: _gap(one, two, role)
        for role, pair in pairs.items()
        if pair is None or difference(*pair, usual_gap(*pair)).is_equal
    }
    return {role: each for role, each in rounding.items() if isfinite(each)}, gaps


def _pair(a: RoleTensors, b: RoleTensors, role: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the tensor of a role of both sides; None if one is missing, or their shapes differ."""
    if a.tensor(role) is None or b.tensor(role) is None:
        return None
    first, second = compared_pair(a, b, role)
    return None if first.shape != second.shape else (first, second)


def _gap(a: RoleTensors, b: RoleTensors, role: str) -> float:
    """Return the largest difference of a tensor, but for outliers; infinity if the shapes differ."""
    pair = _pair(a, b, role)
    if pair is None:
        return inf
    gap = usual_gap(*pair)
    if role == "scores_masked":  # what hides all keys of a query shows in its weights
        one, other = (each[role].softmax(-1) for each in (a, b))
        gap = max(gap, usual_gap(one, other))
    return gap
