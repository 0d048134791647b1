"""Correct what may cause a leak, one line at a time, and see whether the leak is gone.

A run is computed again from its tape, with other values for some tensors: with the mask that is
expected in place of a mask, or behind a call that applies one; with hidden scores before a softmax; with
a softmax along the other axis; or with what a tensor held before the change. A line is a cause if this
alone removes the leak, for each change of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from attnscope.attention.mask_rules import HIDES
from attnscope.auditing.measure.difference import ChangedRun
from attnscope.observe.operator_names import SOFTMAXES
from attnscope.observe.operators.chain import CASTS, MASKS
from attnscope.observe.operators.follow import MOVES
from attnscope.observe.operators.tape import NotReplayableError, Tape, TorchCall, Value

FAILURES = (NotReplayableError, RuntimeError, TypeError, ValueError, IndexError)
"""What a run that is computed again may raise."""

APPLIES = {*MASKS, "add", "sub", "mul", "baddbmm"}
"""Functions that apply a mask to scores or weights."""

WEIGHTS = {"exp": 0.0, "sigmoid": 0.0, **dict.fromkeys(SOFTMAXES, float("-inf"))}
"""Functions that make weights of scores: the number that hides a key, in weights or else in scores."""

GONE = "nothing moves that should not"
"""What a correction shows."""

FUSED = {"scaled_dot_product_attention", "flex_attention"}
"""Functions that attend on their own."""

LOW = -1.0
"""The largest number that hides a key when it is added to its score."""


@dataclass(frozen=True)
class Correction:
    """What removes a leak."""

    value: Value  #: the tensor that is corrected, on whose line that is
    why: str  #: what its correction shows
    #: the tensor that is wrong, if no call makes it; it may be a buffer, or an input
    root: Value | None = None


Tensors = dict[Value, torch.Tensor]


@dataclass(eq=False)
class Leak:
    """Outputs that move at positions that should not."""

    tape: Tape
    changes: list[ChangedRun]  #: the runs with changes
    ends: list[Value]  #: the outputs that leak
    n: int
    #: the keys that each query should see, `n n`; None: no mask is expected
    visible: torch.Tensor | None

    def correction(self) -> Correction | None:
        """Return the first correction of one line that removes the leak; None if there is none."""
        ways = [self._other_axis, self._origin]
        if self.visible is not None:
            ways = [self._mask, self._use_of_mask, self._no_mask, *ways]
        return next((found for way in ways if (found := way()) is not None), None)

    @cached_property
    def behind(self) -> list[Value]:
        """What the outputs are computed from, in the order in which it is computed."""
        return sorted(_ancestors(*self.ends), key=lambda value: value.index)

    def _moves(self, value: Value) -> bool:
        """Whether a tensor changes in any run."""
        return any(each.moves(value) for each in self.changes)

    def _is_gone(self, correct: Callable[[ChangedRun | None], Tensors]) -> bool:
        """Compute all runs again with other tensors, and check that the outputs do not leak.

        `correct` returns the corrections for a run with a change, or for the run without one (None), by
        the value of the latter.
        """
        try:
            before = _replayed(self.tape, correct(None))
            for change in self.changes:
                after = _replayed(change.tape, correct(change))
                for end in self.ends:
                    pair = before(end), after(end)
                    if change.state_of(end.index, *pair) != "clean" or not _is_as_finite(end, *pair):
                        return False
        except FAILURES:
            return False
        return True

    def _suffices(self, replaced: Tensors) -> bool:
        """Check that nothing leaks with other tensors, and that outputs still move where they should."""
        if not self._is_gone(lambda _: replaced):
            return False
        before = _replayed(self.tape, replaced)
        afters = (_replayed(change.tape, replaced) for change in self.changes)
        return any(not torch.equal(before(end), after(end)) for after in afters for end in self.ends)

    # Masks.

    @cached_property
    def masks(self) -> list[Value]:
        """The tensors that may be masks: of two numbers, for each pair or for each key; none moves."""
        return [
            each
            for each in self.behind
            if self._expected(each) is not None and _numbers(each) and not self._moves(each)
        ]

    def _expected(self, value: Value) -> torch.Tensor | None:
        """Return which keys a mask of its shape should show; None if it has no such axes."""
        shape, visible = value.tensor.shape, self.visible
        if visible is None or shape[-1:] != (self.n,):
            return None
        if shape[-2:-1] == (self.n,):
            return visible
        return visible[:1] if bool((visible == visible[:1]).all()) else None

    def _is_right(self, value: Value) -> bool:
        """Whether a mask is as expected, or, if its numbers leave that open, the opposite."""
        return any(bool((each == value.tensor).all()) for each in self._meanings(value))

    def _meanings(self, value: Value) -> list[torch.Tensor]:
        """Return the mask that is expected, in the numbers of another: two if these leave that open."""
        expected, numbers = self._expected(value), _numbers(value)
        assert expected is not None
        assert numbers is not None
        visible = expected.expand_as(value.tensor) if value.tensor.dim() > 1 else expected[0]
        if numbers != (0.0, 1.0):
            shown = torch.where(visible, numbers[1], numbers[0])
            return [shown.to(value.tensor)]
        return [visible.to(value.tensor), (~visible).to(value.tensor)]

    def _mask(self) -> Correction | None:
        """Replace masks that are not as expected, line by line: those that hide something first."""
        wrong = [each for each in self.masks if not _is_blank(each) and not self._is_right(each)]
        blank = [each for each in self.masks if _is_blank(each) and each.tensor.dtype == torch.bool]
        for sites in (_by_site(wrong), _by_site(blank)):
            for values in sites:
                for meanings in zip(*map(self._meanings, values), strict=False):
                    replaced = dict(zip(values, meanings, strict=True))
                    if self._suffices(replaced):
                        return self._of_mask(values[0])
        return None

    def _of_mask(self, value: Value) -> Correction:
        """Say which mask is wrong: the first that is, or what it is cut from if no call makes that."""
        why = f"with the mask that is expected in its place, {GONE}"
        root = value
        while root.name in {*MOVES, *CASTS} and len(root.parents) == 1:
            root = root.parents[0]
        if value.call is None:
            value = next(each for each in self.behind if value in each.parents)
        is_made_here = root.call is not None or self._begins_right(root)
        return Correction(value, why, None if is_made_here else root)

    def _begins_right(self, root: Value) -> bool:
        """Whether a mask for more positions is as expected for the first, so that it is cut wrongly."""
        n = self.n
        if root.tensor.dim() < 2 or min(root.tensor.shape[-2:]) < n or _numbers(root) is None:
            return False
        return self._is_right(Value(root.index, root.tensor[..., :n, :n]))

    def _uses(self) -> Iterator[tuple[TorchCall, Value]]:
        """Yield the calls that apply a mask that is as expected, with what they apply it to."""
        right = {each for each in self.masks if self._is_right(each) and not _is_blank(each)}
        for call in dict.fromkeys(each.call for each in self.behind if each.call is not None):
            moving = [each for each in call.parents if self._moves(each)]
            if call.name in APPLIES and moving and any(each in right for each in call.parents):
                yield call, moving[0]

    def _use_of_mask(self) -> Correction | None:
        """Hide what is expected behind each line that applies a right mask."""
        uses = {call.outputs[0]: operand for call, operand in self._uses()}
        for values in _by_site(uses):
            if self._is_hidden_gone({each: uses[each] for each in values}, float("-inf")):
                why = "the mask is as expected, and the keys that it hides keep weight: with −∞ there"
                return Correction(values[0], f"{why}, {GONE}")
        return None

    def _no_mask(self) -> Correction | None:
        """Hide scores before each line that makes weights of them, if no mask does so already."""
        weights = [each for each in self.behind if each.name in WEIGHTS and self._moves(each)]
        weights = [each for each in weights if each.tensor.shape[-2:] == (self.n, self.n)]
        for values in _by_site(weights):
            hides = WEIGHTS[values[0].name]
            places = {each: each if hides == 0.0 else each.parents[0] for each in values}
            if not self._is_hidden_gone({each: each for each in places.values()}, hides):
                continue
            late = [call for call, operand in self._uses() if _ancestors(operand) & set(values)]
            if late:
                why = "it hides weights, after their sum over all keys: with hidden scores before that"
                return Correction(late[0].outputs[0], f"{why}, {GONE}")
            if any(self._is_masked(each) for each in places.values()):
                return None  # the mask is wrong, and it is not known where
            why = "nothing hides scores before it: with the expected mask"
            return Correction(values[0], f"{why}, {GONE}")
        return None

    def _is_masked(self, scores: Value) -> bool:
        """Whether anything that may be a mask has been applied to scores."""
        calls = {each.call for each in _ancestors(scores) if each.call is not None}
        return any(
            call.name in MASKS or any(self._may_hide(each) for each in call.parents)
            for call in calls
            if call.name in APPLIES
        )

    def _may_hide(self, value: Value) -> bool:
        """Whether a tensor has two numbers, or very low ones, and does not move."""
        if self._moves(value) or value.tensor.numel() < 2 or _is_blank(value):
            return False
        is_low = not value.tensor.is_complex() and bool((value.tensor <= HIDES).any())
        return is_low or _numbers(value) is not None

    def _is_hidden_gone(self, sources: Mapping[Value, Value], hides: float) -> bool:
        """Check whether nothing leaks if scores are filled with a number where keys should be hidden.

        `sources` has the scores to fill, by the tensor that is then replaced by them.
        """

        def hidden(change: ChangedRun | None) -> Tensors:
            tape, found = self.tape if change is None else change.tape, {}
            for value, source in sources.items():
                own = tape.values[source.index].tensor
                if self.visible is None or own.shape[-2:] != (self.n, self.n):
                    raise ValueError("these scores are not for pairs")
                own = own.masked_fill(~self.visible, hides)
                found[value] = own.expand_as(value.tensor).to(value.tensor)
            return found

        return self._is_gone(hidden)

    # What is no mask.

    def _other_axis(self) -> Correction | None:
        """Compute each softmax along the other of its last two axes."""
        for values in _by_site(each for each in self.behind if each.name in SOFTMAXES and each.call):

            def turned(change: ChangedRun | None, values: list[Value] = values) -> Tensors:
                tape = self.tape if change is None else change.tape
                return {each: _along_other_axis(each, tape) for each in values}

            if self._is_gone(turned):
                return Correction(values[0], f"with a softmax along the other axis, {GONE}")
        return None

    def _origin(self) -> Correction | None:
        """Put back what each line computes, if it leaks although all that the line reads is clean."""
        for values in _grouped((each for each in self.behind if each.place), _line):
            outer = self._results(values)
            if not any(map(self._is_origin, outer)) or self._reads_mask(values):
                continue
            for kept in self._put_back(outer):
                if self._is_gone(kept) and self._reads_clean(values, kept):
                    why = "what it reads moves as it should, and its result does not"
                    return Correction(self._first_alone(values) or outer[0], why)
        return None

    def _reads_mask(self, values: list[Value]) -> bool:
        """Whether a line attends with a mask of another line, which may be the one that is wrong."""
        attends = any(each.name in WEIGHTS or each.name in FUSED for each in values)
        outside = {one for each in values for one in each.parents} - {*values}
        return attends and any(map(self._may_hide, outside))

    def _first_alone(self, values: list[Value]) -> Value | None:
        """Return the first expression of a line whose correction suffices."""
        for each in filter(self._is_origin, values):
            if any(map(self._is_gone, self._put_back([each]))):
                return each
        return None

    def _results(self, values: list[Value]) -> list[Value]:
        """Return the tensors of a line that other lines read, or that are returned."""
        own = set(values)
        read = {each for one in self.behind if one not in own for each in one.parents}
        return [each for each in values if each in read or each in self.ends]

    def _reads_clean(self, values: list[Value], kept: Callable[[ChangedRun], Tensors]) -> bool:
        """Check that nothing that a line reads leaks, wherever it runs, once its results do not."""
        parents = {one for each in values for one in each.parents if one.call is not None} - {*values}
        for change in self.changes:
            after = _replayed(change.tape, kept(change))
            if any(change.state_of(each.index, each.tensor, after(each)) != "clean" for each in parents):
                return False
        return True

    def _is_origin(self, value: Value) -> bool:
        """Whether a tensor leaks, or mixes positions by more than an arrangement of elements."""
        states = {each.state(value.index) for each in self.changes}
        return "leaks" in states or ("mixed" in states and value.name not in MOVES)

    def _put_back(self, values: list[Value]) -> Iterator[Callable[[ChangedRun | None], Tensors]]:
        """Yield what tensors hold if positions do not move that should not.

        Where the positions of a tensor may begin at several places, each is tried.
        """
        views = [view for each in values for view in self.changes[0].views(each.index)]
        for start in range(max((len(view.starts) for view in views), default=1)):

            def kept(change: ChangedRun | None, start: int = start) -> Tensors:
                if change is None:
                    return {}
                return {each: self._kept(each, change, start) for each in values}

            yield kept

    def _kept(self, value: Value, change: ChangedRun, start: int) -> torch.Tensor:
        """Return a tensor of a changed run, in which what should not move is as it was before."""
        before, after = value.tensor, change.tape.values[value.index].tensor
        views = change.views(value.index)
        if change.state(value.index) == "clean":
            return after
        if len(views) != 1:
            return before
        [view] = views
        first = view.starts[min(start, len(view.starts) - 1)]
        places = change.still + first
        places = places[(places >= 0) & (places < view.shape[view.axis])]
        kept = after.reshape(view.shape).clone()
        kept.index_copy_(view.axis, places, before.reshape(view.shape).index_select(view.axis, places))
        return kept.reshape(after.shape)


def _replayed(tape: Tape, replaced: Tensors) -> Callable[[Value], torch.Tensor]:
    """Replay a run with some tensors replaced, and return a function that looks up its tensors.

    Both take the values of the run without a change as keys.
    """
    own = tape.values
    new = tape.replayed({own[value.index]: tensor for value, tensor in replaced.items()})
    return lambda value: new.get(own[value.index], own[value.index].tensor)


def _numbers(value: Value) -> tuple[float, float] | None:
    """Return the numbers of a mask, the one that hides first; None if it is not one.

    Booleans, zeros and ones may mean both. Numbers that are added to scores are 0 or negative.
    """
    tensor = value.tensor
    if tensor.dtype == torch.bool:
        return 0.0, 1.0
    if tensor.is_complex() or tensor.numel() < 2:
        return None
    low, high = (float(each) for each in tensor.aminmax())
    if not bool(((tensor == low) | (tensor == high)).all()):
        return None
    if {low, high} <= {0.0, 1.0}:
        return 0.0, 1.0
    return (low, high) if high == 0.0 and low <= LOW else None


def _is_blank(value: Value) -> bool:
    """Whether all elements of a mask are equal: it hides nothing, or will be filled."""
    return bool((value.tensor == value.tensor.flatten()[0]).all())


def _is_as_finite(end: Value, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Check that an output that was finite still is."""
    is_finite = bool(before.isfinite().all()) and bool(after.isfinite().all())
    return is_finite or not bool(end.tensor.isfinite().all())


def _along_other_axis(value: Value, tape: Tape) -> torch.Tensor:
    """Compute a softmax of a tape along the other of its last two axes."""
    call = value.call
    assert call is not None
    scores = tape.values[call.parents[0].index].tensor
    dim = call.argument(1, "dim", -1) % scores.dim() - scores.dim()
    if dim not in (-1, -2):
        raise ValueError
    return scores.log_softmax(-3 - dim) if call.name == "log_softmax" else scores.softmax(-3 - dim)


def _ancestors(*values: Value) -> set[Value]:
    """Return tensors, and all that they are computed from."""
    found, left = {*values}, [*values]
    while left:
        new = [each for each in left.pop().parents if each not in found]
        found.update(new)
        left += new
    return found


def _by_site(values: Iterable[Value]) -> list[list[Value]]:
    """Group tensors by the expression that computes them, as layers compute one each."""
    return _grouped(
        values, lambda each: (each.place, each.name) if each.place is not None else each.index
    )


def _line(value: Value) -> tuple[str, int] | None:
    """Return the file and the line that compute a tensor."""
    return None if value.place is None else (value.place.file, value.place.line)


def _grouped(values: Iterable[Value], key: Callable[[Value], Hashable]) -> list[list[Value]]:
    """Group tensors in order."""
    groups: dict[Hashable, list[Value]] = {}
    for each in values:
        groups.setdefault(key(each), []).append(each)
    return list(groups.values())
