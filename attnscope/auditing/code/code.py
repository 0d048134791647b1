"""Audit code: change each position of its input in turn, and see which positions of its output move."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch

from attnscope.auditing.code.layout import (
    BATCH,
    POSITIONS,
    Group,
    PositionLayout,
    axes_of,
    chosen,
    is_number,
    labels_of,
    layout_of,
    shared_axes,
    shorter,
)
from attnscope.auditing.code.masks import PAIRS, Mask, found_mask, is_mask_name, may_be_mask
from attnscope.auditing.code.runs import (
    CodeOutput,
    CodeRuns,
    copied,
    depths_of,
    fully_masked_rows,
    n_softmaxes,
    outputs_of,
)
from attnscope.auditing.expected import ExpectedMask, StatedMask
from attnscope.auditing.measure.difference import influences, relative
from attnscope.auditing.measure.finite import not_finite, origin
from attnscope.auditing.measure.leak import Cause, first_leak
from attnscope.auditing.models.subject import batch_norms_of, batch_statistics
from attnscope.auditing.result import Influence
from attnscope.base.errors import OptionError, SourceError
from attnscope.base.options import Texts
from attnscope.base.spelling import spelled
from attnscope.code.load.load import Loaded
from attnscope.code.load.signatures import callee
from attnscope.code.pairs.code import INDICES, built_side, usual_inputs
from attnscope.code.pairs.drawn import draw_constants
from attnscope.code.pairs.implementation import Side, tensors_of
from attnscope.code.pairs.pairing import Pairing

N_POSITIONS = 13
"""The number of positions of the usual inputs."""

WIDEST_FIRST = ("float64", "float32")
"""The dtypes that code is run in: rounding in float64 cannot be mistaken for influence."""


TEXT_LIMITS = re.compile("cu_?seq_?lens?", re.I)
"""Names of inputs that say where texts in one row begin and end: `0, 4, 9`."""

TEXT_IDS = re.compile("(seq(uence)?|doc(ument)?|segment|sample)_?ids?$", re.I)
"""Names of inputs that say of which text each position is."""


@dataclass(eq=False)
class AuditedCode:
    """A class or function with inputs, whose positions can be changed."""

    runs: CodeRuns
    inputs: dict[str, Any]
    layout: PositionLayout  #: where their positions are
    changing: Group  #: the inputs that are changed: those that keys and values come from
    #: what it returns that has positions; the likeliest to be its output first
    outputs: list[CodeOutput]
    #: what else it returns, and why that is not audited
    left_out: list[str] = field(default_factory=list)
    at: int = 0  #: the one of the outputs that is compared
    #: the pairs of which a tensor of pairs is compared, `n_Q n_K`; None: all
    judged: torch.Tensor | None = None
    is_mask_known: bool = True  #: whether one mask should show just these pairs
    masks: list[Mask] = field(default_factory=list)
    #: the masks of pairs among them that the user did not give
    drawn_pairs: list[Mask] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    _runs: dict[tuple[tuple[str, ...], int | None], list[torch.Tensor]] = field(default_factory=dict)
    """What it returned with these inputs, by the inputs and the position that were changed."""

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
        return self if not values else replace(self, inputs=self.inputs | dict(values), _runs={})

    def showing(self, mask: ExpectedMask | StatedMask) -> AuditedCode:
        """Return the same code with drawn masks of pairs that show what a mask does."""
        if not self.is_square:
            return self
        visible = mask.visible(self.n)
        drawn = {each.name: each.values(visible) for each in self.drawn_pairs}
        return replace(self.with_inputs(drawn), judged=visible)

    def of(self, at: int) -> AuditedCode:
        """Return the same code, of which another output is compared."""
        return replace(self, at=at)

    @property
    def is_square(self) -> bool:
        """Whether it has as many queries as keys."""
        return self.layout.n == self.n

    @property
    def has_several(self) -> bool:
        """Whether it returns several tensors."""
        return len(self.runs.returned_names) > 1

    @property
    def out(self) -> CodeOutput:
        """The output that is compared."""
        return self.outputs[self.at]

    def batch_axis(self, name: str) -> int | None:
        """Return the axis of an input that is the batch: by its name, or the first before positions."""
        own = self.layout.axes[name]
        labels = [str(each) for each in labels_of(self.runs.side, name)]
        named = [i for i, each in enumerate(labels) if BATCH.fullmatch(each) and i != own]
        return next(iter(named), 0 if own > 0 else None)

    def output(self, changed: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Return the output, with other values of some inputs."""
        return self.runs.returned(self.inputs | dict(changed or {}))[self.out.place]

    def rows(self, changed: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Return the output by position, `n …`, or by pair, `n_Q·n_K …`."""
        return self.out.by_position(self.output(changed))

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
        of = f"influence in {self.title}" + (f", {self.out.name}" if self.has_several else "")
        return Influence(of, self.measured.tolist(), listed)

    @property
    def measured(self) -> torch.Tensor:
        """How much each position changes each, above rounding: `n_Q n_K`."""
        return self.amounts.where(self.amounts > self.runs.rounding, 0.0)

    @cached_property
    def amounts(self) -> torch.Tensor:
        """The same with rounding, measured by changing one position after the other.

        Of a tensor of pairs, the elements for each query and the keys that it sees count: they may
        depend on what the query sees. Those of hidden keys, as in scores before a mask, say nothing.
        """
        amounts = influences(self.before, (self._after(key) for key in range(self.n)))
        if not self.out.is_of_pairs:
            return amounts
        judged = torch.ones(self.n, self.n, dtype=torch.bool) if self.judged is None else self.judged
        return (amounts * judged.reshape(-1, 1)).reshape(self.n, self.n, -1).amax(1)

    def _after(self, key: int | None) -> torch.Tensor:
        """Return the output by position with another input at one, or as it is."""
        which = self.changing.names, key
        if which not in self._runs:
            changed = {} if key is None else self.changed([key])
            self._runs[which] = self.runs.returned(self.inputs | changed)
        return self.out.by_position(self._runs[which][self.out.place])

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
        return self._after(None)

    def not_finite(self, rows: Sequence[int] | None = None) -> str:
        """Return in words what of the output is not finite, and where that arises; empty if all is."""
        before = self.before
        if self.out.is_of_pairs:
            judged = self.judged if self.judged is not None else before.new_ones(self.n, self.n) > 0
            before = before.masked_fill(~judged.reshape(-1, 1), 0.0).reshape(self.n, -1)
        what = not_finite(before if rows is None else before[rows])
        if not what:
            return ""
        inputs = copied(self.inputs)
        first = origin(
            lambda: self.runs.returned(inputs, copy=False)[self.out.place],
            self.layout.n,
            *self.runs.names(inputs),
        )
        return "; ".join(filter(None, [what, first]))

    @property
    def has_named_positions(self) -> bool:
        """Whether the axis taken for positions has a name of positions."""
        name = self.changing.names[0]
        return bool(POSITIONS.search(str(labels_of(self.runs.side, name)[self.layout.axes[name]])))

    def mixes(self) -> bool:
        """Check whether any position changes another."""
        if not self.is_square:
            return bool(self.measured.any())
        return bool((self.measured - self.measured.diag().diag()).any())

    @property
    def _sequences(self) -> set[str]:
        """The inputs that have positions of their own."""
        return {name for each in self.layout.groups for name in each.names}

    def shorter(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the inputs with one position less in some."""
        return shorter(self.runs.side, self.inputs, self.layout.axes, self._sequences, names)

    def leak(self, still: Mapping[int, Collection[int]]) -> Cause:
        """Find the line whose correction keeps positions where they should be; see `first_leak`."""
        n, axes = self.layout.n, self.layout.axes
        names = [name for name in self._sequences if self.inputs[name].shape[axes[name]] == n]
        return self._first_leak(
            [(self.changed([key]), rows) for key, rows in still.items()],
            n,
            self.shorter(names),
            visible=self.judged if self.is_square and self.is_mask_known else None,
            weights=self._plain_tensors | self.runs.names(self.inputs)[0],
            inputs=self.inputs,
            module=self.module,
        )

    def _first_leak(
        self,
        changed: Iterable[tuple[Mapping[str, torch.Tensor], Collection[int]]],
        n: int,
        short: Mapping[str, Any],
        **more: Any,
    ) -> Cause:
        """Call `first_leak` with runs on changed inputs, and on inputs with one position less."""

        def run_of(inputs: Mapping[str, Any]) -> Callable[[], Any]:
            return partial(self.runs.call, copied(inputs), copy=False)

        runs = [(run_of(self.inputs | dict(values)), still) for values, still in changed]
        rounding, place = self.runs.rounding, self.out.place
        return first_leak(run_of(self.inputs), runs, n, run_of(short), rounding, place=place, **more)

    @property
    def _plain_tensors(self) -> dict[int, str]:
        """The names of tensors in plain attributes of modules, by their `id`."""
        modules = [] if self.module is None else self.module.named_modules()
        return {
            id(value): f"{path}.{name}".lstrip(".")
            for path, module in modules
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        }

    def without(self, keys: Collection[int]) -> torch.Tensor | None:
        """Return the output of a run without some positions; None if there is no such run."""
        axes, own = self.layout.axes, self.changing.names
        sizes = [each.n for each in self.layout.groups]
        if len(set(sizes)) < len(sizes) or not set(own) <= self._sequences:
            return None  # which axes are whose is not known
        kept = torch.tensor(sorted({*range(self.n)} - {*keys}))
        inputs = dict(self.inputs)
        for name in tensors_of(self.runs.side):
            is_beside = name not in self._sequences
            shared = shared_axes(self.runs.side, axes, own[0], name) if is_beside else []
            for axis in [axes[name]] if name in own else shared:
                inputs[name] = inputs[name].index_select(axis, kept)
        try:
            return self.out.by_position(self.runs.returned(inputs)[self.out.place])
        except SourceError:
            return None

    def batch_leak(self, axis: int, changed: Mapping[str, torch.Tensor], kept: int) -> Cause:
        """Find the line that lets other sequences move one."""
        size = next(iter(changed.values())).shape[axis]
        batched = [name for name, each in tensors_of(self.runs.side).items() if each.dim() > axis]
        short = {
            name: self.inputs[name].narrow(axis, 0, size - 1)
            for name in batched
            if self.inputs[name].shape[axis] == size and self.batch_axis(name) == axis
        }
        return self._first_leak([(changed, {kept})], size, self.inputs | short)

    def fully_masked(self) -> tuple[set[int], bool]:
        """Find the queries that see no key, and whether other outputs are free of what they mix."""
        tape = self.runs.tape(self.inputs)
        return fully_masked_rows(tape, self.layout.n), n_softmaxes(tape) == 1

    @cached_property
    def depth(self) -> int:
        """How many layers an output comes through: of attention, or else the longest list of modules."""
        tape, returned = self.runs.recorded(self.inputs)
        if depths := depths_of(tape):
            return max(depths.get(returned[self.out.place], 0), 1)  # 0: beside the attention
        modules = [] if self.module is None else self.module.modules()
        kinds = (torch.nn.ModuleList, torch.nn.Sequential)
        return max((len(each) for each in modules if isinstance(each, kinds)), default=1)

    @contextmanager
    def in_training(self) -> Iterator[AuditedCode | None]:
        """Let its batch norms work as in training; None if there are none."""
        norms = batch_norms_of(self.module)
        if not norms:
            yield None
            return
        with batch_statistics(norms):
            yield replace(self, _runs={})


def code_of(
    loaded: Loaded,
    pairing: Pairing,
    positions: str | None = None,
    mask_inputs: Mapping[str, float | None] = MappingProxyType({}),
    dtype: str | None = None,
    *,
    may_differ: bool = False,
) -> AuditedCode:
    """Build a class or function and its inputs, in float64 if it runs so.

    Without inputs, the usual ones are tried. `positions` names an axis, or an input, whose positions are
    changed; None: those of the output, or of the keys if they change no other position. `mask_inputs`
    hide positions, with the value that hides, None if it is not said; others are found by name, dtype,
    shape and use. If it `may_differ`, there may be more keys than queries, or fewer.
    """

    def code_with(inputs: Texts) -> AuditedCode:
        runs = _runs(loaded, replace(pairing, inputs=inputs), [dtype] if dtype else WIDEST_FIRST)
        code = _code(runs, positions, mask_inputs)
        if not (code.is_square or may_differ):
            queries = code.layout.groups[0].names[0]
            raise OptionError(
                f"{code.title} has {code.layout.n} queries and {code.n} keys, and which key a query"
                f" may see is defined for as many of both; {spelled('batch')} and"
                f" {spelled('padding')} take any numbers.",
                hint=spelled(inputs=f"{queries}={_sizes_text(code, queries)}"),
            )
        return code

    candidates: list[Texts] = [pairing.inputs]
    if not pairing.inputs:  # the usual ones with as many queries as keys
        candidates = [
            [text.replace("n_Q:5", f"n_Q:{N_POSITIONS}") for text in each]
            for each in usual_inputs(callee(loaded, pairing.call), pairing.init)
            if not any("n_K:7" in text for text in each)
        ]
    failure: SourceError | None = None
    for each in candidates or [()]:
        try:
            code = code_with(each)
            is_named = positions is not None or (pairing.inputs and code.has_named_positions)
            others = [] if is_named else _axes_that_mix(code)
            if not others:
                return code
            if pairing.inputs:
                raise _unknown_axis(code, others)
            other = others[0]
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
    """Build a class or function and its inputs in the first dtype in which it runs."""
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


def _code(runs: CodeRuns, positions: str | None, mask_inputs: Mapping[str, float | None]) -> AuditedCode:
    """Find out what each input of code is, and give drawn masks values that hide nothing."""
    side, inputs, tensors = runs.side, runs.side.inputs, tensors_of(runs.side)
    for name in mask_inputs:
        if name not in tensors:
            raise OptionError(
                f"{name} is not a tensor among the inputs of {side.title}.",
                hint=spelled(inputs=f"{name}=B,T@bool"),
            )
    runs.check_repeatable(inputs)
    runs.measure_rounding(inputs)
    if not runs.is_exact:
        side.notices.append(f"rounding moves outputs by up to {runs.rounding:.1g} of the largest")
    indices = [
        name
        for name in tensors
        if not is_number(tensors[name])
        and any(names.search(name) for names in (INDICES, TEXT_LIMITS, TEXT_IDS))
    ]
    possible = [
        name
        for name in tensors
        if name in mask_inputs or (name not in indices and may_be_mask(name, tensors[name]))
    ]
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
            f" {spelled('mask_input')} names an input that hides positions of others.",
            hint=f"without {spelled(mask_input=next(iter(mask_inputs)))}, if its positions are to"
            " be changed",
        )
    if not sequences:
        raise OptionError(
            f"no input of {side.title} has an axis of positions.",
            hint=spelled(inputs="x=B,T,C", positions="T"),
        )
    layout = _layout(runs, inputs, axes, sequences)
    if layout.n < 2:
        raise OptionError(
            f"the output of {side.title} has one position, and an audit needs two or more.",
            hint=spelled(inputs="x=B,T:9,C"),
        )
    main = runs.ranked[0]
    known = CodeOutput(main, runs.returned_names[main], (layout.out_axis,))
    code = AuditedCode(runs, inputs, layout, layout.groups[0], [known], notices=side.notices)
    code = _with_masks(code, possible, mask_inputs)
    return _with_outputs(_with_keys(code, chosen(side, layout, positions)))


def _layout(
    runs: CodeRuns, inputs: Mapping[str, Any], axes: dict[str, int], sequences: list[str]
) -> PositionLayout:
    """Find the positions of the likeliest output that has some."""
    ranked = list(runs.ranked)
    failure: SourceError | None = None
    for place in ranked:
        runs.ranked = [place]
        try:
            return layout_of(runs, inputs, axes, sequences)
        except SourceError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _with_outputs(code: AuditedCode) -> AuditedCode:
    """Find all outputs that have positions, beside the one that is known."""
    runs, left_out = code.runs, list(code.runs.unknown)
    if len(runs.returned_names) == 1:
        return replace(code, left_out=left_out)
    shorter_runs = []
    for group in dict.fromkeys((code.layout.groups[0], code.changing)):
        with suppress(SourceError):
            shorter_runs.append((group.n, runs.returned(code.shorter(group.names))))
    outputs, others = outputs_of(
        runs.returned_names,
        runs.returned(code.inputs),
        shorter_runs,
        (code.out.place, code.layout.out_axis),
        code.layout.n,
    )
    if not code.is_square:  # which pairs count is known for as many queries as keys
        pairs = [each.name for each in outputs if each.is_of_pairs]
        others += [f"{name}, which has pairs of queries and keys" for name in pairs]
        outputs = [each for each in outputs if not each.is_of_pairs]
    return replace(code, outputs=outputs, left_out=others + left_out)


def _axes_that_mix(code: AuditedCode) -> list[int]:
    """Return other axes, along which something moves others, if nothing does along the positions'."""
    names = code.changing.names
    tensor, axis = code.inputs[names[0]], code.layout.axes[names[0]]
    if any(code.of(i).mixes() for i in range(len(code.outputs))):
        return []
    output = code.output()
    alike = {name: code.inputs[name] for name in names if code.inputs[name].shape == tensor.shape}
    return [
        other
        for other in range(tensor.dim() - is_number(tensor))
        if other != axis and output.shape[: other + 1] == tensor.shape[: other + 1]
        and any(_moves_others(code, alike, output, other, i) for i in (0, tensor.shape[other] - 1))
    ]  # fmt: skip


def _moves_others(
    code: AuditedCode, inputs: Mapping[str, torch.Tensor], output: torch.Tensor, axis: int, index: int
) -> bool:
    """Check whether a change of inputs at one place of an axis moves others."""
    changed = {name: code.other(each, axis, [index]) for name, each in inputs.items()}
    amounts = relative(*(each.movedim(axis, 0).flatten(1) for each in (output, code.output(changed))))
    amounts[index] = 0.0
    return bool((amounts > code.runs.rounding).any())


def _unknown_axis(code: AuditedCode, others: Sequence[int]) -> OptionError:
    """Return the error that asks the user which axis of the inputs is that of positions."""
    side, names = code.runs.side, code.changing.names
    shape, axis = code.inputs[names[0]].shape, code.layout.axes[names[0]]
    hints = []
    for other in others:
        sizes = ",".join(f"T:{size}" if i == other else str(size) for i, size in enumerate(shape))
        hints.append(" ".join(spelled(inputs=f"{name}={sizes}") for name in names))
    if side.has_batch_second:
        hints.insert(0, f"batch_first=True where {side.title} is built")
    along = ", and ".join(f"along axis {other}, with {shape[other]}" for other in others)
    return OptionError(
        f"which axis of {names[0]} are the positions? Along axis {axis}, with {shape[axis]}, none moves"
        f" another; {along}, some do.",
        hint=", or ".join(hints),
    )


def _sizes_text(code: AuditedCode, name: str) -> str:
    """Return the specification of an input with as many positions as there are keys: `B:2,T:9,8`."""
    shape, axis = code.inputs[name].shape, code.layout.axes[name]
    sizes = [code.n if i == axis else size for i, size in enumerate(shape)]
    labels = [str(each) for each in labels_of(code.runs.side, name)]
    return ",".join(
        f"{label}:{size}" if label.isidentifier() else str(size)
        for label, size in zip(labels, sizes, strict=True)
    )


def _exchanged(text: str, one: int, other: int) -> str:
    """Return the specification of an input with two axes exchanged: `x=n,b,d` for `x=b,n,d`."""
    name, axes = text.split("=", 1)
    each = axes.split(",")
    each[one], each[other] = each[other], each[one]
    return f"{name}={','.join(each)}"


def _with_indices(side: Side) -> tuple[dict[str, Any], list[str]]:
    """Return the inputs, with positions that count, and texts in one row, where they were drawn."""
    inputs, notices = dict(side.inputs), []
    axes = axes_of(side, None)
    numbers = [name for name, each in tensors_of(side).items() if is_number(each) and name in axes]
    n = inputs[numbers[0]].shape[axes[numbers[0]]] if numbers else 0
    for name, tensor in tensors_of(side).items():
        if name not in side.drawn or is_number(tensor) or not tensor.dim() or not n:
            continue
        if TEXT_LIMITS.search(name) and tensor.dim() == 1 and len(tensor) > 1:
            inputs[name] = torch.linspace(0, n, len(tensor)).long().to(tensor)
            notices.append(f"{name} is {', '.join(map(str, inputs[name].tolist()))}")
        elif TEXT_IDS.search(name) and tensor.shape[-1] == n:
            inputs[name] = (torch.arange(n) * 2 // n).to(tensor).expand(tensor.shape).clone()
            notices.append(f"{name} is 0 in the first half of the positions, and 1 in the second")
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
    """Choose the inputs that are changed: those that keys come from."""
    groups = code.layout.groups
    group = named or groups[0]
    if named is None and len(groups) > 1 and not code.mixes():
        numbers = [
            each for each in groups[1:] if any(is_number(code.inputs[name]) for name in each.names)
        ]
        same = [each for each in numbers if each.n == code.layout.n]
        group = (same or numbers or groups)[0]
    others = [name for each in groups for name in each.names if name not in group.names]
    notice = f"positions are those of {', '.join(group.names)}; not changed: {', '.join(others)}"
    return replace(code, changing=group, notices=code.notices + [notice] * bool(others))
