"""`inspect`: run attention code with other sizes too, name its axes, and find likely mistakes."""

from __future__ import annotations

import io
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from attnscope.base.errors import (
    AttnscopeError,
    Interrupted,
    OptionError,
    SourceError,
    check_kept,
    dtype_hint,
    is_a,
    safe_str,
    warn_unused,
)
from attnscope.base.options import Distribution, with_keywords
from attnscope.base.process import interrupt
from attnscope.base.process.files import shown_path
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled
from attnscope.code.load.load import load_target, title_of
from attnscope.code.trace.options import Arguments, Execution, KeptTensors, Scope
from attnscope.code.trace.trials import Trials, needs_values
from attnscope.observe.instrument.direct_calls import traceable
from attnscope.observe.trace import Condition, Exit, Source, Step, Trace

if TYPE_CHECKING:
    from attnscope.code.load.subject import Built, CodeSubject
    from attnscope.observe.axes.budget import RunBudget
    from attnscope.observe.axes.from_other_sizes import Inferred, SizedRun
    from attnscope.observe.diagnose.findings import Watcher
    from attnscope.observe.instrument.session import Session

QUICK = 1.0
"""Seconds. Code that took less is run with other sizes on the CPU, too, as far as these are small."""


@with_keywords
def inspect(
    target: Any,
    *args: Any,
    arguments: Arguments,
    scope: Scope,
    execution: Execution,
    values: KeptTensors,
    progress: Progress = silent,
    **kwargs: Any,
) -> Trace:
    """Run attention code, unchanged, and return every tensor that it names, with likely mistakes.

    The code runs again with other sizes, as far as it can. This names each axis; the code's requirements
    on sizes become `options["where"]`, and shapes that fit only by coincidence become findings.

    The target is either an existing module or function, called with `args` and `kwargs`: then lengths
    and batches vary, and its weights determine the widths. It stays exactly as it is: a copy that shares
    its weights runs. It keeps the device of `args`, their dtype, the current mode, and, without a seed,
    the current random state.

    Or the target is a class or function, itself or as `file.py:NAME` or `package.module:NAME`, whose
    arguments are constructed from `init`, `inputs` and `where`: then all sizes vary. These are texts
    `["n_head=5"]`, or by name, `{"n_head": 5}`. Each run gets a copy of any object among them; the
    numbers in a configuration are sizes.

    This is what the command `attnscope trace` does. `attnscope.trace(module, x)` is the same; without
    arguments, `attnscope.trace` records a call that happens anyway, and does not call the code itself.

    Args:
        target: the code to trace.
        args, kwargs: the arguments of a module or function. An argument with the name of an option
            of this function must be passed by position.
        progress: receives messages about slow stages.

    Returns:
        The trace. If the code failed, it has a `crash`; if the code ended the process, an `exit`. If it
        fails only when traced, the trace ends there, with a `tracing_error`.

    Raises:
        AttnscopeError: an argument cannot be parsed, is missing or superfluous; sizes disagree; the
            source is not available; or code outside the traced files fails.
        Interrupted: Ctrl-C, with the trace so far as its `trace`.

    >>> import torch, attnscope
    >>> mha = attnscope.MultiHeadAttention(d_feat=8, n_head=2)
    >>> x = torch.ones(3, 4, 8)
    >>> attnscope.inspect(mha, x, x, x)["scores"].dims
    ('n_batch', 'n_head', 'n_Q', 'n_K')
    """
    is_live = bool(args or kwargs)
    _check_options(execution, values)
    _check_kind(target, arguments, execution, values, is_live=is_live)
    from attnscope.base.process.budget import memory_budget
    from attnscope.base.process.devices import check_device, check_memory
    from attnscope.base.process.memory import check_imports

    check_imports()
    target, call, where = traceable(target), arguments.call, arguments.where or []
    title = target if isinstance(target, str) else title_of(target)
    device, train, memory = execution.device, execution.train, execution.memory
    with stage(progress, f"importing {title} …"):
        read: Callable[..., CodeSubject]
        if is_live:
            from attnscope.code.load.live_module import as_tensors, live_subject

            _check_keywords(target, kwargs, call)
            args, kwargs = as_tensors((args, kwargs), target)
            read = partial(live_subject, target, args, kwargs, values.axes or {}, where, call)
        else:
            from attnscope.code.load.subject import read_subject

            code, init, inputs = load_target(target), arguments.init or [], arguments.inputs or []
            dtype = execution.dtype or "float32"
            read = partial(read_subject, code, init, inputs, where, call, dtype, execution.draw)
        subject: CodeSubject = read()
        if device is not None or not is_live:
            check_device(device or "cpu")
        no_module = bool(train) and not subject.has_mode
        no_memory = memory is not None and not execution.search
        no_draw = execution.draw is not None and not subject.draws_numbers
        warn_unused(
            [
                (no_module, "train", "no nn.Module is called or passed in"),
                (no_memory, "memory", "the code is not run with other sizes"),
                (no_draw, "draw", "no input is drawn"),
            ]
        )
        if device != "meta" and not is_live:
            check_memory(
                subject.total_bytes(),
                device or "cpu",
                hint=f"{spelled(device='meta')}, which needs no memory",
            )
    n_bytes = None if memory is None else memory_budget(memory, "cpu")
    place = device if is_live else device or "cpu"
    execution = replace(execution, device=place, memory=n_bytes)
    trace = _trace(subject, read, title, scope, execution, values, progress)
    if trace.crash is None and trace.tracing_error is None:
        check_kept(values.keep, [step.name for step in trace.steps], title)
    return trace


def _check_options(execution: Execution, values: KeptTensors) -> None:
    """Check that options are valid and compatible, before anything runs."""
    from attnscope.base.dtypes import FLOATS
    from attnscope.base.process.devices import check_device_name, check_seed

    check_device_name(execution.device or "cpu")
    check_seed(execution.seed or 0)
    dtype = execution.dtype
    if dtype is not None and dtype not in FLOATS:
        raise OptionError(f"{dtype!r} is not a dtype.", hint=dtype_hint(dtype, FLOATS))
    option = "stats" if values.stats else "keep" if values.keep else None
    if option and execution.device == "meta":
        raise OptionError(
            f"{spelled(option)} needs values, and meta tensors have none.",
            hint=f"leave out {spelled(option)}, or choose {spelled(device='cpu')}",
        )


def _check_keywords(target: Any, kwargs: Mapping[str, Any], call: str | None) -> None:
    """Raise an OptionError for a keyword that neither `inspect` nor the code has."""
    from inspect import Parameter, signature

    from attnscope.base.text import nearest
    from attnscope.code.load.signatures import signature_of

    called = target if call is None else getattr(target, call, target)
    own = signature_of(getattr(called, "forward", called))
    if own is None or any(each.kind is Parameter.VAR_KEYWORD for each in own.parameters.values()):
        return
    options = [
        name for name in signature(inspect).parameters if name not in ("target", "args", "kwargs")
    ]
    title = title_of(target)
    for name in kwargs:
        if name not in own.parameters:
            near = nearest(name, [*own.parameters, *options])
            raise OptionError(
                f"there is no argument {name!r} of {title}, and no such option of inspect.",
                hint=f"{near}=…" if near else f"{title} takes {', '.join(own.parameters)}",
            )


def _check_kind(
    target: Any, arguments: Arguments, execution: Execution, values: KeptTensors, *, is_live: bool
) -> None:
    """Raise an OptionError if options for one kind of target are set for the other."""
    if is_live and isinstance(target, str | type):
        raise OptionError(
            f"{title_of(target)} is only a name or a class: its inputs are specifications, not tensors.",
            hint="inputs=[…]; or pass a module and its tensors",
        )
    kinds = "tensors, not specifications" if is_live else "specifications, not tensors"
    of_names = {"init": arguments.init, "inputs": arguments.inputs}
    for option, value in (of_names if is_live else {"axes": values.axes}).items():
        if value:
            raise OptionError(f"{option} does not apply: the call gets {kinds}.")
    if is_live and execution.dtype is not None:
        raise OptionError("dtype does not apply: the tensors of the call have one.")


# Running.


def _trace(
    subject: CodeSubject,
    read: Callable[..., CodeSubject],
    title: str,
    scope: Scope,
    execution: Execution,
    values: KeptTensors,
    progress: Progress,
) -> Trace:
    """Run a subject, and again with other sizes, and return its trace.

    `read` reads the subject again, with the names that the code has for axes of its inputs.
    """
    from attnscope.base.process.random_state import kept_global_random_state
    from attnscope.code.trace.program import status_of
    from attnscope.observe.axes.from_other_sizes import Inferred, conditions
    from attnscope.observe.axes.symbols import AxisOrigins, Symbols
    from attnscope.observe.instrument.session import Session
    from attnscope.observe.trace import fold_loops

    arguments = subject.arguments_state()
    with (
        kept_global_random_state(),
        Session(
            subject.callee.function,
            owner=subject.callee.owner,
            follow=scope.follow or (),
            parts=scope.subexpressions,
            uncompiled=True,
        ) as session,
    ):
        runs = _Runs(subject, session, scope, execution, values, progress)
        base, place, notices, seconds = runs.first(execution.device)
        if base.observed is not None and subject.proposed:
            subject = runs.subject = read(of_code=base.observed.names_of_inputs())
            base.observed.name_inputs(_words(subject))
        if execution.search and not is_a(base.error, KeyboardInterrupt):
            inferred, more = runs.search(base, place, seconds)
            notices += more
        else:
            inferred = Inferred(Symbols({}), [base], complete=False)
        notices += [*base.notices, *_compiler_notices(subject, session, title)]
    if is_a(base.error, Exception) and arguments is not None and arguments == subject.arguments_state():
        runs.untraced(base, execution.device if subject.is_live else place)
    if base.observed is not None:
        inferred.evidence = AxisOrigins(base.observed, inferred.symbols.sizes, subject.equations)
    inferred.name_axes()
    _keep_names(base.steps, subject)
    all_conditions = conditions(inferred)
    trace = Trace(
        title=title,
        sizes=_sizes_shown(subject, inferred),
        guessed=subject.guessed,
        options=_options(subject, all_conditions),
        device=place,
        dtype=subject.dtype or None,
        seed=execution.seed if subject.is_live else execution.seed or 0,
        steps=base.steps,
        conditions=all_conditions,
        findings=_findings(inferred, subject),
        saw_softmax=base.saw_softmax,
        notices=notices,
        source=base.sources,
        file=shown_path(session.file),
    )
    _explain_failure(trace, inferred, subject)
    located: list[Step | Source | Condition] = [*trace.steps, *(trace.source or []), *all_conditions]
    for each in located:
        each.file = shown_path(each.file) if each.file and each.file != session.file else None
    if not values.stats:  # statistics belong to one iteration of a loop
        trace.steps = fold_loops(trace.steps)
    if is_a(base.error, SystemExit):
        trace.exit = Exit(*status_of(base.error))
    if is_a(base.error, KeyboardInterrupt):
        raise Interrupted(trace) from base.error
    return trace


def _compiler_notices(subject: CodeSubject, session: Session, title: str) -> list[str]:
    """Return notices of what `torch.compile` compiles: the target, and functions that it called."""
    notices = []
    if subject.is_compiled:
        notices.append(f"{title} is compiled by torch.compile: its uncompiled Python code was traced")
    notices += [f"{name} is compiled by torch.compile: it was not traced" for name in session.untraced()]
    if session.compiles_flex_attention():
        notices.append("the cost of flex_attention's compiled kernel is not counted")
    if session.without_gradients:
        notices.append("run without gradients: on the CPU, flex_attention has none")
    return notices


def _explain_failure(trace: Trace, inferred: Inferred, subject: CodeSubject) -> None:
    """Set the crash of a trace, or the error of tracing itself."""
    from attnscope.base.tracebacks import describe
    from attnscope.observe.diagnose.crash import crash_of

    base = inferred.runs[0]
    if base.tracing_error is not None:
        trace.set_tracing_error(describe(base.tracing_error), code_runs=base.error is None)
    if base.failure is not None:
        trace.crash = crash_of(base.failure, inferred.dims_of, shown_path(base.failure.file))
    elif is_a(base.error, Exception):
        if is_a(base.error, TypeError):  # perhaps the call itself: an argument is missing
            _check_call(subject)
        raise SourceError(
            f"running {subject.loaded.name} raises {describe(base.error)}."
        ) from base.error


def _check_call(subject: CodeSubject) -> None:
    """Raise an OptionError if the code needs arguments that its call does not give."""
    from attnscope.code.load.signatures import check_arguments

    names = [each.name for each in subject.inputs if each.name is not None]
    check_arguments(
        subject.callee.title,
        subject.callee.signature,
        len(subject.inputs) - len(names),
        names,
        None,
        lambda missing: ", ".join(f"{each}=…" for each in missing),
    )


def _findings(inferred: Inferred, subject: CodeSubject) -> list[Any]:
    """Return all findings, sorted by line."""
    from attnscope.observe.axes.from_other_sizes import coincidences, regrouped_views
    from attnscope.observe.diagnose.findings import scale_findings

    widths = {each[-1] for each in subject.axes.values() if each and isinstance(each[-1], str)}
    views = regrouped_views(inferred)
    explained = {finding.line for finding in views}
    by_chance = coincidences(
        inferred, _axes(subject) - subject.proposed, widths, all_sizes_named=subject.all_sizes_named
    )
    findings = [finding for finding in by_chance if finding.line not in explained]
    findings += views + scale_findings(inferred) + inferred.runs[0].findings
    return sorted(findings, key=lambda finding: finding.line or 0)


@dataclass
class _Runs:
    """Runs a subject, and records its calls."""

    subject: CodeSubject
    session: Session
    scope: Scope
    execution: Execution  #: its memory in bytes
    values: KeptTensors
    progress: Progress

    def first(self, device: str | None) -> tuple[SizedRun, str, list[str], float]:
        """Run the subject with its own sizes; on the CPU if meta fails for lack of values.

        Return the run, its device, notices, and the seconds that it took.
        """
        notices: list[str] = []
        begun = time.monotonic()
        with stage(self.progress, f"running {self.subject.loaded.name} …"):
            base = self.run(device)
            if device == "meta" and needs_values(base):
                device = "cpu"
                notices.append(
                    "the code depends on values, which meta tensors do not have: it ran on the CPU"
                )
                base = self.run(device)
        place = device or base.device or "cpu"
        drew_nothing = self.execution.seed is not None and _drew_nothing(self.execution.seed, place)
        warn_unused([(drew_nothing, "seed", "no random values are drawn")])
        return base, place, notices, time.monotonic() - begun

    def search(self, base: SizedRun, device: str, seconds: float) -> tuple[Inferred, list[str]]:
        """Run the subject with other sizes, too, within a budget; return what they show, and notices."""
        from attnscope.observe.axes.budget import MemoryEstimate, budget_after
        from attnscope.observe.axes.from_other_sizes import infer
        from attnscope.observe.axes.requirements import fixed, required_by
        from attnscope.observe.axes.symbols import Symbols

        subject = self.subject
        # names in the order of both, with the sizes that are set
        original = {**subject.sizes, **subject.defaults, **subject.sizes}
        fixed_sizes = (fixed(name, n) for name, n in subject.fixed.items())
        estimate = MemoryEstimate(base.memory(), original)
        memory = self.execution.memory
        budget = budget_after(estimate.n_bytes, None if memory is None else int(memory))
        doing = f"running {subject.loaded.name} with other sizes"
        trials = Trials(
            self.run,
            estimate,
            budget,
            quick=device == "cpu" and (seconds < QUICK or base.used_native_kernels),
            report=lambda n_runs: self.progress(f"{doing}: {n_runs} …"),
        )
        with stage(self.progress, f"{doing} …"), interrupt.noted(budget.interrupt):
            inferred = infer(
                base,
                trials,
                original,
                axes=_axes(subject),
                defaults=set(subject.defaults) - subject.set_by_user,
                known=[*required_by(subject.equations, original), *fixed_sizes],
            )
        if budget.ended is not None:  # sizes that the code may accept were not tried
            not_known = [requirement for requirement, *_ in inferred.refusals]
            inferred.assumed = list(dict.fromkeys([*inferred.assumed, *not_known]))
            inferred.refusals = []
        constant = {name: (size,) * len(inferred.runs) for name, size in subject.quotients.items()}
        found = inferred.symbols
        inferred.symbols = Symbols({**found.sizes, **constant}, found.unsure, found.tied)
        notices = []
        if device == "meta" and trials.needs_values:
            notices.append("the code depends on values: runs with other sizes used the CPU, not meta")
        if subject.sizes:
            notices += _undecided(inferred, budget)
        return inferred, notices

    def run(self, device: str | None, sizes: Mapping[str, int] | None = None) -> SizedRun:
        """Build the subject and record one call of it; with other sizes, its output is dropped.

        FlexAttention on the CPU refuses tensors with gradients: then the call is recorded without them,
        and so are all others of the session.
        """
        import torch

        from attnscope.observe.axes.from_other_sizes import SizedRun
        from attnscope.observe.axes.from_source import ObservedAxes
        from attnscope.observe.diagnose.crash import failure_of
        from attnscope.observe.diagnose.findings import Watcher
        from attnscope.observe.torch_internals.compiler import without_compiler

        files = {site.file for site in self.session.sites}
        watcher = Watcher(files)
        values = {} if sizes else {"stats": self.values.stats, "keep": self.values.keep}
        observed = None
        if self.execution.search and not sizes:
            observed = ObservedAxes(_words(self.subject, without=self.subject.proposed))
        error: BaseException | None = None
        weights: list[tuple[tuple[int, ...], int]] = []
        with (
            without_compiler() if device == "meta" else nullcontext(),
            _without_output() if sizes else nullcontext(),
            torch.no_grad() if self.session.without_gradients else nullcontext(),
            self.session.recording(
                depth=self.scope.depth, watch=watcher, axes=observed, **values
            ) as recorder,
        ):
            try:
                weights = self._call(device, sizes, watcher).weights()
            except BaseException as caught:
                if is_a(caught, AttnscopeError) and not sizes:
                    raise
                error = caught
        refuses_gradients = is_a(error, NotImplementedError) and (
            "FlexAttention does not support backward" in safe_str(error)
        )
        if refuses_gradients and not self.session.without_gradients:
            self.session.without_gradients = True
            return self.run(device, sizes)
        return SizedRun(
            steps=recorder.steps,
            saw_softmax=watcher.saw_softmax,
            parts=recorder.parts,
            amounts=watcher.amounts,
            views=watcher.views,
            shifts=watcher.shifts,
            failure=failure_of(error, files, recorder.parts) if error is not None else None,
            error=error or (recorder.error if sizes else None),
            tracing_error=recorder.error,
            findings=watcher.findings,
            notices=list(dict.fromkeys([*recorder.notes, *watcher.notices])),
            sources=recorder.sources() if self.scope.source and not sizes else None,
            device=recorder.device,
            weights=weights,
            observed=observed,
        )

    def untraced(self, base: SizedRun, device: str | None) -> None:
        """Run a subject that has failed once more, untraced and with new inputs.

        If it runs, tracing is to blame; if it fails in another way, that is how the code fails.
        """
        from attnscope.base.process.random_state import kept_global_random_state
        from attnscope.observe.diagnose.crash import failure_of

        try:
            with kept_global_random_state(), _without_output():
                self._call(device)
        except Exception as error:
            if (type(error), safe_str(error)) != (type(base.error), safe_str(base.error)):
                files = {site.file for site in self.session.sites}
                base.error, base.failure = error, failure_of(error, files, base.parts)
        except SystemExit:
            return
        else:
            base.tracing_error, base.error, base.failure = base.error, None, None

    def _call(
        self,
        device: str | None,
        sizes: Mapping[str, int] | None = None,
        watcher: Watcher | None = None,
    ) -> Built:
        """Build the subject and call it; the watcher learns which inputs are drawn."""
        from attnscope.observe.torch_internals.unnoticed import unnoticed_device

        with interrupt.raised(), _exit_as_exception():
            built = self.subject.build(
                sizes, device=device, seed=self.execution.seed, train=self.execution.train
            )
            if watcher is not None:
                watcher.draws(built.drawn)
            with unnoticed_device(device) if device not in (None, "cpu") else nullcontext():
                built.callable(*built.args, **built.kwargs)
        return built


def _undecided(inferred: Inferred, budget: RunBudget) -> list[str]:
    """Return a notice of why axes may have no names, if there is a reason."""
    notice = budget.notice(is_complete=inferred.complete)
    if notice is None and not inferred.complete:
        reason = "no other sizes were found that this code runs with"
        if inferred.too_many:
            reason = (
                f"{len(inferred.symbols.sizes)} sizes have names, too many to find out what the code"
                " requires of each"
            )
        notice = f"few axes could be named: {reason}"
    return [] if notice is None else [notice]


@contextmanager
def _without_output() -> Iterator[None]:
    """Drop the output and the warnings of code, which may have deleted its stdout."""
    before = getattr(sys, "stdout", None)
    sys.stdout = io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout = before


@contextmanager
def _exit_as_exception() -> Iterator[None]:
    """Make `os._exit` raise SystemExit, so that the trace so far can be shown."""
    process, leave = os.getpid(), os._exit

    def exit(status: int) -> NoReturn:
        if os.getpid() != process:  # the code has forked, and this is the child
            leave(status)
        raise SystemExit(status)

    os._exit = exit
    try:
        yield
    finally:
        os._exit = leave


def _drew_nothing(seed: int, device: str) -> bool:
    """Check whether torch has drawn no random numbers on the CPU or meta since this seed was set."""
    import torch

    begun = torch.Generator().manual_seed(seed).get_state()
    return device in ("cpu", "meta") and torch.equal(torch.random.get_rng_state(), begun)


# Sizes and options of the trace.


def _axes(subject: CodeSubject) -> set[str]:
    """Return the names of the inputs' axes."""
    return {axis for axes in subject.axes.values() for axis in axes or () if isinstance(axis, str)}


def _words(subject: CodeSubject, *, without: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the names of the axes of each input; a placeholder for those without one."""
    from attnscope.observe.axes.from_source import NAMELESS

    return {
        name: [
            axis if isinstance(axis, str) and axis not in without else NAMELESS for axis in axes or ()
        ]
        for name, axes in subject.axes.items()
    }


def _keep_names(steps: list[Step], subject: CodeSubject) -> None:
    """Name the axes of inputs as the user does, where the runs have not named them."""
    for step in steps:
        axes = subject.axes.get(step.name) if (step.how, step.depth) == ("input", 0) else None
        if axes and step.dims and len(axes) == len(step.dims):
            step.dims = tuple(
                str(axis) if dim.isdigit() and axis not in subject.proposed else dim
                for axis, dim in zip(axes, step.dims, strict=True)
            )


def _sizes_shown(subject: CodeSubject, inferred: Inferred) -> dict[str, int]:
    """Return the sizes that the user named, and the defaults that name an axis."""
    dims = " ".join(axis for step in inferred.runs[0].steps for axis in step.dims or ())
    used = set(re.findall(r"[^\W\d]\w*", dims))
    sizes = {**subject.sizes, **subject.defaults}
    return {name: size for name, size in sizes.items() if name in subject.set_by_user or name in used}


def _options(subject: CodeSubject, conditions: list[Condition]) -> dict[str, Any]:
    """Return the equations between sizes, the user's and those that the code requires, and the draw."""
    equations = [each.text for each in subject.where]
    equations += [each.text for each in conditions if each.required]
    options: dict[str, Any] = {"where": equations} if equations else {}
    uniform = subject.distribution == Distribution.UNIFORM and subject.draws_numbers
    return options | ({"draw": "uniform"} if uniform else {})
