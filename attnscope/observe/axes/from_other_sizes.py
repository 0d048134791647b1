"""Names for the axes of a trace, inferred by running the same code with other sizes."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, takewhile
from math import prod
from typing import TYPE_CHECKING

from attnscope.base.errors import AttnscopeError, is_a, stored_in
from attnscope.document.result import Finding
from attnscope.observe.axes.expressions import parse_expression
from attnscope.observe.axes.requirements import Requirement, fixed
from attnscope.observe.axes.search import Attempt, Search
from attnscope.observe.axes.symbols import AxisOrigin, Symbols
from attnscope.observe.diagnose.crash import FailedTensor, Failure, Shape
from attnscope.observe.instrument.rewrite import Place
from attnscope.observe.operator_names import NATIVE
from attnscope.observe.trace import Condition, Source, Step

if TYPE_CHECKING:
    from attnscope.observe.axes.from_source import ObservedAxes
    from attnscope.observe.axes.symbols import AxisOrigins

N_RUNS = 3
"""The number of runs with other sizes."""

KEYS_AND_VALUES = {"n_K", "n_V"}
"""The numbers of keys and values, which must be equal."""

NOT_BY_CODE = (AttnscopeError, MemoryError)
"""The exceptions of runs with other sizes that are not the code's."""

Key = tuple[str | None, int | None, str]


@dataclass
class SizedRun:
    """One run of the code."""

    steps: list[Step]
    parts: dict[Place, Shape]  #: the last shapes of its expressions
    #: scales and widths for the findings, by kind, line and iteration
    amounts: dict[tuple, float] = field(default_factory=dict)
    #: shapes before and after views that regroup several axes, by line and iteration
    views: dict[tuple, tuple[Shape, Shape]] = field(default_factory=dict)
    #: the lines of views that shift rows, as relative positions do
    shifts: set[tuple[str, int]] = field(default_factory=set)
    failure: Failure | None = None  #: the failure, if it occurred in code whose source is known
    error: BaseException | None = None  #: the exception that it raised, if any
    #: the exception that ended the recording, but not the run, if any
    tracing_error: BaseException | None = None
    findings: list[Finding] = field(default_factory=list)  #: the likely mistakes found in this run
    saw_softmax: bool = False  #: whether a softmax ran
    #: what else was seen, and what was not recorded, and why
    notices: list[str] = field(default_factory=list)
    sources: list[Source] | None = None  #: the functions that ran; None if they were not requested
    device: str | None = None
    #: the shapes of parameters and buffers, each with its bytes
    weights: list[tuple[Shape, int]] = field(default_factory=list)
    observed: ObservedAxes | None = None  #: where the axes come from; None if that was not followed

    @property
    def used_native_kernels(self) -> bool:
        """Whether torch chose kernels that exist for tensors with values only."""
        return any(step.inside is not None and step.inside in NATIVE for step in self.steps)

    def memory(self) -> list[tuple[Shape, int]]:
        """Return the shapes of weights, inputs and results, each with the bytes allocated for it."""
        results = [
            (step.shape, step.bytes if step.how == "input" else step.fresh_bytes or 0)
            for step in self.steps
        ]
        return self.weights + results


@dataclass
class Inferred:
    """The inferred names of the sizes in a run."""

    symbols: Symbols  #: the names, with their sizes in every run
    #: the run with the original sizes, those with other sizes, and those that failed
    runs: list[SizedRun]
    #: the runs that failed, each with the requirement that fixed it, and its sizes
    refusals: list[tuple[Requirement, SizedRun, dict[str, int]]] = field(default_factory=list)
    #: those of these requirements without which all runs failed
    required: list[Requirement] = field(default_factory=list)
    #: other requirements, which help to name axes
    assumed: list[Requirement] = field(default_factory=list)
    complete: bool = True  #: whether the code runs with other sizes at all
    too_many: bool = False  #: whether there are too many sizes to search for others
    #: what the code of the first run says of axes; None: sizes name axes by their equality
    evidence: AxisOrigins | None = None

    def name_axes(self) -> None:
        """Set the dims of the steps of the first run."""
        for step, shapes in self._shapes():
            origins = None if self.evidence is None else self.evidence.of_step(step)
            step.dims = self.explain(shapes, origins)

    def unnamed(self) -> int:
        """Count the axes of the first run that change with the sizes and have no name."""
        count = 0
        for step, shapes in self._shapes():
            comparable = [each for each in shapes if each and len(each) == len(step.shape)]
            for axis, name in enumerate(self.explain(shapes)):
                changes = any(each[axis] != step.shape[axis] for each in comparable)
                count += changes and name.isdigit()
        return count

    def _shapes(self) -> Iterator[tuple[Step, list[Shape | None]]]:
        """Yield the steps of the first run, each with its shapes in all runs."""
        shapes = [_shapes_by_key(run.steps) for run in self.runs]
        iterations: dict[Key, int] = defaultdict(int)
        for step in self.runs[0].steps:
            if step.members is not None:  # it only names other steps
                continue
            key = _key(step)
            turn, iterations[key] = iterations[key], iterations[key] + 1
            turns = len(shapes[0][key])
            of_runs = [each.get(key, []) for each in shapes]
            n_whole = len(self.runs) - len(self.refusals)
            whole = [_same_turn(each, turn, turns) for each in of_runs[:n_whole]]
            # A run that failed did not reach the last turn.
            yield step, whole + [next(iter(each[turn : turn + 1]), None) for each in of_runs[n_whole:]]

    def dims_of(self, part: FailedTensor) -> tuple[str, ...]:
        """Return the dims of an expression of the first run."""
        shapes = [run.parts.get(part.place) for run in self.runs]
        if shapes[0] is None or tuple(shapes[0]) != part.shape:
            for step in reversed(self.runs[0].steps):
                if (step.name, step.shape) == (part.text, part.shape):
                    return step.dims or tuple(map(str, part.shape))
            return tuple(map(str, part.shape))
        return self.explain(shapes, None if self.evidence is None else self.evidence.of_part(part))

    def explain(
        self, shapes: Sequence[Shape | None], origins: Sequence[AxisOrigin] | None = None
    ) -> tuple[str, ...]:
        """Return the dims of a tensor.

        Args:
            shapes: its shapes in all runs; None for a run without it.
            origins: where the code takes each axis from; None: unknown.
        """
        first = shapes[0] or ()
        missing = (None,) * len(first)
        comparable = [each if each and len(each) == len(first) else missing for each in shapes]
        several = missing if origins is None else origins
        return tuple(map(self._explain_size, zip(*comparable, strict=True), several))

    def _explain_size(self, sizes: Sequence[int | None], origin: AxisOrigin | None) -> str:
        """Name a size from all runs, or from the successful runs alone if that name is simpler."""
        name = self.symbols.explain(sizes, origin)
        if name.isidentifier():
            return name
        n_whole = len(self.runs) - len(self.refusals)
        alone = self.symbols.explain(sizes[:n_whole], origin)
        if not name.isdigit():
            return alone if alone.isidentifier() else name
        expression = parse_expression(alone)
        for run, size in enumerate(sizes[n_whole:], start=n_whole):
            if expression is not None and size:
                value = expression.size({word: each[run] for word, each in self.symbols.sizes.items()})
                if not size / 2 < value < size * 2:  # the code may round, as in `n // m * m`
                    return name
        return alone

    def amounts(self, key: tuple) -> list[float | None]:
        """Return an amount in each run; None for a run without it."""
        return [run.amounts.get(key) for run in self.runs]


def infer(
    base: SizedRun,
    attempt: Callable[[dict[str, int]], SizedRun],
    original: Mapping[str, int],
    *,
    axes: Collection[str] = (),
    defaults: Collection[str] = (),
    known: Iterable[Requirement] = (),
) -> Inferred:
    """Run code with other sizes until all axes can be distinguished.

    Args:
        original: the sizes that have names; every attempt has sizes of the same names.
        axes: the names of the inputs' axes among them.
        defaults: names among them that the user does not set: they keep their sizes if the code requires
            it.
        known: the requirements that the user states.
    """
    base_keys = list(dict.fromkeys(map(_key, base.steps)))
    tried: dict[tuple[int, ...], SizedRun] = {}
    sizes_of: dict[int, dict[str, int]] = {}

    def run_with(sizes: dict[str, int]) -> SizedRun:
        key = tuple(sizes[name] for name in original)
        if key not in tried:
            tried[key] = attempt(sizes)
            sizes_of[id(tried[key])] = sizes
        return tried[key]

    def try_sizes(all_sizes: list[dict[str, int]]) -> Attempt:
        runs = [base]
        for sizes in all_sizes:
            run = run_with(sizes)
            found = {_key(step) for step in run.steps} - _degenerate(run, base)
            reached = len(list(takewhile(found.__contains__, base_keys)))
            if reached < len(base_keys) or (run.error is not None and base.error is None):
                failure, error = run.failure, run.error
                stack = traceback.walk_tb(error.__traceback__ if error is not None else None)
                line = failure.line if failure else [0, *(line for _, line in stack)][-1]
                by_code = is_a(run.error, Exception) and not issubclass(type(run.error), NOT_BY_CODE)
                names = _names_in(failure, sizes) if failure else frozenset()
                return Attempt((reached, line), whole=False, rejected=by_code, names=names, run=run)
            runs.append(run)
        columns = {
            name: [size, *(sizes[name] for sizes in all_sizes)] for name, size in original.items()
        }
        unnamed = Inferred(Symbols(columns), runs).unnamed()
        return Attempt((reached, 0), whole=True, unnamed=unnamed, run=run)

    known = tuple(known)
    search = Search(try_sizes, original, known, frozenset(axes))
    plan = search.plan()
    if defaults and (plan is None or any(r.is_fixed for r in search.required)):
        other = Search(try_sizes, original, known, frozenset(axes), frozenset(defaults))
        other_plan = other.plan()
        if other_plan is not None:
            search, plan = other, other_plan
    refusals = [(r, run, sizes_of[id(run)]) for r, run in search.refusals if isinstance(run, SizedRun)]
    runs, all_sizes = [base], [dict(original)]
    turns = [plan.sizes(turn) for turn in range(N_RUNS)] if plan is not None else []
    for sizes in [*turns, *(other.sizes(0) for other in search.others)]:
        run = run_with(sizes) if sizes is not None else None
        if sizes is not None and run is not None and {_key(s) for s in run.steps} >= set(base_keys):
            runs.append(run)
            all_sizes.append(sizes)
    complete = len(runs) > 1
    for _, run, sizes in refusals:  # until they failed, they distinguish sizes that must be equal later
        runs.append(run)
        all_sizes.append(sizes)
    constant = {each.name for each in search.assumed if each.is_fixed}
    # A sum is no accident: sizes that are equal, or products of others, may be.
    decided = [each for each in search.assumed if each.decides and each.is_product and each not in known]
    tied = {name for each in decided for name in (each.name, *each.of)} - constant
    symbols = Symbols({name: [sizes[name] for sizes in all_sizes] for name in original}, constant, tied)
    return Inferred(
        symbols, runs, refusals, search.required, search.assumed, complete, search.has_too_many
    )


def _names_in(failure: Failure, sizes: Mapping[str, int]) -> frozenset[str]:
    """Return the names whose sizes are, or divide, those of the tensors in an expression that failed."""
    axes = {size for part in failure.parts for size in part.shape}
    divide = (n for n, size in sizes.items() if size > 1 and any(axis % size == 0 for axis in axes))
    return frozenset(divide)


def conditions(inferred: Inferred) -> list[Condition]:
    """Return the conditions that the code puts on sizes, and those that were assumed to name axes.

    If no run had other sizes, none was assumed. A size that equals one that never varied is only known
    to have stayed as it was.
    """
    if not inferred.complete:
        return []
    required = [_rejection(each, run) for each, run, _ in inferred.refusals if each in inferred.required]
    n_whole = len(inferred.runs) - len(inferred.refusals)
    varied = {
        name for name, all_sizes in inferred.symbols.sizes.items() if len(set(all_sizes[:n_whole])) > 1
    }
    if not varied:
        return required
    stayed = {each: each.is_equality and each.name not in varied for each in inferred.assumed}
    assumed = [
        fixed(each.name, inferred.symbols.sizes[each.name][0]) if stayed[each] else each
        for each in inferred.assumed
    ]
    return required + [Condition(str(each), required=False) for each in dict.fromkeys(assumed)]


def _rejection(requirement: Requirement, run: SizedRun) -> Condition:
    """Return a condition, and where the code rejects sizes that do not fulfil it."""
    failure = run.failure
    if failure is not None:
        return Condition(str(requirement), True, failure.expression, failure.file, failure.line)
    frames = traceback.extract_tb(stored_in(run.error, "__traceback__")) if run.error else []
    if not frames:
        return Condition(str(requirement), True)
    last = frames[-1]
    file = last.filename.rpartition("site-packages/")[2]
    return Condition(str(requirement), True, last.line or None, file, last.lineno)


def coincidences(
    inferred: Inferred, axes: Collection[str], widths: Collection[str], *, all_sizes_named: bool
) -> list[Finding]:
    """Find code that runs only because sizes happen to be equal or to divide each other.

    Requirements that the code states itself (`assert`, `raise`), and equal widths in a
    product, are not coincidences; nor is a width that divides into heads.

    Args:
        axes: the names of the axes of the inputs.
        widths: the names of last axes of inputs.
        all_sizes_named: whether every size passed to the constructor has a name; otherwise a fixed size
            may depend on an unnamed one.
    """
    findings: dict[int, Finding] = {}  # one for a line
    for requirement, run, sizes in inferred.refusals:
        failure = run.failure
        if failure is None or not failure.kind:
            continue
        names = {requirement.name, *requirement.of}
        mixing = failure.kind == "view" and _mixes(failure, inferred.runs)
        is_required = requirement in inferred.required
        equal = requirement.is_equality and is_required
        natural = not equal or bool(names & set(widths)) or names == KEYS_AND_VALUES
        if failure.kind == "contraction" and natural:
            continue
        splits = requirement.multiple and not set(requirement.of) & set(axes)  # a width into heads
        constant = requirement.is_fixed and is_required and all_sizes_named
        if (names <= set(axes) and (mixing or equal or constant)) or (
            mixing and names & set(axes) and not splits and failure.line not in findings
        ):
            message = _in_words(inferred, requirement, failure, sizes)
            if message is not None:
                findings[failure.line] = Finding(message, failure.line)
    return list(findings.values())


def regrouped_views(inferred: Inferred) -> list[Finding]:
    """Find views of the right shape whose elements are in the wrong places.

    If heads are merged without moving their axis back first, an axis of the result has the size of one
    of the input, but other content. Shifting rows by one on purpose, as relative positions do, uses
    an axis of size `n+1` and is not reported; nor is an axis with a constant size, such as a window.
    """
    findings: dict[int, Finding] = {}
    for key in inferred.runs[0].views:
        views = [run.views.get(key) for run in inferred.runs]
        others = [each for each in views[1:] if each]
        if not others:
            continue
        old, new = (inferred.explain([each and each[side] for each in views]) for side in (0, 1))
        shifts = any("+" in axis or "-" in axis for axis in (*old, *new))
        for before, after in regroupings(*others[0]):
            several = len(before) > 1 and len(after) > 1 and not shifts
            for i, j in product(before, after) if several else ():
                inner = prod(others[0][0][i + 1 : before[-1] + 1])
                same = old[i] == new[j] and not old[i].isdigit()
                if same and inner != prod(others[0][1][j + 1 : after[-1] + 1]):
                    message = (
                        f"viewing [{', '.join(old)}] as [{', '.join(new)}] scrambles {old[i]}: the"
                        " axis no longer holds the same elements. Is a transpose missing?"
                    )
                    findings.setdefault(key[0][1], Finding(message, key[0][1]))
    return list(findings.values())


def _in_words(
    inferred: Inferred, requirement: Requirement, failure: Failure, sizes: Mapping[str, int]
) -> str | None:
    """Describe a coincidence; return None if a shape or the reason is unknown."""
    names = [requirement.name, *requirement.of]
    others = " and ".join(f"{name} = {sizes[name]}" for name in names)
    base = inferred.runs[0]
    parts = [part for part in failure.parts if _base_shape(part, base) is not None]
    if not parts:
        return None
    if failure.kind == "view":
        result = base.parts.get(failure.place) if failure.place else None
        into = f" as {'×'.join(map(str, result))}" if result else ""
        return (
            f"{failure.expression} views {_with_dims(inferred, parts[0])}{into}: the sizes match only by"
            f" coincidence, so it may mix elements of different axes. With {others} it fails"
        )
    shapes = " and ".join(_with_dims(inferred, part) for part in parts)
    size = inferred.symbols.sizes[requirement.name][0]
    if requirement.is_equality:
        why = f"only because {' and '.join(names)} are both {size}"
    elif requirement.is_fixed:
        why = f"only with {requirement.name} = {size}"
    else:
        return None
    is_mask = failure.kind == "broadcast" and any("mask" in part.text for part in parts)
    end = "Is an axis missing from the mask?" if is_mask else "Is that intended?"
    return f"{failure.expression} works {why}: {shapes}. With {others} it fails. {end}"


def _with_dims(inferred: Inferred, part: FailedTensor) -> str:
    """Describe a part with the names of its axes, inferred from runs where equal sizes differ."""
    base = inferred.runs[0]
    parts = [run.failure.parts if run.failure else [] for run in inferred.runs]
    refused = [next((p.shape for p in each if p.place == part.place), None) for each in parts]
    shape = _base_shape(part, base) or part.shape
    dims = inferred.explain([shape, *refused[1:]])
    named = zip(dims, shape, strict=True)
    axes = (str(size) if name == str(size) else f"{name} {size}" for name, size in named)
    return f"{part.text} [{', '.join(axes)}]"


def _mixes(failure: Failure, runs: Sequence[SizedRun]) -> bool:
    """Check whether a view splits several axes and merges them in another way, in any run.

    Splitting one axis into heads, or merging heads into one axis, does not count.
    """
    before = _base_shape(failure.parts[0], runs[0]) if failure.parts else None
    after = runs[0].parts.get(failure.place) if failure.place else None
    if not before or not after or (failure.file, failure.line) in runs[0].shifts:
        return False
    elsewhere = any(line == (failure.file, failure.line) for run in runs for line, _ in run.views)
    return elsewhere or any(len(a) > 1 and len(b) > 1 for a, b in regroupings(before, after))


def regroupings(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Match the axes of two shapes of the same elements: groups of axes that a view regroups.

    Axes of size 1 belong to no group.

    >>> regroupings((64, 48, 200), (32, 96, 5, 40))
    [([0, 1], [0, 1]), ([2], [2, 3])]
    """
    groups: list[tuple[list[int], list[int]]] = []
    old = [axis for axis, size in enumerate(before) if size != 1]
    new = [axis for axis, size in enumerate(after) if size != 1]
    left: list[int] = []
    right: list[int] = []
    while old or new:
        if old and prod(before[axis] for axis in left) <= prod(after[axis] for axis in right):
            left.append(old.pop(0))
        elif new:
            right.append(new.pop(0))
        else:
            break
        if prod(before[axis] for axis in left) == prod(after[axis] for axis in right):
            groups.append((left, right))
            left, right = [], []
    return groups


def _base_shape(part: FailedTensor, base: SizedRun) -> Shape | None:
    if part.place in base.parts:
        return tuple(base.parts[part.place])
    line = part.place[1]
    before = [s for s in base.steps if s.name == part.text and (s.line or 0) < line]
    return before[-1].shape if before else None


def _same_turn(shapes: list[Shape], turn: int, turns: int) -> Shape | None:
    """Return the shape of the same loop iteration in another run; last matches last."""
    if not shapes:
        return None
    last = len(shapes) - 1
    return shapes[last if turn == turns - 1 else min(turn, max(last - 1, 0))]


def _key(step: Step) -> Key:
    return step.file, step.line, step.name


def _degenerate(run: SizedRun, base: SizedRun) -> set[Key]:
    """Return the steps of which axes have vanished, or have become so short that they broadcast."""
    before = _shapes_by_key(base.steps)
    return {
        key
        for key, shapes in _shapes_by_key(run.steps).items()
        if len(shapes) == len(before.get(key, ()))
        for pair in zip(shapes, before[key], strict=True)
        for now, then in zip(*pair, strict=False)
        if now < 2 <= then
    }


def _shapes_by_key(steps: list[Step]) -> dict[Key, list[Shape]]:
    shapes: dict[Key, list[Shape]] = defaultdict(list)
    for step in steps:
        shapes[_key(step)].append(step.shape)
    return shapes
