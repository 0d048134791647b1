"""Checking the shape comments of a source file against a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from attnscope.results.trace import Step
from attnscope.tracing.axes.expressions import Expression, of_word, parse_expression
from attnscope.tracing.comments.annotate import axis_words, of_file
from attnscope.tracing.comments.parse import ANY, REST, Axis, Claim, Shape, ShapeComment, shape_comments
from attnscope.tracing.comments.places import Binding, Code, Comment, Function


@dataclass(frozen=True)
class Lie:
    """A comment that disagrees with the run.

    Attributes:
        line: the line of the comment.
        name: the name that it is about; `return` for a returned value.
        said: the shape in the comment.
        ran: the shape in the run: `[n_Q, d_K] = [30, 128]`.
        message: a description in one line.
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
class CommentReport:
    """The shape comments of a file: those that are right (and where), wrong, and undecidable."""

    true: int = 0
    lies: list[Lie] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    true_lines: set[int] = field(default_factory=set)


def check_source(
    text: str, steps: Iterable[Step], *, sizes: Mapping[str, int], file: str | None = None
) -> CommentReport:
    """Compare the shape comments of a source file with a run.

    A word of `sizes` is that axis. Any other word stands for the axis that it is first used for in
    its function, until that function is called again.

    Args:
        text: the source of the whole file.
        steps: the steps of the run, in order of execution.
        sizes: the size of each named axis.
        file: the name of the file in the steps; steps of other files are ignored.

    Raises:
        SourceError: the text is not Python.

    >>> step = Step("y", ("n_Q", "d_K"), (3, 4), "float32", "f(x)", 48, line=1)
    >>> check_source("y = f(x)  # [d_K, n_Q]", [step], sizes={"n_Q": 3, "d_K": 4}).lies[0].message
    'line 1: the comment says y is [d_K, n_Q], but it is [n_Q, d_K] (3×4): axis 0 is n_Q, not d_K.'
    """
    code = Code(text.removeprefix("\ufeff"))
    file_steps = of_file(steps, file)
    history = _History(code, file_steps)
    known = {*sizes, *axis_words(step.dims or () for step in file_steps)}
    words: dict[_Call, _Words] = {}
    result = CommentReport()
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


# The subjects of comments.


@dataclass(frozen=True)
class _Subject:
    """The subject of a claim: the line of its comment, a name, and the bindings that it may refer to.

    If `last` is set, the claim is only about the last run in each call: the returned value.
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
        for part in shape_comments(comment.text, known, {binding.name for binding in scope}):
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

    For a comment after code, this is a binding on its line. For one alone on its line, it is a binding
    directly below (below a block of several comments, in as many statements), or else the nearest above.
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


def _unnamed(
    part: ShapeComment, comment: Comment, scope: list[Binding]
) -> Iterator[tuple[Claim, _Subject]]:
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

    A call begins with its arguments. One without tensors cannot be distinguished from the one before.
    """

    def __init__(self, code: Code, steps: Iterable[Step]) -> None:
        self.runs_of: dict[Binding, list[_Run]] = defaultdict(list)
        number: dict[tuple[Function | None, int], int] = defaultdict(int)
        arguments: dict[tuple[Function | None, int], set[str] | None] = defaultdict(set)
        for step in steps:
            binding = code.binding_of(step)
            if binding is None:
                continue
            key = binding.place.function, step.depth
            names = arguments[key]
            if not binding.argument:
                arguments[key] = None
            elif names is None or step.name in names:
                number[key] += 1
                arguments[key] = {step.name}
            else:
                names.add(step.name)
            self.runs_of[binding].append(_Run(_Call(*key, number[key]), step))

    def runs(self, subject: _Subject) -> list[_Run]:
        """Return the runs that a claim refers to: `parts[0]` has its own, `parts[i]` all elements'."""
        runs = [run for binding in subject.bindings for run in self.runs_of[binding]]
        exact = [run for run in runs if run.step.name == subject.name]
        if exact:
            runs = exact
        return list({run.call: run for run in runs}.values()) if subject.last else runs


# Whether a claim is true.


@dataclass(frozen=True)
class _Value:
    """The meaning of a word: an axis, if its name could be inferred, and its size.

    `line` is that of the comment that first used the word; None for an axis of `sizes`.
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
        expected, count = len(shape.axes), len(step.shape)
        entries: list[tuple[Axis, str]] = list(zip(shape.axes, shape.entries, strict=True))
        if REST in shape.axes:
            rest = shape.axes.index(REST)
            if expected - 1 > count:
                return new, f"it has {_axes(count)}, not {expected - 1} or more"
            entries[rest : rest + 1] = [(ANY, ANY)] * (count - expected + 1)
        elif expected != count:
            return new, f"it has {_axes(count)}, not {expected}"

        pairs = [
            (i, axis, text) for i, (axis, text) in enumerate(entries) if isinstance(axis, Expression)
        ]
        for i, axis, text in sorted(pairs, key=lambda pair: pair[1].word is None):  # products last
            ran = _axis_in_run(step, i, line)
            values = self.values | new
            if axis.word is not None and axis.word not in values:
                new[axis.word] = ran
            elif axis.words <= values.keys():
                reason = _difference(axis, text, ran, values)
                if reason is not None:
                    return new, f"axis {i} is {reason}"
        return new, None


def _axis_in_run(step: Step, i: int, line: int) -> _Value:
    """Return the meaning of an axis; if its name is a number, no name was inferred."""
    axis = parse_expression(step.dims[i]) if step.dims is not None else None
    size = step.shape[i]
    if step.dims is None or axis is None or not axis.words:
        return _Value(None, size, str(size), line)
    return _Value(axis, size, step.dims[i], line)


def _difference(claimed: Expression, text: str, ran: _Value, values: Mapping[str, _Value]) -> str | None:
    """Return an axis and the comment's claim about it, if they disagree."""
    try:
        size = claimed.size({word: values[word].size for word in claimed.words})
    except ArithmeticError:
        return f"{ran.text}, not {text}, which divides by zero"
    axes = {word: axis for word in claimed.words if (axis := values[word].axis) is not None}
    expected_axis: Expression | None = None
    if ran.axis is not None and len(axes) == len(claimed.words):
        with suppress(ArithmeticError):
            expected_axis = claimed.of(axes)
    only_size = expected_axis is None or claimed.has_number  # a number is a size without a name
    if (expected_axis is not None and expected_axis == ran.axis) or (
        only_size and int(size) == ran.size
    ):
        return None
    first = values[claimed.word] if claimed.word is not None else None
    if first is not None and first.line is not None:
        return f"{ran.text}, but {claimed.word} is {first.text} on line {first.line}"
    if not only_size:
        return f"{ran.text}, not {text}"
    was = ran.text if ran.axis is None else f"{ran.text} = {ran.size}"
    return f"{was}, not {text}" if not claimed.words else f"{was}, not {text} = {size}"


def _axes(count: int) -> str:
    return f"{count} axis" if count == 1 else f"{count} axes"
