"""Checking what a source file says about shapes against a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from attnscope.code.trace.comments.annotate import axis_words, of_file
from attnscope.code.trace.comments.claims import Claims, Medium, Subject
from attnscope.code.trace.comments.parse import ANY, REST, Axis, Claim, Shape, is_plausible
from attnscope.code.trace.comments.places import Call, Code, History, Run
from attnscope.code.trace.result import CommentReport, Unknown, WrongComment
from attnscope.code.trace.result import subject as subject_of
from attnscope.observe.axes.expressions import Expression, of_word, parse_expression
from attnscope.observe.trace import Step


def check_source(text: str, steps: Iterable[Step], *, sizes: Mapping[str, int]) -> CommentReport:
    """Compare what a source file says about shapes with a run.

    Comments, docstrings, jaxtyping's annotations and patterns of einops are read. A word of `sizes` is
    that axis. Any other word stands for the axis that it is first used for in its function, until that
    function is called again; and so do all words where they are local: in annotations, in patterns, and
    in functions that are called with different axes.

    >>> step = Step("y", ("n_Q", "d_K"), (3, 4), "float32", "f(x)", 48, line=1)
    >>> check_source("y = f(x)  # [d_K, n_Q]", [step], sizes={"n_Q": 3, "d_K": 4}).wrong[0].message
    'line 1: the comment says y is [d_K, n_Q], but it is [n_Q, d_K] (3×4): axis 0 is n_Q, not d_K.'
    """
    code = Code(text.removeprefix("\ufeff"))
    file_steps = of_file(steps, None)
    history = History(code, file_steps)
    known = {*sizes, *axis_words(step.dims or () for step in file_steps)}
    vocabulary = _Vocabulary(sizes, history)
    claims = Claims(code, known, {step.name for step in file_steps})
    result, unread = CommentReport(), claims.unread
    for claim, subject in claims.claims:
        runs = _runs(subject, history)
        if not runs:
            if subject.medium is not Medium.PATTERN:
                unknown = Unknown(subject.line, subject.name, claim.text, subject.medium.value)
                result.unknown.append(unknown)
            continue
        fault = _first_fault(claim, subject, runs, vocabulary, history)
        if fault is None:
            result.true += 1
            if subject.medium is Medium.COMMENT:
                result.true_lines.add(subject.line)
        elif _is_evident(fault[0], fault[1].step, known, subject):
            result.wrong.append(_wrong_comment(*fault, subject, runs))
        else:
            unread.add(subject.line)
    judged = {fault.line for fault in result.wrong} | result.true_lines
    result.unread = sorted(unread - judged)
    return result


def _runs(subject: Subject, history: History) -> list[Run]:
    """Return the runs that a claim refers to: `parts[0]` has its own, `parts[i]` all elements'."""
    runs = [run for binding in subject.bindings for run in history.runs_of[binding]]
    runs = [run for run in runs if run.step.name == subject.name] or runs
    return list({run.call: run for run in runs}.values()) if subject.last else runs


def _first_fault(
    claim: Claim, subject: Subject, runs: list[Run], vocabulary: _Vocabulary, history: History
) -> tuple[Claim, Run, str] | None:
    """Return a claim, a run that contradicts it, and the reason; None if the claim is true of all."""
    for run in runs:
        words = vocabulary.words(subject, run.call)
        if subject.operand is not None:
            name, before = subject.operand
            operand = history.last_before(run, name)
            if operand and (reason := words.disagreement(before, operand.step, subject.line)):
                return before, operand, reason
        reason = words.disagreement(claim, run.step, subject.line)
        if reason is not None:
            return claim, run, reason
    return None


def _is_evident(claim: Claim, step: Step, known: Iterable[str], subject: Subject) -> bool:
    """Check whether a false claim was meant as a shape: `(see, below)` and `[1, 2]` may not be."""
    if subject.medium in (Medium.ANNOTATION, Medium.PATTERN):
        return True
    words = {*known}
    for shape in claim.shapes:
        if not shape.axes and not claim.names and shape.text == "()":
            return False
        if shape.words or claim.names or not shape.axes:
            if not is_plausible(shape, words):
                return False
        else:  # numbers alone
            sizes = [axis.size({}) for axis in shape.axes if isinstance(axis, Expression)]
            if len(shape.axes) != len(step.shape) or not set(sizes) & set(step.shape):
                return False
    return True


def _wrong_comment(
    claim: Claim, run: Run, reason: str, subject: Subject, runs: list[Run]
) -> WrongComment:
    step = run.step
    shape = f"[{', '.join(map(str, step.shape))}]"
    dims = "" if step.dims is None else f"[{', '.join(step.dims)}]"
    sizes = "×".join(map(str, step.shape)) or "a scalar"
    several = [each.step for each in runs if each.step.name == step.name]
    alike = all((each.dims, each.shape) == (step.dims, step.shape) for each in several)
    when = ""
    if not alike:
        i = next(i for i, each in enumerate(several) if each is step)
        before, total = (sum(each.times for each in part) for part in (several[:i], several))
        when = f"in run {before + 1} of {total} "
    return WrongComment(
        line=subject.line,
        name=step.name,
        said=claim.text,
        ran=f"{dims} = {shape}" if dims else shape,
        message=f"line {subject.line}: the {subject.medium.value} says {subject_of(step.name)} is"
        f" {claim.text}, but {when}it is {f'{dims} ({sizes})' if dims else shape}: {reason}.",
    )


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


class _Vocabulary:
    """The words of each call of a function."""

    def __init__(self, sizes: Mapping[str, int], history: History) -> None:
        self.sizes = sizes
        self.generic = history.generic_functions()
        self.of_calls: dict[tuple[Call, bool], _Words] = {}

    def words(self, subject: Subject, call: Call) -> _Words:
        """Return the words that a subject shares with others in a call; a pattern has its own."""
        if subject.medium is Medium.PATTERN:
            return _Words(self.sizes, are_local=True)
        is_annotation = subject.medium is Medium.ANNOTATION
        are_local = is_annotation or call.function in self.generic
        words = _Words(self.sizes, are_local=are_local)
        return self.of_calls.setdefault((call, is_annotation), words)


class _Words:
    """The meanings of the words in a function's comments during one call.

    If they are local, a word of `sizes` may stand for another axis than the one with that name; but not
    in the place of another axis of a tensor that has that one as well.
    """

    def __init__(self, sizes: Mapping[str, int], *, are_local: bool = False) -> None:
        named = {word: _Value(of_word(word), size, word) for word, size in sizes.items()}
        self.values = {} if are_local else named
        self.reserved = named if are_local else {}
        self.several: dict[str, list[_Value]] = {}  # the meanings of `*name`

    def disagreement(self, claim: Claim, step: Step, line: int) -> str | None:
        """Explain what is wrong with a claim; if it is right, learn its new words and return None."""
        values, several = self.values, self.several
        reasons = []
        for shape in claim.shapes:
            self.values, self.several = dict(values), dict(several)
            reason = self._difference(shape, step, line)
            if reason is None:
                return None
            reasons.append((len(shape.axes) != len(step.shape), reason))
        self.values, self.several = values, several
        return min(reasons, key=lambda each: each[0])[1]

    def _difference(self, shape: Shape, step: Step, line: int) -> str | None:
        """Explain how a shape differs from that of a step; learn the words before the difference."""
        ran = [_axis_in_run(step, i, line) for i in range(len(step.shape))]
        expected, count = len(shape.axes), len(ran)
        entries: list[tuple[Axis, str, bool]] = [
            (axis, text, i in shape.broadcast)
            for i, (axis, text) in enumerate(zip(shape.axes, shape.entries, strict=True))
        ]
        if REST in shape.axes:
            rest, extra = shape.axes.index(REST), count - expected + 1
            if extra < 0:
                return f"it has {_axes(count)}, not {expected - 1} or more"
            name = entries[rest][1]
            entries[rest : rest + 1] = [(ANY, ANY, False)] * extra
            if name.startswith("*"):
                axes = ran[rest : rest + extra]
                if reason := self._other_axes(name, axes):
                    return reason
                self.several[name] = axes
        elif expected != count:
            return f"it has {_axes(count)}, not {expected}"

        pairs = [
            (i, axis, text)
            for i, (axis, text, may_be_one) in enumerate(entries)
            if isinstance(axis, Expression) and not (may_be_one and step.shape[i] == 1)
        ]
        for i, axis, text in sorted(pairs, key=lambda pair: pair[1].word is None):  # products last
            if axis.word is not None and axis.word not in self.values:
                self.values[axis.word] = ran[i]
                # a local word may not be the name of another axis of the same tensor
                is_other = ran[i].axis not in (None, axis) and any(each.axis == axis for each in ran)
                is_confused = axis.word in self.reserved and is_other
                reason = f"{ran[i].text}, not {axis.word}" if is_confused else None
            elif axis.words <= self.values.keys():
                reason = _other_axis(axis, text, ran[i], self.values)
            else:
                continue
            if reason is not None:
                return f"axis {i} is {reason}"
        return None

    def _other_axes(self, name: str, ran: list[_Value]) -> str | None:
        """Explain how `*name` differs from what it stood for before; None if it does not."""
        before = self.several.get(name)
        if before is None:
            return None
        meanings = [[(each.axis, each.size) for each in axes] for axes in (before, ran)]
        if meanings[0] == meanings[1]:
            return None
        first, second = (" ".join(each.text for each in axes) or "none" for axes in (before, ran))
        return f"{name} is {second}, but {first} on line {before[0].line if before else 0}"


def _axis_in_run(step: Step, i: int, line: int) -> _Value:
    """Return the meaning of an axis; if its name is a number, no name was inferred."""
    axis = parse_expression(step.dims[i]) if step.dims is not None else None
    size = step.shape[i]
    if step.dims is None or axis is None or not axis.words:
        return _Value(None, size, str(size), line)
    return _Value(axis, size, step.dims[i], line)


def _other_axis(claimed: Expression, text: str, ran: _Value, values: Mapping[str, _Value]) -> str | None:
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
