"""Checking the shape comments of a source file against a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from attnscope.results.trace import Step
from attnscope.tracing.axes.expressions import Expression, of_word, parsed
from attnscope.tracing.comments.annotate import axis_words, of_file
from attnscope.tracing.comments.parse import ANY, REST, Axis, Claim, Said, Shape, said
from attnscope.tracing.comments.places import Binding, Code, Comment, Function


@dataclass(frozen=True)
class Lie:
    """A comment that disagrees with the run.

    Attributes:
        line: the comment's.
        name: of what it speaks; `return`, of what is returned.
        said: the shape as it says it.
        ran: the shape as it was: `[n_Q, d_K] = [30, 128]`.
        message: all of this, in one line.
    """

    line: int
    name: str
    said: str
    ran: str
    message: str


@dataclass(frozen=True)
class Unknown:
    """A comment about code that did not run, or about a value that is not a tensor."""

    line: int
    name: str
    said: str

    @property
    def message(self) -> str:
        """Describe it in one line."""
        subject = _subject(self.name)
        return (
            f"line {self.line}: the comment says {subject} is {self.said}, but no tensor was made there."
        )


@dataclass
class Checked:
    """The shape comments of a file: those that are right (and where), wrong, and undecidable."""

    true: int = 0
    lies: list[Lie] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    true_lines: set[int] = field(default_factory=set)


def checked(
    text: str, steps: Iterable[Step], *, sizes: Mapping[str, int], file: str | None = None
) -> Checked:
    """Compare the shape comments of a source file with a run.

    A word of `sizes` is that axis. Any other word stands for the axis that it is first used for in
    its function, and for the same one ever after, until that function is called again.

    Args:
        text: the whole file's.
        steps: what ran, in order of execution.
        sizes: what each axis name stands for.
        file: the file's name, as the steps have it; those of other files are left out.

    Raises:
        SourceError: the text is not Python.

    >>> step = Step("y", ("n_Q", "d_K"), (3, 4), "float32", "f(x)", 48, line=1)
    >>> checked("y = f(x)  # [d_K, n_Q]", [step], sizes={"n_Q": 3, "d_K": 4}).lies[0].message
    'line 1: the comment says y is [d_K, n_Q], but it is [n_Q, d_K] (3×4): axis 0 is n_Q, not d_K.'
    """
    code = Code(text.removeprefix("\ufeff"))
    own = of_file(steps, file)
    history = _History(code, own)
    known = {*sizes, *axis_words(step.dims or () for step in own)}
    words: dict[_Call, _Words] = {}
    result = Checked()
    for claim, subject in _claims(code, known):
        runs = history.runs(subject)
        if not runs:
            result.unknown.append(Unknown(subject.line, subject.name, claim.text))
            continue
        for i, run in enumerate(runs):
            reason = words.setdefault(run.call, _Words(sizes)).disagreement(
                claim, run.step, subject.line
            )
            if reason is not None:
                result.lies.append(_lie(claim, subject, runs, i, reason))
                break
        else:
            result.true += 1
            result.true_lines.add(subject.line)
    return result


def _lie(claim: Claim, subject: _Subject, runs: list[_Run], i: int, reason: str) -> Lie:
    step = runs[i].step
    shape = f"[{', '.join(map(str, step.shape))}]"
    dims = "" if step.dims is None else f"[{', '.join(step.dims)}]"
    sizes = "×".join(map(str, step.shape)) or "a scalar"
    several = [run.step for run in runs if run.step.name == step.name]
    alike = all((each.dims, each.shape) == (step.dims, step.shape) for each in several)
    before = sum(run.step.times for run in runs[:i] if run.step.name == step.name)
    total = sum(each.times for each in several)
    when = "" if alike else f"in run {before + 1} of {total} "
    return Lie(
        line=subject.line,
        name=step.name,
        said=claim.text,
        ran=f"{dims} = {shape}" if dims else shape,
        message=f"line {subject.line}: the comment says {_subject(step.name)} is {claim.text},"
        f" but {when}it is {f'{dims} ({sizes})' if dims else shape}: {reason}.",
    )


def _subject(name: str) -> str:
    return "what is returned" if name == "return" else name


# What a comment speaks of.


@dataclass(frozen=True)
class _Subject:
    """The subject of a claim: the line of its comment, a name, and the bindings that it may refer to.

    `last` says that of several runs in one call only the last is meant: what was returned.
    """

    line: int
    name: str
    bindings: tuple[Binding, ...]
    last: bool = False


def _claims(code: Code, known: set[str]) -> Iterator[tuple[Claim, _Subject]]:
    """Yield every claim that has a subject."""
    scopes: dict[Function | None, list[Binding]] = defaultdict(list)
    for place in code.places:
        scopes[place.function] += place.bindings
    alone = {comment.line for comment in code.comments if comment.alone}
    for comment in code.comments:
        scope = scopes[code.function_at(comment)]
        for part in said(comment.text, known, {binding.name for binding in scope}):
            if not part.claims[0].names:
                yield from _unnamed(part, comment, scope)
            for claim in part.claims:
                for name in claim.names:
                    bound = [b for b in scope if name == b.name or name.startswith(f"{b.name}[")]
                    binding = _named(code, comment, bound, alone)
                    if binding is not None:
                        yield claim, _Subject(comment.line, name, (binding,))


def _named(code: Code, comment: Comment, bound: list[Binding], alone: set[int]) -> Binding | None:
    """Return the bindings of a name that a comment refers to.

    One on its own line; or, of a comment that has its line to itself, one that directly follows
    (of several such comments in a row, in as many statements); or else the nearest above.
    """
    above = [binding for binding in bound if binding.position[0] <= comment.line]
    if not comment.alone:
        here = [binding for binding in bound if binding.place is comment.place]
        return next(reversed(here or above), None)
    first = last = comment.line
    while first - 1 in alone:
        first -= 1
    while last + 1 in alone:
        last += 1
    following = [place for place in code.places if place.first > last][: last - first + 1]
    directly = [binding for binding in bound if binding.place in following]
    below = [binding for binding in bound if binding.position[0] > comment.line]
    return next(iter([*directly, *reversed(above), *below]), None)


def _unnamed(part: Said, comment: Comment, scope: list[Binding]) -> Iterator[tuple[Claim, _Subject]]:
    """Yield claims without names with their subjects: all bindings of the line, or one per claim."""
    bindings = [] if comment.alone else _ending(comment)
    if len(part.claims) == 1 and bindings:
        names = ", ".join(dict.fromkeys(binding.name for binding in bindings))
        yield part.claims[0], _returned(_Subject(comment.line, names, tuple(bindings)), scope)
    elif len(part.claims) == len(bindings):
        for claim, binding in zip(part.claims, bindings, strict=True):
            yield claim, _returned(_Subject(comment.line, binding.name, (binding,)), scope)


def _ending(comment: Comment) -> list[Binding]:
    """Return the bindings that end on a comment's line."""
    place = comment.place
    if place is None:
        return []
    ending = [binding for binding in place.bindings if binding.end == comment.line != place.first]
    if place.comment is not comment or (ending and not place.binds):
        return ending
    return [binding for binding in place.binds if binding.end in (None, comment.line)] or place.binds


def _returned(subject: _Subject, scope: list[Binding]) -> _Subject:
    """Return the subject unchanged, except for `return y`: the nearest binding of `y` above."""
    if len(subject.bindings) != 1 or subject.bindings[0].returns is None:
        return subject
    name, position = subject.bindings[0].returns, subject.bindings[0].position
    above = [binding for binding in scope if binding.name == name and binding.position < position]
    return _Subject(subject.line, name, tuple(above[-1:]), last=True)


# The recorded runs.


@dataclass(frozen=True)
class _Call:
    """One call of a function: its number among the calls at its depth."""

    function: Function | None
    depth: int
    number: int


@dataclass(frozen=True)
class _Run:
    """A step and the call that it belongs to."""

    call: _Call
    step: Step


class _History:
    """The steps of each binding, run by run.

    A call begins with its arguments. One that is given no tensor cannot be told from the one before.
    """

    def __init__(self, code: Code, steps: Iterable[Step]) -> None:
        self.made: dict[Binding, list[_Run]] = defaultdict(list)
        number: dict[tuple[Function | None, int], int] = defaultdict(int)
        given: dict[tuple[Function | None, int], set[str] | None] = defaultdict(set)
        for step in steps:
            binding = code.binding_of(step)
            if binding is None:
                continue
            key = binding.place.function, step.depth
            begun = given[key]
            if not binding.argument:
                given[key] = None
            elif begun is None or step.name in begun:
                number[key] += 1
                given[key] = {step.name}
            else:
                begun.add(step.name)
            self.made[binding].append(_Run(_Call(*key, number[key]), step))

    def runs(self, subject: _Subject) -> list[_Run]:
        """Return the runs that a claim refers to: `parts[0]` has its own, `parts[i]` all elements'."""
        runs = [run for binding in subject.bindings for run in self.made[binding]]
        exact = [run for run in runs if run.step.name == subject.name]
        if exact:
            runs = exact
        return list({run.call: run for run in runs}.values()) if subject.last else runs


# Whether a claim is true.


@dataclass(frozen=True)
class _Value:
    """The meaning of a word: an axis, if its name could be inferred, and its size.

    `line` is that of the comment that first used the word; None of an axis of `sizes`.
    """

    axis: Expression | None
    size: int
    text: str
    line: int | None = None


class _Words:
    """The meanings of the words in a function's comments during one call."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.values = {word: _Value(of_word(word), size, word) for word, size in sizes.items()}

    def disagreement(self, claim: Claim, step: Step, line: int) -> str | None:
        """Return what is wrong with a claim; if it is right, learn its new words and return None."""
        reasons = []
        for shape in claim.shapes:
            new, reason = self._compared(shape, step, line)
            if reason is None:
                self.values |= new
                return None
            reasons.append((len(shape.axes) != len(step.shape), reason))
        return min(reasons, key=lambda each: each[0])[1]

    def _compared(self, shape: Shape, step: Step, line: int) -> tuple[dict[str, _Value], str | None]:
        new: dict[str, _Value] = {}
        wanted, count = len(shape.axes), len(step.shape)
        entries: list[tuple[Axis, str]] = list(zip(shape.axes, shape.entries, strict=True))
        if REST in shape.axes:
            rest = shape.axes.index(REST)
            if wanted - 1 > count:
                return new, f"it has {_axes(count)}, not {wanted - 1} or more"
            entries[rest : rest + 1] = [(ANY, ANY)] * (count - wanted + 1)
        elif wanted != count:
            return new, f"it has {_axes(count)}, not {wanted}"

        pairs = [
            (i, axis, text) for i, (axis, text) in enumerate(entries) if isinstance(axis, Expression)
        ]
        for i, axis, text in sorted(pairs, key=lambda pair: pair[1].word is None):  # products last
            ran = _ran(step, i, line)
            values = self.values | new
            if axis.word is not None and axis.word not in values:
                new[axis.word] = ran
            elif axis.words <= values.keys():
                reason = _difference(axis, text, ran, values)
                if reason is not None:
                    return new, f"axis {i} is {reason}"
        return new, None


def _ran(step: Step, i: int, line: int) -> _Value:
    """Return the meaning of an axis; a number as its name means that no name was inferred."""
    axis = parsed(step.dims[i]) if step.dims is not None else None
    size = step.shape[i]
    if step.dims is None or axis is None or not axis.words:
        return _Value(None, size, str(size), line)
    return _Value(axis, size, step.dims[i], line)


def _difference(said: Expression, text: str, ran: _Value, values: Mapping[str, _Value]) -> str | None:
    """Return an axis and the comment's claim about it, if they disagree."""
    try:
        size = said.size({word: values[word].size for word in said.words})
    except ArithmeticError:
        return f"{ran.text}, not {text}, which divides by zero"
    axes = {word: axis for word in said.words if (axis := values[word].axis) is not None}
    meant: Expression | None = None
    if ran.axis is not None and len(axes) == len(said.words):
        with suppress(ArithmeticError):
            meant = said.of(axes)
    only_size = meant is None or said.has_number  # a number says how many, and not of what
    if (meant is not None and meant == ran.axis) or (only_size and int(size) == ran.size):
        return None
    first = values[said.word] if said.word is not None else None
    if first is not None and first.line is not None:
        return f"{ran.text}, but {said.word} is {first.text} on line {first.line}"
    if not only_size:
        return f"{ran.text}, not {text}"
    was = ran.text if ran.axis is None else f"{ran.text} = {ran.size}"
    return f"{was}, not {text}" if not said.words else f"{was}, not {text} = {size}"


def _axes(count: int) -> str:
    return f"{count} axis" if count == 1 else f"{count} axes"
