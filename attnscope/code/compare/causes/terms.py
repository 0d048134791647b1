"""What only one side adds or multiplies, or computes with another operand, on the way to a tensor.

Each hypothesis runs a tape again with one operand or one result corrected, and so predicts the tensor of
the other side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis
from attnscope.code.compare.divergence.first_operation import COMMUTATIVE
from attnscope.code.compare.divergence.state import RoleTensors
from attnscope.observe.operator_names import SOFTMAXES
from attnscope.observe.operators.anatomy import leaf
from attnscope.observe.operators.chain import LAYOUT, calls_before, way_between
from attnscope.observe.operators.follow import followed
from attnscope.observe.operators.tape import TorchCall, Value

LONG = 40
"""Of how many characters an expression is so long that the variable that gets it names it."""

IDENTITY = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}
"""Functions of two operands, and the second operand with which each returns the first."""

DOES = {"add": "adds {0} to {1}", "sub": "subtracts {0} from {1}"}
DOES |= {"mul": "multiplies {1} by {0}", "div": "divides {1} by {0}"}

WORDS = {
    "rms_norm": "norm", "layer_norm": "norm", "masked_fill": "mask", "where": "mask", "mul": "factor",
    "div": "division", "add": "term", "sub": "term",
}  # fmt: skip
"""What people call the result of some functions."""

BEFORE = {
    "Q": "Q_split",
    "K": "K_split",
    "V": "V_split",
    "scores_masked": "scores",
    "attention_drop": "attention",
    "x_merged": "x_raw",
    "output": "x",
}
"""The tensor from which the way to each begins."""


@dataclass(frozen=True)
class Term:
    """A tensor that a side adds to another one, or multiplies it by."""

    call: TorchCall
    operand: Value

    def __str__(self) -> str:
        """Name it: by its weight or argument, or by its expression."""
        return words_of(self.operand)

    @property
    def weights(self) -> set[str]:
        """The names of the weights that it is computed from."""
        before = calls_before(self.operand, through=lambda _: True)
        values = {self.operand, *(parent for call in before for parent in call.parents)}
        return {each.weight for each in values if each.weight is not None}

    @property
    def is_map(self) -> bool:
        """Whether it is computed from a softmax."""
        return any(each.name in SOFTMAXES for each in calls_before(self.operand, through=lambda _: True))

    @property
    def is_gate(self) -> bool:
        """Whether it multiplies by what is computed from the arguments, and not by a weight alone."""
        values = calls_before(self.operand, through=lambda _: True)
        of_input = any(parent.input is not None for call in values for parent in call.parents)
        return self.call.name == "mul" and (of_input or self.operand.input is not None)

    def left_out(self, state: RoleTensors, role: str) -> torch.Tensor | None:
        """Return the side's tensor of a role without it; None if that cannot run."""
        idle = torch.full_like(self.operand.tensor, IDENTITY[self.call.name])
        tensor = state.corrected({self.operand: idle}, role)
        return None if tensor is None else tensor.double()

    def kind(self, role: str) -> str:
        """Return what it is, in the words of the field."""
        if self.is_map:
            return "second map"
        if self.is_gate:
            return "gate"
        if role == "scores_masked" and self.call.name in ("add", "sub"):
            return "position bias" if leaf(self.operand) is not None else "term of the scores"
        return "factor" if self.call.name in ("mul", "div") else "term"


def terms_of(state: RoleTensors, role: str) -> Iterator[Term]:
    """Yield what a side adds or multiplies on the way to a tensor, the last first."""
    start = state.anatomy.roles.get(BEFORE.get(role, ""))
    end = state.anatomy.roles.get(role)
    if start is None or end is None:
        return
    first = start.value
    if role == "scores_masked" and state.anatomy.raw is not None:
        first = state.anatomy.raw
    places = followed(state.anatomy.tape, first)
    way = way_between(first, end.value, places)
    for before, value in reversed(list(pairwise(way))):
        call = value.call
        if call is None or call.name not in IDENTITY or len(call.parents) != 2:
            continue
        others = [each for each in call.parents if each is not before]
        is_second = others == [call.parents[1]] or call.name in COMMUTATIVE
        if len(others) == 1 and is_second:
            tensor = others[0].tensor
            if tensor.numel() > 1 and tensor.is_floating_point():  # neither a scale nor a mask
                yield Term(call, others[0])


def term_missing(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side leaves out a term, a gate, or a second map of weights."""
    state = case.state(case.right)
    for term in terms_of(state, case.role):
        predicted = term.left_out(state, case.role)
        if predicted is None:
            continue
        does = DOES[term.call.name].format(term, BEFORE.get(case.role, case.role))
        used = {each.weight for each in case.state(case.wrong).anatomy.tape.values}
        idle = sorted(term.weights - used)
        text = f"{case.right} {does}, and {case.wrong} does not"
        if idle:
            text += f", nor does it use {', '.join(idle)}"
        kind = term.kind(case.role)
        name = case.named(f"{kind} missing", f"{kind} added")
        where = {case.right: term.call.outputs[0]}
        yield Hypothesis(name, text, predicted, case.of_wrong(), where=where)


def term_elsewhere(case: Case) -> Iterator[Hypothesis]:
    """Suppose that both sides add the same, or multiply by it, one before something and one after."""
    right, wrong = case.state(case.right), case.state(case.wrong)
    if case.wrong == "a":  # the same hypothesis
        return
    for one in terms_of(right, case.role):
        for other in terms_of(wrong, case.role):
            if one.call.name != other.call.name or not _is_same(case, one.operand, other.operand):
                continue
            predicted, observed = one.left_out(right, case.role), other.left_out(wrong, case.role)
            if predicted is None or observed is None:
                continue
            verb = DOES[one.call.name].format(one, "{}")
            text = (
                f"a {verb.format(_subject(one))}, b the same to {_subject(other)}; without it, both are"
                f" equal"
            )
            where = {case.right: one.call.outputs[0], case.wrong: other.call.outputs[0]}
            name = f"{one.kind(case.role)} in another place"
            yield Hypothesis(name, text, predicted, observed, where=where)


def other_operand(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one operation has another operand or argument, or that another function is called."""
    found = case.operations if case.wrong == "b" else None  # for a, the same hypothesis
    if found is None or found.corrected is None or found.only is not None:
        return
    if found.a.call is not None and found.b.call is not None:
        name, in_a, in_b = _other_parts(case, found.a.call, found.b.call)
        if name and in_a != in_b:
            text = f"b computes this with {in_b}, a with {in_a}"
            predicted, observed = (each.double() for each in found.corrected)
            yield Hypothesis(name, text, predicted, observed, where={"a": found.a, "b": found.b})


def operation_missing(case: Case) -> Iterator[Hypothesis]:
    """Suppose that only one side has an operation, of whatever kind."""
    found = case.operations if case.wrong == "b" else None
    if found is None or found.corrected is None or found.only is None:
        return
    value, other = found.of(found.only), "a" if found.only == "b" else "b"
    word = WORDS.get(value.name, value.name) if found.kept in value.parents else "operations"
    name = f"{word} {'missing' if found.only == 'a' else 'added'}"
    text = f"{found.only} computes {words_of(value)}, and {other} does not"
    predicted, observed = (each.double() for each in found.corrected)
    yield Hypothesis(name, text, predicted, observed, where={"a": found.a, "b": found.b})


def _other_parts(case: Case, a: TorchCall, b: TorchCall) -> tuple[str, str, str]:
    """Return what kind of part of two calls differs, and that part of each; no kind for several."""
    pairs = list(zip(a.parents, b.parents, strict=False))
    others = [pair for pair in pairs if not _is_same(case, *pair)]
    is_alike = len(a.parents) == len(b.parents)
    if a.name != b.name and is_alike and not others:
        return "another function", a.name, b.name
    if a.name != b.name or not is_alike or len(others) > 1:
        return "", "", ""
    if others:
        [(of_a, of_b)] = others
        return "another operand", words_of(of_a), words_of(of_b)
    return "another argument", *_other_arguments(a, b)


def _subject(term: Term) -> str:
    """Name what a term is added to."""
    return words_of(next(each for each in term.call.parents if each is not term.operand))


def _is_same(case: Case, one: Value, other: Value) -> bool:
    """Check whether two values have one shape, and are equal."""
    return one.tensor.shape == other.tensor.shape and case.is_same(one.tensor, other.tensor)


def words_of(value: Value) -> str:
    """Name a tensor: by its weight or argument, or by its expression, with the line."""
    origin = value
    while origin.call is not None and origin.name in LAYOUT | {"expand", "expand_as"}:
        origin = origin.parents[0]
    name = origin.weight or origin.input
    if name is not None:
        return name
    place = value.place
    if place is None:
        return value.name
    is_long = place.variable is not None and len(place.text) > LONG
    return f"{place.variable if is_long else place.text} (line {place.line})"


def _other_arguments(a: TorchCall, b: TorchCall) -> tuple[str, str]:
    """Return the arguments of two calls, beside their tensors, in which they differ, as text."""
    of_a, of_b = _arguments(a), _arguments(b)
    same = {name for name in of_a if name in of_b and of_a[name] == of_b[name]}
    one, other = (", ".join(own[name] for name in own if name not in same) for own in (of_a, of_b))
    return one or "its default", other or "its default"


def _arguments(call: TorchCall) -> dict[int | str, str]:
    """Return the arguments of a call beside its tensors, as text by position or name."""
    numbers: dict[int | str, str] = {
        i: f"{each:g}" if isinstance(each, float) else f"{each}"
        for i, each in enumerate(call.args)
        if not isinstance(each, Value)
    }
    named = {name: f"{name}={each}" for name, each in call.kwargs.items() if not isinstance(each, Value)}
    return numbers | named
