"""Audit code: change each position of its input in turn, and see which positions of its output move."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

from attnscope.auditing.code.layout import (
    POSITIONS,
    Group,
    PositionLayout,
    axes_of,
    chosen,
    is_number,
    labels_of,
    layout_of,
    shorter,
)
from attnscope.auditing.code.masks import PAIRS, Mask, found_mask, is_mask_name, may_be_mask
from attnscope.auditing.code.runs import CodeRuns, copied
from attnscope.auditing.code.softmaxes import depth_of, fully_masked_rows, n_softmaxes
from attnscope.auditing.expected import ExpectedMask, StatedMask
from attnscope.auditing.measure.batch_norms import batch_norms_of, batch_statistics
from attnscope.auditing.measure.difference import influences, relative
from attnscope.auditing.measure.finite import not_finite, origin
from attnscope.auditing.measure.leak import first_leak
from attnscope.auditing.result import Influence, Line
from attnscope.errors import OptionError, SourceError
from attnscope.implementations.code import INDICES, built_side, usual_inputs
from attnscope.implementations.drawn import draw_constants
from attnscope.implementations.implementation import Side, tensors_of
from attnscope.implementations.options import Pairing
from attnscope.user_code.load import Loaded
from attnscope.user_code.signatures import callee
from attnscope.user_code.subject import Texts

N_POSITIONS = 13
"""The number of positions of the usual inputs."""

WIDEST_FIRST = ("float64", "float32")
"""The dtypes that code is run in: rounding in float64 cannot be mistaken for influence."""

BATCH = re.compile("b|bs|bsz|(n_?)?batch(_size)?", re.I)
"""Names of the axis of sequences."""


@dataclass(eq=False)
class AuditedCode:
    """A class or function with inputs, whose positions can be changed.

    Attributes:
        runs: calls it.
        inputs: its inputs.
        layout: where their positions are.
        changing: the inputs that are changed: those that keys and values come from.
        masks: the inputs that hide positions.
        drawn_pairs: the masks of pairs among them that the user did not give.
        notices: sentences about the inputs.
    """

    runs: CodeRuns
    inputs: dict[str, Any]
    layout: PositionLayout
    changing: Group
    masks: list[Mask] = field(default_factory=list)
    drawn_pairs: list[Mask] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its name."""
        return self.runs.side.title

    @property
    def module(self) -> torch.nn.Module | None:
        """The module that is called, if it is one."""
        return self.runs.side.module

    @property
    def n(self) -> int:
        """The number of positions that are changed."""
        return self.changing.n

    @property
    def rounding(self) -> float:
        """How far rounding moves an output; 0 in float64, where it does not matter."""
        return 0.0 if self.runs.is_exact else self.runs.rounding

    def with_inputs(self, values: Mapping[str, Any]) -> AuditedCode:
        """Return the same code with other values of some inputs."""
        return self if not values else replace(self, inputs=self.inputs | dict(values))

    def showing(self, mask: ExpectedMask | StatedMask) -> AuditedCode:
        """Return the same code with drawn masks of pairs that show what a mask does."""
        visible = mask.visible(self.n)
        return self.with_inputs({each.name: each.values(visible) for each in self.drawn_pairs})

    def batch_axis(self, name: str) -> int | None:
        """Return the axis of an input that is the batch: by its name, or the first before positions."""
        own = self.layout.axes[name]
        labels = [str(each) for each in labels_of(self.runs.side, name)]
        named = [i for i, each in enumerate(labels) if BATCH.fullmatch(each) and i != own]
        return next(iter(named), 0 if own > 0 else None)

    def output(self, changed: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Return the output, with other values of some inputs."""
        return self.runs.output(self.inputs | dict(changed or {}))

    def rows(self, changed: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Return the output by position: `n …`."""
        return self.output(changed).movedim(self.layout.out_axis, 0).reshape(self.layout.n, -1)

    def changed(self, positions: Sequence[int], group: Group | None = None) -> dict[str, torch.Tensor]:
        """Return inputs, those that are changed, with other values at some positions."""
        names = (group or self.changing).names
        return {name: self.other(self.inputs[name], self.layout.axes[name], positions) for name in names}

    @staticmethod
    def other(tensor: torch.Tensor, axis: int, positions: Sequence[int]) -> torch.Tensor:
        """Return a tensor with other values at some positions of an axis."""
        result = tensor.clone()
        view = result.movedim(axis, 0)
        index = list(positions)
        if is_number(tensor):
            dtype = torch.float64 if tensor.is_floating_point() else torch.complex128
            noise = torch.randn(
                view[index].shape, generator=torch.Generator().manual_seed(1), dtype=dtype
            )
            view[index] = noise.to(tensor) * tensor.std().clamp(min=1e-3) + tensor.mean()
        elif tensor.dtype == torch.bool:
            view[index] = ~view[index]
        else:
            high = int(tensor.max()) + 1
            view[index] = (view[index] + 1) % max(high, 2)
        return result

    def influence(self, visible: torch.Tensor | None = None) -> Influence:
        """Measure how much each position changes each, beside which should be visible: `n_Q n_K`."""
        listed = None if visible is None else visible.tolist()
        return Influence(f"influence in {self.title}", self.measured.tolist(), listed)

    @property
    def measured(self) -> torch.Tensor:
        """How much each position changes each, above rounding: `n_Q n_K`."""
        return self.amounts.where(self.amounts > self.runs.rounding, 0.0)

    @cached_property
    def amounts(self) -> torch.Tensor:
        """The same with rounding, measured by changing one position after the other."""
        return influences(self.before, (self.rows(self.changed([key])) for key in range(self.n)))

    def doubt(self, visible: torch.Tensor) -> str:
        """Return in words which pair moves that should not, by so little that rounding may be why."""
        small = self.amounts.where(~visible & (self.amounts <= self.runs.rounding), 0.0)
        if self.runs.is_exact or not bool(small.any()):
            return ""
        query, key = divmod(int(small.argmax()), small.shape[1])
        amount, dtype = float(small.max()), str(self.runs.dtype).removeprefix("torch.")
        return (
            f"changing position {key} moves position {query} by {amount:.1g}, which may be rounding in"
            f" {dtype}"
        )

    @cached_property
    def before(self) -> torch.Tensor:
        """The output by position without any change: `n …`."""
        return self.rows()

    def not_finite(self, rows: Sequence[int] | None = None) -> str:
        """Return in words what of the output is not finite, and where that arises; empty if all is.

        Args:
            rows: the positions of the output that count; None: all.
        """
        what = not_finite(self.before if rows is None else self.before[rows])
        if not what:
            return ""
        inputs = copied(self.inputs)
        first = origin(
            lambda: self.runs.output(inputs, copy=False), self.layout.n, *self.runs.names(inputs)
        )
        return "; ".join(filter(None, [what, first]))

    @property
    def has_named_positions(self) -> bool:
        """Whether the axis taken for positions has a name of positions."""
        name = self.changing.names[0]
        return bool(POSITIONS.search(str(labels_of(self.runs.side, name)[self.layout.axes[name]])))

    def mixes(self) -> bool:
        """Check whether any position changes another."""
        return bool((self.measured - self.measured.diag().diag()).any())

    def leak(self, key: int, still: Sequence[int]) -> tuple[Line | None, str]:
        """Return the line where a change of one position begins to move others; see `first_leak`."""
        inputs = self.inputs, self.inputs | self.changed([key])
        axes, groups = self.layout.axes, self.layout.groups
        sequences = {name for each in groups for name in each.names}
        names = [name for name in sequences if inputs[0][name].shape[axes[name]] == self.layout.n]
        short = shorter(self.runs.side, inputs[0], axes, sequences, names)
        return first_leak(
            lambda change: self.runs.call(inputs[change]),
            self.layout.n,
            still,
            lambda: self.runs.call(short),
            self.runs.rounding,
        )

    def fully_masked(self) -> tuple[set[int], bool]:
        """Find the queries that see no key, and whether other outputs are free of what they mix."""
        tape = self.runs.tape(self.inputs)
        return fully_masked_rows(tape, self.layout.n), n_softmaxes(tape) == 1

    @cached_property
    def depth(self) -> int:
        """How many layers follow each other: those of attention, or else the longest list of modules."""
        modules = [] if self.module is None else self.module.modules()
        kinds = (torch.nn.ModuleList, torch.nn.Sequential)
        lists = [len(each) for each in modules if isinstance(each, kinds)]
        return depth_of(self.runs.tape(self.inputs)) or max(lists, default=1)

    @contextmanager
    def in_training(self) -> Iterator[AuditedCode | None]:
        """Let its batch norms work as in training; None if there are none."""
        norms = batch_norms_of(self.module)
        if not norms:
            yield None
            return
        with batch_statistics(norms):
            yield replace(self)


def code_of(
    loaded: Loaded,
    pairing: Pairing,
    positions: str | None = None,
    mask_inputs: Mapping[str, float | None] = MappingProxyType({}),
    dtype: str | None = None,
) -> AuditedCode:
    """Build a class or function and its inputs, in float64 if it runs so.

    Args:
        loaded: the class or function.
        pairing: its arguments; without inputs, the usual ones are tried.
        positions: the name of an axis, or of an input, whose positions are changed; None: those of the
            output, or of the keys if they change no other position.
        mask_inputs: the inputs that hide positions, with the value that hides, None if it is not said;
            others are found by name, dtype, shape and use.
        dtype: the dtype to run in; None: float64, or float32 if it raises in float64 only.

    Raises:
        AttnscopeError: it cannot be built, or has no axis of positions.
    """

    def code_with(inputs: Texts) -> AuditedCode:
        runs = _runs(loaded, replace(pairing, inputs=inputs), [dtype] if dtype else WIDEST_FIRST)
        return _code(runs, positions, mask_inputs)

    candidates = [pairing.inputs] if pairing.inputs else list(_usual(loaded, pairing))
    failure: SourceError | None = None
    for each in candidates or [()]:
        try:
            code = code_with(each)
            is_named = positions is not None or (pairing.inputs and code.has_named_positions)
            other = None if is_named else _axis_that_mixes(code)
            if other is None:
                return code
            if pairing.inputs:
                raise _unknown_axis(code, other)
            own = code.layout.axes[code.changing.names[0]]
            code = code_with([_exchanged(text, own, other) for text in each])
            code.notices.append(
                f"positions are along axis {other}, where some move others; along axis {own} none does"
            )
            return code
        except SourceError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _runs(loaded: Loaded, pairing: Pairing, dtypes: Sequence[str]) -> CodeRuns:
    """Build a class or function and its inputs in the first dtype in which it runs.

    Raises:
        SourceError: it raises in each; the error is that of the last.
    """
    notices: list[str] = []
    for name in dtypes:
        side = built_side(loaded, loaded.name, replace(pairing, dtype=name))
        if side.module is not None:
            side.module.eval()
            drawn = draw_constants(side.module, torch.Generator().manual_seed(pairing.seed))
            if drawn and isinstance(loaded.object, torch.nn.Module):
                more = f", and {len(drawn) - 3} more" if len(drawn) > 3 else ""
                side.notices.append(f"weights that are constant are drawn: {', '.join(drawn[:3])}{more}")
        side.inputs, counted = _with_indices(side)
        runs = CodeRuns(side, getattr(torch, name))
        try:
            runs.choose_output(side.inputs)
        except SourceError as error:
            if name == dtypes[-1]:
                raise
            notices.append(f"it runs in {dtypes[-1]}, because in {name}, {error.message}")
            continue
        side.notices += [*counted, *notices]
        return runs
    raise AssertionError("there is a dtype")


def _usual(loaded: Loaded, pairing: Pairing) -> Iterator[list[str]]:
    """Yield the usual inputs with as many queries as keys."""
    for each in usual_inputs(callee(loaded, pairing.call), pairing.init):
        if not any("n_K:7" in text for text in each):
            yield [text.replace("n_Q:5", f"n_Q:{N_POSITIONS}") for text in each]


def _code(runs: CodeRuns, positions: str | None, mask_inputs: Mapping[str, float | None]) -> AuditedCode:
    """Find out what each input of code is, and give drawn masks values that hide nothing."""
    side, inputs, tensors = runs.side, runs.side.inputs, tensors_of(runs.side)
    for name in mask_inputs:
        if name not in tensors:
            raise OptionError(
                f"{name} is not a tensor among the inputs of {side.title}.",
                hint=f"--input {name}=B,T@bool",
            )
    runs.check_repeatable(inputs)
    runs.measure_rounding(inputs)
    if not runs.is_exact:
        side.notices.append(f"rounding moves outputs by up to {runs.rounding:.1g} of the largest")
    possible = [name for name in tensors if name in mask_inputs or may_be_mask(name, tensors[name])]
    indices = [name for name in tensors if INDICES.search(name) and not is_number(tensors[name])]
    axes = axes_of(side, None)
    named = axes_of(side, positions)
    axes |= named
    sequences = [name for name in axes if name not in possible and name not in indices]
    if not sequences:  # token ids that happen to be zeros and ones, and the like
        sequences = [name for name in axes if name not in mask_inputs and not is_mask_name(name)]
        possible = [name for name in possible if name not in sequences]
    if not sequences and mask_inputs:
        raise OptionError(
            f"no input of {side.title} but {', '.join(mask_inputs)} has an axis of positions, and"
            " --mask-input names an input that hides positions of others.",
            hint=f"without --mask-input {next(iter(mask_inputs))}, if its positions are to be changed",
        )
    if not sequences:
        raise OptionError(
            f"no input of {side.title} has an axis of positions.", hint="--input x=B,T,C --positions T"
        )
    layout = layout_of(runs, inputs, axes, sequences)
    if layout.n < 2:
        raise OptionError(
            f"the output of {side.title} has one position, and an audit needs two or more.",
            hint="--input x=B,T:9,C",
        )
    code = AuditedCode(runs, inputs, layout, layout.groups[0], notices=side.notices)
    code = _with_masks(code, possible, mask_inputs)
    return _with_keys(code, chosen(side, layout, positions))


def _axis_that_mixes(code: AuditedCode) -> int | None:
    """Return another axis, along which something moves others, if nothing does along the positions'."""
    names = code.changing.names
    tensor, axis = code.inputs[names[0]], code.layout.axes[names[0]]
    if code.mixes():
        return None
    output = code.output()
    alike = {name: code.inputs[name] for name in names if code.inputs[name].shape == tensor.shape}
    for other in range(tensor.dim() - is_number(tensor)):
        if other == axis or output.shape[: other + 1] != tensor.shape[: other + 1]:
            continue
        for index in (0, tensor.shape[other] - 1):
            changed = {name: code.other(each, other, [index]) for name, each in alike.items()}
            outputs = output, code.output(changed)
            amounts = relative(*(each.movedim(other, 0).flatten(1) for each in outputs))
            amounts[index] = 0.0
            if bool((amounts > code.runs.rounding).any()):
                return other
    return None


def _unknown_axis(code: AuditedCode, other: int) -> OptionError:
    """Return the error that asks the user which axis of the inputs is that of positions."""
    side, names = code.runs.side, code.changing.names
    shape, axis = code.inputs[names[0]].shape, code.layout.axes[names[0]]
    sizes = ",".join(f"T:{size}" if i == other else str(size) for i, size in enumerate(shape))
    hint = " ".join(f"--input {name}={sizes}" for name in names)
    if side.has_batch_second:
        hint = f"batch_first=True where {side.title} is built, or {hint}"
    return OptionError(
        f"which axis of {names[0]} are the positions? Along axis {axis}, with {shape[axis]}, none moves"
        f" another; along axis {other}, with {shape[other]}, some do.",
        hint=hint,
    )


def _exchanged(text: str, one: int, other: int) -> str:
    """Return the specification of an input with two axes exchanged: `x=n,b,d` for `x=b,n,d`."""
    name, axes = text.split("=", 1)
    each = axes.split(",")
    each[one], each[other] = each[other], each[one]
    return f"{name}={','.join(each)}"


def _with_indices(side: Side) -> tuple[dict[str, Any], list[str]]:
    """Return the inputs, with positions that count, where they were drawn."""
    inputs, notices = dict(side.inputs), []
    for name, tensor in tensors_of(side).items():
        if name in side.drawn and INDICES.search(name) and not is_number(tensor) and tensor.dim():
            count = torch.arange(tensor.shape[-1], dtype=tensor.dtype)
            inputs[name] = count.expand(tensor.shape).clone()
            notices.append(f"{name} counts 0, 1, 2, …")
    return inputs, notices


def _with_masks(
    code: AuditedCode, names: Sequence[str], mask_inputs: Mapping[str, float | None]
) -> AuditedCode:
    """Find out what masks hide, and let those that were drawn hide nothing."""
    masks: dict[str, Mask] = {}
    for _ in range(2):  # one mask may hide what another shows, until both are known
        for name in names:
            if name in masks and (masks[name].hides or len(names) == 1):
                continue
            mask = found_mask(code, name, code.layout.groups, mask_inputs.get(name))
            if mask is None:
                continue
            if mask.hides or is_mask_name(name) or name in mask_inputs:
                masks[name] = mask
                if name in code.runs.side.drawn:
                    code = code.with_inputs({name: mask.hiding([])})
    drawn = [each for each in masks.values() if each.name in code.runs.side.drawn]
    notices = [
        f"{each.name} {'shows what is promised' if each.kind == PAIRS else 'hides nothing'}, but where"
        f" padding is tested ({each.meaning.text}{'' if each.is_known else ', presumably'})"
        for each in drawn
    ]
    unknown = [name for name in names if name not in masks and name in code.runs.side.drawn]
    notices += [f"{name} stays as it is drawn" for name in unknown]
    pairs = [each for each in drawn if each.kind == PAIRS]
    return replace(
        code, masks=list(masks.values()), drawn_pairs=pairs, notices=[*code.notices, *notices]
    )


def _with_keys(code: AuditedCode, named: Group | None) -> AuditedCode:
    """Choose the inputs that are changed: those that keys come from.

    Raises:
        OptionError: these have another number of positions than the output.
    """
    groups = code.layout.groups
    group = named or groups[0]
    if named is None and len(groups) > 1 and not code.mixes():
        numbers = [
            each for each in groups[1:] if any(is_number(code.inputs[name]) for name in each.names)
        ]
        same = [each for each in numbers if each.n == code.layout.n]
        group = (same or numbers or groups)[0]
    if group.n != code.layout.n:
        queries = groups[0].names[0]
        raise OptionError(
            f"{code.title} has {code.layout.n} queries and {group.n} keys, and which key a query may see"
            " is defined for as many of both.",
            hint=f"--input {queries}=… with {group.n} positions",
        )
    others = [name for each in groups for name in each.names if name not in group.names]
    notice = f"positions are those of {', '.join(group.names)}; not changed: {', '.join(others)}"
    return replace(code, changing=group, notices=code.notices + [notice] * bool(others))
