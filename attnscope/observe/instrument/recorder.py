"""The recorder of a rewritten function: records each tensor that is bound to a name."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from threading import get_ident
from types import FunctionType, NoneType
from typing import Any, Protocol, TypeGuard

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from attnscope.base.arrays import from_tensor
from attnscope.base.errors import class_attribute, class_name, first_line, is_a
from attnscope.base.text import shortened
from attnscope.document.stats import stats_of
from attnscope.observe.by_tensor import ByTensor
from attnscope.observe.instrument import direct_calls
from attnscope.observe.instrument.code_swap import OffsetRelay, Relay
from attnscope.observe.instrument.cost import NOTHING, Cost, cost_of, storage_of, storages_in
from attnscope.observe.instrument.opened import (
    OpenedCall,
    functions_for,
    has_autocast,
    is_open,
    why_closed,
    written,
)
from attnscope.observe.instrument.rewrite import Place, RecordingSite, Star, Target
from attnscope.observe.instrument.written_out import STEPS
from attnscope.observe.operator_names import FLEX, is_followed
from attnscope.observe.torch_internals.dispatch import (
    TENSOR,
    OpOverload,
    UncompiledMode,
    composite_kernel,
    flex_attention_kernel,
    has_values,
    is_dense,
    is_ordinary,
    is_traced_by_jit,
    sizes_of,
    unseen,
    without_other_modes,
    without_torch_function,
)
from attnscope.observe.torch_internals.whole_calls import OPERATORS, WholeCall, received
from attnscope.observe.trace import Source, Step

INSIDE = 2**40
"""The index of the first site of the steps inside torch's own attention."""


OWN_FILES = torch.nn.modules.__path__[0], direct_calls.__file__
"""The folder of torch's own modules, and what calls torch's functions."""


class Watch(Protocol):
    """The callbacks for operators and rows of a recording."""

    def operator(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Receive an ATen operator that has run."""

    def row(self, step: Step, tensor: torch.Tensor) -> None:
        """Receive a tensor that was bound to a name, with its row."""


class AxisListener(Watch, Protocol):
    """The callbacks for all that says where axes come from."""

    def enter(self, function: RecordingSite, caller: RecordingSite | None) -> None:
        """Begin a function, called in an expression of the caller."""

    def leave(self) -> None:
        """End a function."""

    def value(self, site: RecordingSite, value: Any) -> None:
        """Receive the value of an expression, before it is bound."""

    def stands_for(self, copy: torch.Tensor, tensor: torch.Tensor) -> None:
        """Learn that the axes of a tensor are those of another."""


@dataclass(frozen=True)
class Inside:
    """A call of torch's own attention: the function's name, and the expression that calls it."""

    name: str
    caller: RecordingSite


@dataclass(frozen=True)
class AttentionOutput:
    """The output of torch's own attention, of which no steps are recorded."""

    tensor: torch.Tensor
    about: str  #: what describes the call
    inside: Inside
    depth: int  #: the depth of a row of its own
    spent: Cost


@dataclass(frozen=True)
class RecordingOptions:
    """What a recording holds of calls and tensors."""

    stats: bool = False  #: whether to compute the statistics of each tensor
    #: the names whose tensors are kept with their steps, or True for all
    keep: bool | str | Collection[str] = False
    #: deeper calls get no rows; their cost is added to the row of the caller
    depth: int | None = None
    #: the modules that are followed, and functions of torch whose steps are
    follow: Sequence[str] = ()

    def keeps(self, name: str) -> bool:
        """Check whether tensors of a name are kept."""
        if isinstance(self.keep, str):
            return self.keep == name
        return self.keep is True or (bool(self.keep) and name in self.keep)  # type: ignore[operator]

    def shows(self, depth: int) -> bool:
        """Check whether calls at a depth get rows."""
        return self.depth is None or depth <= self.depth


class Recorder(UncompiledMode):
    """Records the first call of a target.

    Rewritten code calls `enter`, `leave`, `begin`, `end` and `part`; while the target runs, torch
    calls `__torch_dispatch__` for every operator. The operator's cost goes to the innermost
    expression that is being evaluated.
    """

    supports_higher_order_operators = True  # such as flex_attention

    def __init__(
        self,
        sites: Sequence[RecordingSite],
        file: str,
        line: int,
        *,
        watch: Watch | None = None,
        axes: AxisListener | None = None,
        finished: Callable[[], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.sites = sites  #: the places in the source that rewritten code names by their index
        self.target = (file, line)
        self.options = RecordingOptions(**options)  #: what to record of calls and tensors
        self.watch = watch  #: receives every operator and every row
        #: receives what says where axes come from; it is dropped if it fails, because names of axes can
        #: be missed
        self.axes = axes
        self.finished = finished  #: called when the target has returned or raised
        self.steps: list[Step] = []
        self.done = False
        self.error: Exception | None = None  # of attnscope itself; nothing is recorded after it
        self.device: str | None = None  # the device of the first tensor
        #: functions that ran, by file and first line
        self.functions: dict[tuple[str, int], RecordingSite] = {}
        self.parts: dict[Place, tuple[int, ...]] = {}  # the last shapes of subexpressions
        self.notes: list[str] = []  # what was not recorded, and why

        self._open: list[tuple[int, Cost]] = []  # the sites being evaluated, and their costs so far
        self._frames: list[int] = []  # the number of open expressions at the beginning of each call
        self._quiet = False  # while the recorder itself computes
        self._thread = get_ident()  # operators of other threads are not recorded
        self._calls = ExitStack()  # receives torch's own attention while the target runs
        self._runs_attention = False  # torch's own
        self._inside: Inside | None = None  # while the steps inside it are recorded
        self._functions: dict[str, FunctionType] = {}  # that compute these steps
        self._about: dict[int, str] = {}  # what describes such outputs, by id, while they get a name
        self._outputs: list[AttentionOutput] = []  # in expressions that have not ended
        self._storages: dict[int, tuple[StorageWeakRef, str]] = {}
        self._names = ByTensor[str]()

    # Called by rewritten code; ignored unless the target is running.

    def enter(self, site: int) -> None:
        """Begin a function call."""
        function = self._site(site)
        if self._quiet:
            return
        if not self._frames:
            if self.done or self.target != (function.file, function.line) or is_traced_by_jit():
                return
            self._thread = get_ident()
            self._calls.enter_context(received(self.own_attention))
            self.__enter__()
        elif get_ident() != self._thread:
            return
        if self._inside is None:
            self.functions.setdefault((function.file, function.line), function)
        self._learn("enter", function, self._expression())
        self._frames.append(len(self._open))

    def leave(self) -> None:
        """End a function call that returned or raised."""
        if self._is_outside_target():
            return
        spent = self._close(self._frames.pop())
        self._learn("leave")
        if self._frames:
            self._spend(spent)
            return
        self.__exit__(None, None, None)
        self._calls.close()
        self.done = True
        if self.finished is not None:
            self.finished()

    def begin(self, site: int) -> int:
        """Begin the evaluation of an expression.

        Returns:
            A mark for `end`, which also closes expressions opened since and never closed (because they
            raised an exception that was caught).
        """
        if self._is_idle():
            return 0
        self._open.append((site, Cost()))
        return len(self._open) - 1

    def end(self, site: int, mark: int | None, value: Any) -> Any:
        """End the evaluation of an expression whose value is about to be bound.

        Args:
            mark: from `begin`; None closes the last expression of this site.

        Returns:
            The value; converted to a tuple if it is unpacked and is neither a tuple nor a list, so that
            the objects recorded are the ones that get bound.
        """
        if self._is_idle():
            return value
        if mark is None:
            mark = max(i for i, (opened, _) in enumerate(self._open) if opened == site)
        spent = self._close(mark)
        binding = self._site(site)
        if len(binding.targets) == 1 and isinstance(binding.targets[0], tuple):
            value = _unpacked(binding.targets[0], value)
        try:
            with without_torch_function():  # reading tensors must not run the user's code
                self._learn("value", binding, value)
                spent = self._record_all(binding, value, spent + self._record_outputs(value))
        except Exception as error:
            self.error = error
        self._spend(spent)
        return value

    def bound(self, site: int, value: Any) -> Any:
        """Record an awaited value that is about to be bound; its cost is unknown."""
        return self.end(site, self.begin(site), value)

    def part(self, site: int, value: Any) -> Any:
        """Record the shape of a subexpression."""
        if _is_tensor(value) and not self._is_idle():
            self._note_shape(self._site(site), value)
        if self.axes is not None and not self._is_idle():
            with without_torch_function():
                self._learn("value", self._site(site), value)
        return value

    def _learn(self, event: str, *details: Any) -> None:
        """Tell the listener about axes, if there is one; drop it if it fails."""
        if self.axes is None:
            return
        try:
            getattr(self.axes, event)(*details)
        except Exception:
            self.axes = None

    def _site(self, number: int) -> RecordingSite:
        return self.sites[number] if number < INSIDE else written().sites[number - INSIDE]

    def _expression(self) -> RecordingSite | None:
        """Return the expression of the current function that is being evaluated, if any."""
        is_open = bool(self._frames) and len(self._open) > self._frames[-1]
        return self._site(self._open[-1][0]) if is_open else None

    def _is_idle(self) -> bool:
        """Check whether recording is paused; `torch.jit.trace` would trace the recording, too."""
        return self._is_outside_target() or self.error is not None or is_traced_by_jit()

    def _is_outside_target(self) -> bool:
        """Check whether the current call does not belong to the target."""
        return not self._frames or self._quiet or get_ident() != self._thread

    def _close(self, mark: int) -> Cost:
        """Close the expressions opened since a mark, and return their total cost."""
        closed = self._open[mark:]
        del self._open[mark:]
        return closed[0][1] if len(closed) == 1 else sum((cost for _, cost in closed), Cost())

    def _spend(self, spent: Cost) -> None:
        """Add a cost to the innermost expression being evaluated."""
        if self._open:
            site, so_far = self._open[-1]
            self._open[-1] = site, so_far + spent

    def _measured(self, run: Callable[[], Any]) -> tuple[Any, Cost]:
        """Run a part of an expression; return its result, and its cost, which is not added yet."""
        self._open.append((self._open[-1][0], Cost()))
        mark = len(self._open) - 1
        try:
            out = run()
        except BaseException:
            self._spend(self._close(mark))
            raise
        return out, self._close(mark)

    # Called by torch.

    def own_attention(self, call: WholeCall) -> Any:
        """Run a call of torch's own attention, and record the steps inside it."""
        caller = self._expression() if not self._is_idle() else None
        if caller is None or self._runs_attention or self._inside is not None:
            return call.run()
        is_shown = self.options.shows(len(self._frames))
        if not is_open(call):
            self.notes += [_not_shown(call.name, why_closed(call))] if is_shown else []
            return call.run()
        is_target = caller.file == direct_calls.__file__
        has_steps = is_shown and (is_target or is_followed(call.name, self.options.follow))
        # The steps are computed with shapes alone unless values are needed; and what autocast makes of
        # dtypes, only values show.
        has_values = self.options.stats or any(map(self.options.keeps, STEPS)) or has_autocast(call)
        opened = OpenedCall(call, has_steps and has_values)
        self._runs_attention = True
        try:
            out, spent = self._measured(opened.run)
        finally:
            self._runs_attention = False
        self._inside = inside = Inside(call.name, caller)
        try:
            with without_torch_function():
                if has_steps or opened.is_seen_whole:
                    spent = self._record_steps(opened, out, spent, is_shown=has_steps)
        except Exception as error:
            self.error = error
        finally:
            self._inside = None
        if has_steps or not is_shown:
            self._spend(spent)
        else:
            tensor, about = opened.outputs(out)[0], opened.in_words()
            self._outputs.append(AttentionOutput(tensor, about, inside, len(self._frames), spent))
        return out

    def _record_outputs(self, value: Any) -> Cost:
        """Record the outputs of torch's own attention that get no name; describe the one that does.

        Returns:
            The cost of that one.
        """
        outputs, self._outputs, self._about = self._outputs, [], {}
        spent = NOTHING
        for each in outputs:
            if any(tensor is each.tensor for _, tensor in _leaves(value, depth=1)):
                self._about[id(each.tensor)] = each.about
                spent += each.spent
                continue
            site = replace(each.inside.caller, targets=("out",))
            how = f"{each.inside.name} of {each.about}"
            self._record("out", each.tensor, site, how, each.spent, each.depth)
            self.steps[-1].inside = each.inside.name
        return spent

    def _record_steps(self, opened: OpenedCall, out: Any, spent: Cost, *, is_shown: bool) -> Cost:
        """Record the steps inside a call, and return the cost that no row has got.

        Steps that are not shown are for the watch, which has not seen the operators of the call.
        """
        returned, n_steps, watch = opened.outputs(out), len(self.steps), self.watch
        self.watch = watch if opened.is_seen_whole else None
        try:
            with without_other_modes(transforms=opened.call.name == FLEX), self:
                for tensor in opened.tensors():
                    copy = opened.copy(tensor)
                    if self._names.get(copy) is None:
                        self._names[copy] = ""
                    self._learn("stands_for", copy, tensor)
                if not self._functions:
                    relay = Relay()
                    relay.attach(OffsetRelay(self, INSIDE))  # type: ignore[arg-type]
                    self._functions = functions_for(relay)
                computed, _ = self._measured(lambda: opened.compute(self._functions))
                for one, other in zip(computed, returned, strict=False):
                    opened.check(one, other)
                    self._learn("stands_for", other, one)
        except Exception as error:
            del self.steps[n_steps:]
            self.notes += [_not_shown(opened.call.name, first_line(error))] if is_shown else []
            return spent
        finally:
            self.watch = watch
        if not is_shown:
            del self.steps[n_steps:]
            return spent
        if opened.ends_with_attention:
            self._end_steps(returned[0], out)
        return Cost(0, spent.fresh_bytes)

    def _end_steps(self, returned: torch.Tensor, out: Any) -> None:
        """Let the last step be the tensor that torch's function has returned."""
        last, first = self.steps[-1], out[0] if _is_row(out) else out
        last.is_computed_beside = False
        last.view_of = last.same_as = None
        self._names[first] = last.name
        if (memory := storage_of(first)) is not None:
            storage = StorageWeakRef(memory)
            self._storages[storage.cdata] = storage, last.name
        self._read(returned, last)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._quiet or self.error is not None or is_traced_by_jit():
            return func(*args, **kwargs)
        if not isinstance(func, OpOverload):  # of functions, such as FlexAttention
            if str(func) != FLEX:
                return func(*args, **kwargs)
            flex = partial(self._flex, func, args, kwargs)
            return self.own_attention(WholeCall(FLEX, args, kwargs, flex))
        run = partial(self._operator, func, types, args, kwargs)
        composite = composite_kernel(func)
        if composite is not None and not _has_tensor((args, kwargs), lambda each: not is_dense(each)):
            run = partial(self._decomposed, composite, args, kwargs)
        name = OPERATORS.get(func)
        return run() if name is None else self.own_attention(WholeCall(name, args, kwargs, run))

    def _decomposed(self, kernel: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """Run a kernel, and receive the operators that it consists of."""
        with self:
            return kernel(*args, **kwargs)

    def _operator(self, func: OpOverload, types: Any, args: tuple, kwargs: dict) -> Any:
        """Run a single operator, and add its cost."""
        if self.options.keep and func._schema.is_mutable:
            self._copy_overwritten(func, args, kwargs)
        out = func(*args, **kwargs)
        may_lack = types or type(out) is not torch.Tensor or out.is_nested
        if may_lack and _has_tensor((args, kwargs, out), _lacks_sizes):
            return out
        self._quiet = True
        try:
            spent = cost_of(func, args, kwargs, out)
            if spent is not NOTHING:
                self._spend(spent)
            self._learn("operator", func, args, kwargs, out)
            if self.watch is not None:
                self.watch.operator(func, args, kwargs, out)
        except Exception as error:
            if not _has_own_class((args, kwargs, out)):
                self.error = error
        finally:
            self._quiet = False
        return out

    def _flex(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run FlexAttention so that the cost of its operators is counted."""
        kernel = flex_attention_kernel(func)
        if kernel is None or _has_tensor((args, kwargs), lambda each: not is_dense(each)):
            return func(*args, **kwargs)
        watch, axes, self.watch, self.axes = self.watch, self.axes, None, None
        try:
            return self._decomposed(kernel, args, kwargs)
        finally:
            self.watch, self.axes = watch, axes

    # The recorded data.

    def sources(self) -> list[Source]:
        """Return the source of every function that ran in the target."""
        sources = []
        for function in self.functions.values():
            lines = linecache.getlines(function.file)[function.line - 1 : function.place[2]]
            file = None if function.file == self.target[0] else function.file
            sources.append(Source(function.how, function.line, "".join(lines).rstrip(), file))
        return sources

    def _record_all(self, site: RecordingSite, value: Any, spent: Cost) -> Cost:
        """Record the tensors that a site binds to names, and return the cost that no row has got."""
        if _is_tensor(value):
            self._note_shape(site, value)
        depth = len(self._frames) - 1
        if not self.options.shows(depth):
            return spent
        for target in site.targets:
            is_passed_out = isinstance(target, str) and PASSED_OUT.fullmatch(target) is not None
            has_keys = isinstance(target, str) and issubclass(type(value), dict)
            is_one_row = (is_passed_out or has_keys) and self._inside is None
            members = self._members(value) if is_one_row else []
            value = _as_dict(value) if is_passed_out else value
            known = {id(tensor) for _, tensor, _ in members}
            # The cost of a tuple is not that of one of its elements.
            elements = site.elements if spent == NOTHING else ()
            for name, tensor, element in _bindings(target, value):
                is_step = self._inside is None or (name in STEPS and site.how != "input")
                if is_step and sizes_of(tensor) is not None and id(tensor) not in known:
                    how = elements[element] if element < len(elements) else site.how
                    about = self._about.pop(id(tensor), None)
                    how = how if about is None else f"{how}: {about}"
                    self._record(name, tensor, site, how, spent, depth)
                    spent = NOTHING  # charge it once, to the first of several names
            if members:
                dtypes = {_name_of(TENSOR.dtype.__get__(tensor)) for _, tensor, _ in members}
                step = self._step(str(target), site, site.how, spent, depth)
                step.dtype = dtypes.pop() if len(dtypes) == 1 else ""
                step.members = {label: earlier for label, _, earlier in members}
                self.steps.append(step)
                spent = NOTHING
        return spent

    def _members(self, value: Any) -> list[tuple[str, torch.Tensor, str]]:
        """Return the tensors of a collection that have steps, with their labels and earlier names.

        Nothing is returned for fewer than two.
        """
        leaves = _leaves(value) if not _is_tensor(value) else ()
        known = [(label, tensor, self._names.get(tensor)) for label, tensor in leaves]
        members = [(label, tensor, name) for label, tensor, name in known if name is not None]
        return members if len(members) > 1 else []

    def _step(self, name: str, site: RecordingSite, how: str, spent: Cost, depth: int) -> Step:
        """Return a step with all that its place in the code says."""
        file = None if site.file == self.target[0] else site.file
        return Step(
            *(name, None, (), "", how, 0, spent.flops),
            fresh_bytes=spent.fresh_bytes,
            line=site.line,
            file=file,
            depth=depth,
        )

    def _note_shape(self, site: RecordingSite, value: torch.Tensor) -> None:
        shape = sizes_of(value)
        if shape is not None:
            self.parts[site.place] = shape

    def _record(
        self,
        name: str,
        tensor: torch.Tensor,
        site: RecordingSite,
        how: str,
        spent: Cost,
        depth: int,
    ) -> None:
        self.device = self.device or str(TENSOR.device.__get__(tensor))
        same_as, view_of = self._identity(name, tensor)
        if self._only_passes(name, tensor, site, same_as):
            return
        inside = self._inside
        step = self._step(name, site if inside is None else inside.caller, how, spent, depth)
        step.shape = shape_of(tensor)
        step.dtype = _name_of(TENSOR.dtype.__get__(tensor))
        step.bytes = TENSOR.numel(tensor) * TENSOR.element_size(tensor)
        step.view_of, step.same_as = view_of, same_as
        strided = storage_of(tensor) is not None and not TENSOR.is_nested.__get__(tensor)
        step.contiguous = strided and TENSOR.is_contiguous(tensor)
        step.strides = tuple(TENSOR.stride(tensor)) if strided and not step.contiguous else None
        if inside is not None:
            step.inside, step.is_computed_beside, step.fresh_bytes = inside.name, True, 0
        self.steps.append(step)
        self._learn("row", step, tensor)
        is_new = same_as is None and view_of is None
        self._read(tensor, step, is_new=is_new or not TENSOR.is_floating_point(tensor))

    def _only_passes(
        self, name: str, tensor: torch.Tensor, site: RecordingSite, same_as: str | None
    ) -> bool:
        """Check whether a line of a module of torch's, or a stage inside, only passes a tensor on."""
        if self._inside is not None:
            return same_as is not None  # its argument
        is_torchs = site.file == self.target[0] and site.file.startswith(OWN_FILES)
        is_argument = site.how == "input" and len(self._frames) == 1
        is_same = same_as is not None and not is_argument and not PASSED_OUT.fullmatch(name)
        return is_torchs and (is_same or issubclass(type(tensor), torch.nn.Parameter))

    def _read(self, tensor: torch.Tensor, step: Step, *, is_new: bool = True) -> None:
        """Compute the statistics of a tensor, keep it, and show it to the watch, as far as wanted.

        Args:
            is_new: whether the watch may not have seen its values; those of indices are looked at again.
        """
        stats, keep = self.options.stats, self.options.keep
        if not (stats or keep or (self.watch is not None and is_new)) or not is_ordinary(tensor):
            return
        self._quiet = True
        try:
            with unseen():
                is_plain = type(tensor) is torch.Tensor
                plain = tensor if is_plain else TENSOR.as_subclass(tensor, torch.Tensor)
                if stats and _has_numbers(plain):
                    step.stats = stats_of(*from_tensor(plain.detach().clone()))
                if self.options.keeps(step.name):
                    step.tensor = plain.detach()
                if self.watch is not None:
                    self.watch.row(step, tensor)
        except Exception:
            if not _has_own_class(tensor):
                raise
        finally:
            self._quiet = False

    def _identity(self, name: str, tensor: torch.Tensor) -> tuple[str | None, str | None]:
        """Return the earlier name of the same tensor, or else the name that owns its memory.

        Only weak references are held, so tracing does not extend the life of tensors. (A weak
        reference to a storage prevents its address from being reused.)
        """
        known = self._names.get(tensor)
        if known is not None:
            return known, None
        self._names[tensor] = name
        memory = storage_of(tensor)
        if memory is None:
            return None, None
        storage = StorageWeakRef(memory)
        owner, owned_by = self._storages.setdefault(storage.cdata, (storage, name))
        return None, None if owner is storage else owned_by

    def _copy_overwritten(self, func: Any, args: tuple, kwargs: dict) -> None:
        """Copy the kept tensors that an operator is about to overwrite."""
        kept = [step for step in self.steps if step.tensor is not None]
        if not kept:
            return
        arguments = func._schema.arguments
        by_name = {**dict(zip((a.name for a in arguments), args, strict=False)), **kwargs}
        overwritten = [by_name.get(a.name) for a in arguments if a.alias_info and a.alias_info.is_write]
        written = {storage._cdata for storage in storages_in(overwritten)}
        self._quiet = True
        try:
            for step in kept:
                if written.intersection(s._cdata for s in storages_in(step.tensor)):
                    try:
                        step.tensor = step.tensor.clone()
                    except Exception:
                        if not _has_own_class(step.tensor):
                            raise
                        step.tensor = None
        finally:
            self._quiet = False


def _has_own_class(tree: Any) -> bool:
    """Check whether nested lists, tuples and dicts contain a tensor of a class of the user's.

    Reading such a tensor runs the code of the class, which may raise; then less is recorded, and the
    traced code continues.
    """
    return _has_tensor(tree, lambda tensor: type(tensor) not in (torch.Tensor, torch.nn.Parameter))


def _has_tensor(tree: Any, condition: Callable[[torch.Tensor], bool]) -> bool:
    """Check whether nested lists, tuples and dicts contain a tensor that meets a condition."""
    if _is_tensor(tree):
        return condition(tree)
    if is_a(tree, dict):
        return any(_has_tensor(each, condition) for each in dict.values(tree))
    return _is_row(tree) and any(_has_tensor(each, condition) for each in _elements(tree))


def _has_numbers(tensor: torch.Tensor) -> bool:
    """Check whether a tensor has values that can be read as real numbers in numpy."""
    known = tensor.dtype.itemsize > 1 or tensor.dtype in (torch.bool, torch.int8, torch.uint8)
    return known and not tensor.is_complex() and not tensor.is_neg() and has_values(tensor)


def _lacks_sizes(tensor: torch.Tensor) -> bool:
    """Check whether a tensor is nested or has symbolic sizes."""
    return TENSOR.is_nested.__get__(tensor) or sizes_of(tensor) is None


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's shape; () if its sizes are symbols."""
    return sizes_of(tensor) or ()


def _is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    """Check whether an object is a tensor; `isinstance` could run the user's `__class__` property."""
    return issubclass(type(value), torch.Tensor)


def _is_row(value: Any) -> TypeGuard[tuple | list]:
    """Check whether an object is a tuple or a list."""
    return issubclass(type(value), tuple | list)


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _unpacked(target: tuple[Target, ...], value: Any) -> Any:
    """Convert a value to a tuple before it is unpacked, if iterating again would yield new objects."""
    if _is_row(value) or str(class_attribute(value, "__module__")).startswith("torch.fx"):
        return value
    if class_attribute(value, "__iter__") is None and class_attribute(value, "__getitem__") is None:
        return value  # Python raises its own error
    starred = any(isinstance(part, Star) for part in target)
    return tuple(value) if starred else tuple(islice(value, len(target) + 1))


def _not_shown(name: str, reason: str) -> str:
    return f"the steps inside {name} are not shown: {reason}"


PASSED_OUT = re.compile(r"(return|yield)(\[\d+\])?")
"""The names of what a function returns or yields."""


def _as_dict(value: Any) -> Any:
    """Return the fields of an instance of a dataclass; any other value unchanged."""
    fields = class_attribute(value, "__dataclass_fields__")
    if fields is None or issubclass(type(value), type | dict):
        return value
    try:
        stored = object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has slots
        return value
    return {name: field for name, field in stored.items() if name in fields}


def _leaves(value: Any, label: str = "", depth: int = 4) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested dicts, tuples, lists and dataclasses, with labels like `cache.0`."""
    value = _as_dict(value)
    if _is_tensor(value):
        yield label, value
        return
    items: list[tuple[str, Any]] = []
    if _is_row(value):
        items = [(str(i), each) for i, each in enumerate(_elements(value))]
    elif issubclass(type(value), dict):
        items = [(key if type(key) is str else _label(key), each) for key, each in dict.items(value)]
    for key, each in items if depth else ():
        yield from _leaves(each, f"{label}.{key}" if label else key, depth - 1)


ALONE = 2**31
"""The index of a value that is not an element of another."""


def _bindings(target: Target, value: Any) -> Iterator[tuple[str, torch.Tensor, int]]:
    """Yield the names that get a tensor when `value` is bound to `target`, with the index in `value`."""
    if isinstance(target, str):
        if _is_tensor(value):
            yield target, value, ALONE
        elif _is_row(value):
            for i, element in enumerate(_elements(value)):
                if _is_tensor(element):
                    yield f"{target}[{i}]", element, i
        elif issubclass(type(value), dict):
            for i, (key, element) in enumerate(dict.items(value)):
                if _is_tensor(element):
                    yield f"{target}[{_label(key)}]", element, i
    elif isinstance(target, tuple) and _is_row(value):
        values = _elements(value)
        extra = len(values) - len(target)
        starred = any(isinstance(part, Star) for part in target)
        if extra < -starred or (extra and not starred):
            return  # Python is about to raise an error
        for i, part in enumerate(target):
            if isinstance(part, Star):
                yield from _without_index(_bindings(part.name, values[i : i + extra + 1]))
                values[i : i + extra + 1] = [None]
            elif isinstance(part, str) and _is_tensor(values[i]) and not starred:
                yield part, values[i], i
            else:
                yield from _without_index(_bindings(part, values[i]))


_PLAIN = (str, bytes, bool, int, float, NoneType)


def _label(key: Any) -> str:
    """Return a key's label: its shortened repr, or its class name if `__repr__` is user code."""
    parts = key if type(key) is tuple else (key,)
    if any(type(part) not in _PLAIN for part in parts):
        return class_name(key)
    try:
        return shortened(repr(key))
    except ValueError:  # Python refuses to print numbers of more than 4300 digits
        return class_name(key)


def _elements(value: tuple | list) -> list[Any]:
    """Return the stored elements, bypassing overrides in a class of the user's."""
    elements: Any = tuple if issubclass(type(value), tuple) else list
    return [*elements.__iter__(value)]


def _without_index(
    bindings: Iterator[tuple[str, torch.Tensor, int]],
) -> Iterator[tuple[str, torch.Tensor, int]]:
    return ((name, tensor, ALONE) for name, tensor, _ in bindings)
