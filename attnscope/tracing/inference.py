"""Names the axes of a trace, by running the same code again with other sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from attnscope.results import Finding, Source, Step
from attnscope.tracing.crash import Failure, Part, Shape
from attnscope.tracing.resize import Attempt, Fixed, Product, Requirement, Search
from attnscope.tracing.rewrite import Place
from attnscope.tracing.symbols import Symbols

TURNS = 3
"""How often code is run with other sizes."""

Key = tuple[str | None, int | None, str]


@dataclass
class Run:
    """One run of the code.

    Attributes:
        steps: what was recorded.
        parts: the last shapes of the expressions in it.
        amounts: numbers that findings are about, by what they are and where they come from.
        failure: why it failed, if it did in code that we know.
        error: what it raised, if it did.
        findings: what looked wrong while it ran.
        sources: the functions that ran.
    """

    steps: list[Step]
    parts: dict[Place, Shape]
    amounts: dict[tuple, float] = field(default_factory=dict)
    failure: Failure | None = None
    error: BaseException | None = None
    findings: list[Finding] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)


@dataclass
class Inferred:
    """What is known of the sizes in a run.

    Attributes:
        symbols: the names, with what they stood for in every run.
        runs: the run with the given sizes, and those with others.
        refusals: the runs that failed, each with the requirement that mended it, and its sizes.
        complete: whether other sizes were found at all.
    """

    symbols: Symbols
    runs: list[Run]
    refusals: list[tuple[Requirement, Run, dict[str, int]]] = field(default_factory=list)
    complete: bool = True

    def name_axes(self) -> None:
        """Give the steps of the first run their dims."""
        shapes = [_shapes_by_key(run.steps) for run in self.runs]
        seen: dict[Key, int] = defaultdict(int)
        for step in self.runs[0].steps:
            key = _key(step)
            turn, seen[key] = seen[key], seen[key] + 1
            step.dims = self._explained(
                step.shape, [each[key][min(turn, len(each[key]) - 1)] for each in shapes if key in each]
            )

    def dims_of(self, part: Part) -> tuple[str, ...]:
        """The axes of an expression of the first run."""
        shapes = [run.parts[part.place] for run in self.runs if part.place in run.parts]
        if not shapes or tuple(shapes[0]) != part.shape:
            for step in reversed(self.runs[0].steps):
                if (step.name, step.shape) == (part.text, part.shape):
                    return step.dims or tuple(map(str, part.shape))
        return self._explained(part.shape, shapes)

    def amount(self, key: tuple) -> tuple[float, ...]:
        """A number of each run; of the first alone, if the others have none."""
        values = [run.amounts.get(key) for run in self.runs]
        return tuple(v for v in values if v is not None) if None not in values else (values[0] or 0.0,)

    def _explained(self, shape: Shape, shapes: list[Shape]) -> tuple[str, ...]:
        if len(shapes) < len(self.runs) or any(len(each) != len(shape) for each in shapes):
            shapes = [shape]  # made in this run alone
        return tuple(self.symbols.explain(sizes) for sizes in zip(*shapes, strict=True))


def infer(
    base: Run,
    attempt: Callable[[dict[str, int]], Run],
    given: Mapping[str, int],
    *,
    defaults: Collection[str] = (),
    known: Iterable[Requirement] = (),
) -> Inferred:
    """Run code with other sizes until each axis is told from every other.

    Args:
        base: the run with the given sizes.
        attempt: runs the code with others.
        given: the sizes that have names, and must have the same names in every attempt.
        defaults: names among them that nobody said: they stay as they are, if the code wants that.
        known: what is required of sizes, as the user says.
    """
    made = list(dict.fromkeys(map(_key, base.steps)))
    refused: dict[int, dict[str, int]] = {}

    def try_sizes(sizes: dict[str, int]) -> Attempt:
        run = attempt(sizes)
        refused[id(run)] = sizes
        found = {_key(step) for step in run.steps}
        reached = len(list(_while_in(made, found)))
        whole = reached == len(made) and (run.error is None or base.error is not None)
        line = run.failure.line if run.failure else _last_line(run.error)
        return Attempt((reached, line), whole, run)

    known = tuple(known)
    search = Search(try_sizes, given, known)
    plan = search.plan()
    if defaults and (plan is None or any(isinstance(r, Fixed) for r, _ in search.refusals)):
        other = Search(try_sizes, given, known, kept=frozenset(defaults))
        other_plan = other.plan()
        if other_plan is not None:
            search, plan = other, other_plan
    refusals = [(r, run, refused[id(run)]) for r, run in search.refusals if isinstance(run, Run)]
    if plan is None:
        once = Symbols({name: (size,) for name, size in given.items()})
        return Inferred(once, [base], refusals=refusals, complete=False)
    runs, vectors = [base], {name: [size] for name, size in given.items()}
    for turn in range(TURNS):
        sizes = plan.sizes(turn)
        run = attempt(sizes) if sizes is not None else None
        if sizes is None or run is None or not {_key(s) for s in run.steps} >= set(made):
            continue
        runs.append(run)
        for name, size in sizes.items():
            vectors[name].append(size)
    return Inferred(Symbols(vectors), runs, refusals)


def coincidences(inferred: Inferred, axes: Collection[str]) -> list[Finding]:
    """Findings: what runs with the given sizes only because of what they happen to be.

    Code that asks for something by itself (`assert`, `raise`), and widths that are multiplied
    over, are no coincidence; nor is a width that divides into heads.

    Args:
        inferred: with the runs that failed.
        axes: the names of the inputs' axes.
    """
    findings = []
    for requirement, run, sizes in inferred.refusals:
        failure = run.failure
        if failure is None or failure.kind not in ("broadcast", "view", "join"):
            continue
        names = (requirement.name, *getattr(requirement, "of", ()))
        mixing = failure.kind == "view" and _mixes(failure, inferred.runs[0])
        exact = (
            isinstance(requirement, Product) and not requirement.multiple and len(requirement.of) == 1
        )
        if not set(names) <= set(axes) or not (mixing or exact or isinstance(requirement, Fixed)):
            continue
        findings.append(Finding(_in_words(inferred, requirement, failure, sizes), failure.line))
    return findings


def _in_words(
    inferred: Inferred, requirement: Requirement, failure: Failure, sizes: Mapping[str, int]
) -> str:
    given = {name: each[0] for name, each in inferred.symbols.sizes.items()}
    names = [requirement.name, *getattr(requirement, "of", ())]
    others = " and ".join(f"{name} {sizes[name]}" for name in names)
    base = inferred.runs[0]
    parts = [Part(p.text, p.place, _base_shape(p, base) or p.shape) for p in failure.parts]
    if failure.kind == "view" and parts:
        made = base.parts.get(failure.place) if failure.place else None
        into = f" into [{', '.join(map(str, made))}]" if made else ""
        return (
            f"{failure.expression} takes {_with_dims(inferred, parts[0])}{into}:"
            f" it fits by coincidence, and may mix what does not belong together. With {others} it fails"
        )
    shapes = " and ".join(_with_dims(inferred, part) for part in parts)
    if isinstance(requirement, Fixed):
        why = f"only with {requirement.name} {requirement.size}"
    else:
        why = f"only because {' and '.join(names)} are both {given[names[0]]}"
    mask = " a mask that has not this axis?" if any("mask" in part.text for part in parts) else ""
    return (
        f"{failure.expression} fits {why}: {shapes}. With {others} it fails:{mask or ' is that meant?'}"
    )


def _with_dims(inferred: Inferred, part: Part) -> str:
    named = zip(inferred.dims_of(part), part.shape, strict=True)
    axes = (str(size) if name == str(size) else f"{name} {size}" for name, size in named)
    return f"{part.text} [{', '.join(axes)}]"


def _mixes(failure: Failure, base: Run) -> bool:
    """Whether a view takes several axes apart and puts them together in another way.

    Heads that are split off one axis, or merged into one, do not.
    """
    before = _base_shape(failure.parts[0], base) if failure.parts else None
    after = base.parts.get(failure.place) if failure.place else None
    return (
        not before or not after or any(len(a) > 1 and len(b) > 1 for a, b in regroupings(before, after))
    )


def regroupings(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Which axes of one shape become which of another, when the same elements are viewed so.

    >>> regroupings((64, 48, 200), (32, 96, 5, 40))
    [([64, 48], [32, 96]), ([200], [5, 40])]
    """
    groups, left, right = [], [], []
    before_left, after_left = [n for n in before if n != 1], [n for n in after if n != 1]
    a = b = 1
    while before_left or after_left:
        if a <= b and before_left:
            left.append(before_left.pop(0))
            a *= left[-1]
        elif after_left:
            right.append(after_left.pop(0))
            b *= right[-1]
        else:
            break
        if a == b:
            groups.append((left, right))
            left, right, a, b = [], [], 1, 1
    return groups


def _base_shape(part: Part, base: Run) -> Shape | None:
    if part.place in base.parts:
        return tuple(base.parts[part.place])
    line = part.place[1]
    before = [s for s in base.steps if s.name == part.text and (s.line or 0) <= line]
    return before[-1].shape if before else None


def _key(step: Step) -> Key:
    return step.file, step.line, step.name


def _shapes_by_key(steps: list[Step]) -> dict[Key, list[Shape]]:
    shapes: dict[Key, list[Shape]] = defaultdict(list)
    for step in steps:
        shapes[_key(step)].append(step.shape)
    return shapes


def _while_in(keys: Iterable[Key], found: Collection[Key]) -> Iterable[Key]:
    for key in keys:
        if key not in found:
            return
        yield key


def _last_line(error: BaseException | None) -> int:
    tb = error.__traceback__ if error else None
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb.tb_lineno if tb is not None else 0
