"""`inspect`: run attention code with other sizes too, name its axes, and look for what is wrong."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from attnscope.errors import (
    AttnscopeError,
    Interrupted,
    OptionError,
    SourceError,
    is_a,
    safe_str,
    warn_idle,
)
from attnscope.files import shown_path
from attnscope.process import interrupt
from attnscope.process.progress import Progress, silent, stage
from attnscope.results.trace import Exit, Source, Step, Trace

if TYPE_CHECKING:
    from attnscope.tracing.axes.inference import Inferred, Run
    from attnscope.tracing.instrument.session import Session
    from attnscope.tracing.target.subject import Subject

QUICK = 1.0
"""Seconds. Code that took less is run on the CPU with other sizes too, where these are small."""

MOST_BYTES = 2**30
"""Inputs of other sizes that are larger are not run on the CPU."""

FEW_ELEMENTS, FEW_BYTES = 2**24, 4 * 2**20
"""Sizes whose largest three have no larger product, and inputs of no more bytes, are small."""

Texts = Sequence[str] | Mapping[str, Any]
"""Specifications as `NAME=VALUE`, or by name."""


@dataclass(frozen=True)
class Recorded:
    """What is recorded of each run, and how it runs.

    Attributes:
        depth: calls deeper than this have no steps of their own.
        stats: whether each step gets the six numbers of its values.
        keep: names whose tensors are kept, or True for all.
        source: whether the trace gets the functions that ran.
        seed: what is drawn with; None where the user says none.
        train: whether modules are in training mode; None where the user says nothing.
    """

    depth: int | None = None
    stats: bool = False
    keep: bool | Collection[str] = False
    source: bool = False
    seed: int | None = None
    train: bool | None = None


def inspect(
    target: Any,
    *args: Any,
    axes: Mapping[str, str | Sequence[str]] | None = None,
    init: Texts | None = None,
    inputs: Texts | None = None,
    where: Sequence[str] | None = None,
    call: str | None = None,
    follow: Sequence[str] | None = None,
    depth: int | None = None,
    subexpressions: bool = False,
    dtype: str | None = None,
    device: str | None = None,
    seed: int | None = None,
    train: bool | None = None,
    stats: bool = False,
    keep: bool | Collection[str] = False,
    source: bool = False,
    progress: Progress = silent,
    **kwargs: Any,
) -> Trace:
    """Run attention code, unchanged, and return every tensor that it names, with what looks wrong.

    The code runs again with other sizes, as far as it can: so each axis gets its name, what the code
    asks of sizes becomes `options["where"]`, and what fits by coincidence becomes a finding.

    The target is either a module or function that exists, called with `args` and `kwargs`: then
    lengths and batches vary, and widths are those of its weights. It stays exactly as it is: a copy
    that shares its weights runs. Or it is a class or function, itself or as `file.py:NAME` or
    `package.module:NAME`, whose arguments are made as `init`, `inputs` and `where` say: then all sizes
    vary. This is what `attnscope trace` does.

    Args:
        target: what is traced.
        args, kwargs: what a module or function is called with. An argument that is called like an
            option here has to be given by its place.
        axes: the names of the axes of `args` and `kwargs`, by the parameter's name:
            `{"q": "B L D"}`. Others get the usual names.
        init: arguments of the class: `["n_head=5"]`, or `{"n_head": 5}`.
        inputs: arguments of the call: `["Q=n_batch:128,n_Q:32,d_feat"]`, or `{"Q": "n_batch:128,…"}`.
        where: what is true of sizes: `["d_head=d_feat/n_head"]`.
        call: the method that is traced; None: `forward`.
        follow: modules whose lines are recorded too, by name.
        depth: calls deeper than this have no steps of their own.
        subexpressions: whether tensors in the middle of expressions get steps too, named `…`.
        dtype: of what `init` and `inputs` make: float64, float32 (None), float16 or bfloat16.
        device: where it runs, or `meta`: shapes without values. None: the CPU, or where `args` are.
        seed: what random values are drawn with. None: 0, or with `args` the random state as it is.
        train: whether a module is in training mode. None: it is not, or with `args` as it is.
        stats: whether each step gets the six numbers of its values.
        keep: names whose tensors are kept with their steps, or True for all; of a loop's turns, the
            last one's.
        source: whether the trace has the functions that ran.
        progress: is told what takes a while.

    Returns:
        The trace. Where the code failed, it has a `crash`; where the code left Python, an `exit`.

    Raises:
        AttnscopeError: an argument cannot be read, is missing or too much; sizes disagree; the source
            is not to be had; or what is no part of the traced code fails.
        Interrupted: Ctrl-C, with what was traced until then as its `trace`.

    >>> import torch, attnscope
    >>> mha = attnscope.MultiHeadAttention(d_feat=8, n_head=2)
    >>> x = torch.ones(3, 4, 8)
    >>> attnscope.inspect(mha, x, x, x)["scores"].dims
    ('n_batch', '2', 'n_Q', 'n_K')
    """
    is_live = bool(args or kwargs)
    _check_options(device, seed, dtype, {"stats": stats, "keep": bool(keep)})
    _check_kind(target, is_live, {"init": init, "inputs": inputs}, {"axes": axes}, dtype)
    from attnscope.process.devices import check_device, check_memory
    from attnscope.process.memory import check_imports

    check_imports()
    title = target if isinstance(target, str) else _title(target)
    with stage(progress, f"importing {title} …"):
        if is_live:
            from attnscope.tracing.target.live_module import live_subject

            what: Subject = live_subject(target, args, kwargs, axes or {}, where or [], call)
        else:
            from attnscope.tracing.target.subject import subject

            what = subject(
                _loaded(target),
                _texts(init),
                _texts(inputs),
                list(where or []),
                call,
                dtype or "float32",
            )
        if device is not None or not is_live:
            check_device(device or "cpu")
        no_module = bool(train) and not what.has_mode
        warn_idle([(no_module, "--train", "no nn.Module is called or passed in")])
        if device != "meta" and not is_live:
            check_memory(what.total_bytes(), device or "cpu", hint="--device meta, which needs none")
    recorded = Recorded(depth, stats, keep, source, seed, train)
    from attnscope.process.random_state import kept_global_random_state

    with stage(progress, f"running {title} …"), kept_global_random_state():
        place = device if is_live else device or "cpu"
        return _traced(what, title, recorded, place, follow or (), subexpressions)


def _check_options(
    device: str | None, seed: int | None, dtype: str | None, values: Mapping[str, bool]
) -> None:
    """Raise an AttnscopeError for what cannot be done, before anything is."""
    from attnscope.contracts import DTYPES
    from attnscope.process.devices import check_device_name, check_seed

    check_device_name(device or "cpu")
    check_seed(seed or 0)
    if dtype is not None and dtype not in DTYPES:
        raise OptionError(f"{dtype!r} is not a dtype.", hint=f"--dtype {', '.join(DTYPES)}")
    wanted = [option for option, given in values.items() if given]
    if wanted and device == "meta":
        raise OptionError(
            f"--{wanted[0]} needs values, and meta has none.",
            hint=f"leave out --{wanted[0]}, or choose --device cpu",
        )


def _check_kind(
    target: Any,
    is_live: bool,
    of_specifications: Mapping[str, Any],
    of_tensors: Mapping[str, Any],
    dtype: str | None,
) -> None:
    """Raise an OptionError where options for one kind of target are given for another."""
    if is_live and isinstance(target, str | type):
        raise OptionError(
            f"{_title(target)} is not there yet: its arguments are specifications, and no tensors.",
            hint="inputs=[…], or a module and tensors",
        )
    others = of_specifications if is_live else of_tensors
    wrong = [option for option, value in others.items() if value]
    if wrong:
        kind = "what the call gets is there" if is_live else "there are no tensors"
        raise OptionError(f"{wrong[0]} has no meaning: {kind}.")
    if is_live and dtype is not None:
        raise OptionError("dtype has no meaning: the tensors of the call have one.")


def _title(target: Any) -> str:
    if isinstance(target, str):
        return target
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _loaded(target: Any) -> Any:
    """What the user names, or gives."""
    from attnscope.tracing.target.load import Loaded, load

    if isinstance(target, str):
        return load(target)
    name = _title(target).rpartition(".")[2]
    module = sys.modules[getattr(target, "__module__", None) or type(target).__module__]
    return Loaded(target, name, module)


def _texts(given: Texts | None) -> list[str]:
    """Specifications as the command line takes them."""
    if not isinstance(given, Mapping):
        return list(given or [])
    return [
        f"{name}={value if isinstance(value, str) else repr(value)}" for name, value in given.items()
    ]


# Running.


def _traced(
    what: Subject,
    title: str,
    recorded: Recorded,
    device: str | None,
    follow: Sequence[str],
    subexpressions: bool,
) -> Trace:
    """Run a subject, and then again with other sizes; what is known of it afterwards."""
    from attnscope.tracing.diagnose.crash import crash_of
    from attnscope.tracing.instrument.loops import folded
    from attnscope.tracing.instrument.session import Session
    from attnscope.tracing.program import status_of
    from attnscope.tracing.target.load import described

    with Session(what.function(), follow=follow, parts=subexpressions) as session:
        inferred, place, notices, ending = _run_all(what, session, recorded, device)
        untraced = session.untraced()
    base = inferred.runs[0]
    inferred.name_axes()
    notices += [f"{each} is compiled by torch.compile: it ran untraced" for each in untraced]
    interrupted = is_a(ending, KeyboardInterrupt)
    if not inferred.complete and not session.compiled and what.sizes and not interrupted:
        notices.append(
            f"undecided what the axes are: {len(inferred.symbols.sizes)} sizes have names, too many to"
            " find out what the code asks of each; few axes have names"
            if inferred.too_many
            else "no other sizes were found that this code runs with: few axes have names"
        )
    trace = Trace(
        title=title,
        sizes=_sizes_shown(what, inferred),
        options=_options(inferred, what),
        device=place,
        dtype=what.dtype or None,
        seed=recorded.seed if what.is_live else recorded.seed or 0,
        steps=base.steps,
        findings=_findings(inferred, what) if not session.compiled else None,
        notices=notices,
        source=base.sources,
        file=shown_path(session.file),
    )
    if base.failure is not None:
        trace.crash = crash_of(base.failure, inferred.dims_of, shown_path(base.failure.file))
    elif is_a(base.error, Exception):  # it comes from another file
        raise SourceError(f"running {what.loaded.name} raises {described(base.error)}.") from base.error
    placed: list[Step | Source] = [*trace.steps, *(trace.source or [])]
    for each in placed:
        each.file = each.file and shown_path(each.file)
    if not recorded.stats:  # these are of one turn of a loop
        trace.steps = folded(trace.steps)
    if is_a(ending, SystemExit):
        trace.exit = Exit(*status_of(ending))
    if interrupted:
        raise Interrupted(trace) from ending
    return trace


def _findings(inferred: Inferred, what: Subject) -> list[Any]:
    """What looks wrong, in the order of the lines."""
    from attnscope.tracing.axes.inference import coincidences, regrouped
    from attnscope.tracing.diagnose.findings import scale_findings

    widths = {each[-1] for each in what.axes.values() if each and isinstance(each[-1], str)}
    views = regrouped(inferred)
    explained = {finding.line for finding in views}
    by_chance = coincidences(inferred, _axes(what) - what.proposed, widths, told=what.sizes_told)
    findings = [finding for finding in by_chance if finding.line not in explained]
    findings += views + scale_findings(inferred) + inferred.runs[0].findings
    return sorted(findings, key=lambda finding: finding.line or 0)


def _run_all(
    what: Subject, session: Session, recorded: Recorded, device: str | None
) -> tuple[Inferred, str, list[str], BaseException | None]:
    """Run a subject with its own sizes, and with others; on another device, if it looks at values.

    Returns:
        What is known of the sizes; where it ran; notices; and what it raised, or the KeyboardInterrupt
        that came while it ran with other sizes.
    """
    from attnscope.tracing.axes.inference import Inferred, Run, infer
    from attnscope.tracing.axes.resize import fixed, required_by
    from attnscope.tracing.axes.symbols import Symbols

    notices: list[str] = []
    begun = time.monotonic()
    base = _run(what, session, recorded, device)
    if device == "meta" and _needs_values(base):
        device = "cpu"
        notices.append("the code looks at values, which meta has none of: it was run on cpu")
        base = _run(what, session, recorded, device)
    place = device or base.device or "cpu"
    drew_nothing = recorded.seed is not None and _drew_nothing(recorded.seed, place)
    warn_idle([(drew_nothing, "--seed", "nothing is drawn")])
    quick = place == "cpu" and time.monotonic() - begun < QUICK
    looks_at_values = False

    def attempt(sizes: dict[str, int]) -> Run:
        nonlocal looks_at_values
        widest = prod(sorted(sizes.values())[-3:])  # as large as a weight may be
        small = widest <= FEW_ELEMENTS and what.total_bytes(sizes) <= FEW_BYTES
        elsewhere = "cpu" if (quick and small) or looks_at_values else "meta"
        if elsewhere == "cpu" and what.total_bytes(sizes) > MOST_BYTES:
            return Run([], {}, error=MemoryError("too large to be run on the CPU"))
        run = _run(what, session, recorded, elsewhere, sizes)
        if elsewhere == "meta" and _needs_values(run):
            looks_at_values = True
            notices.append("the code looks at values: other sizes were run on cpu, not on meta")
            run = _run(what, session, recorded, "cpu", sizes)
        if is_a(run.error, KeyboardInterrupt):
            raise run.error
        return run

    given = {**what.defaults, **what.sizes}
    equations = [(each.name, each.value) for each in what.where]
    known = [*required_by(equations, given), *(fixed(name, n) for name, n in what.fixed.items())]
    ending = base.error
    try:
        if is_a(ending, KeyboardInterrupt):
            raise ending
        with interrupt.raised():
            inferred = infer(
                base,
                attempt,
                given,
                axes=_axes(what),
                defaults=set(what.defaults) - what.given,
                known=known,
            )
        constant = {name: (size,) * len(inferred.runs) for name, size in what.quotients.items()}
        inferred.symbols = Symbols({**inferred.symbols.sizes, **constant})
    except KeyboardInterrupt as caught:
        names = Symbols({name: (size,) for name, size in given.items()})
        inferred, ending = Inferred(names, [base], complete=False), caught
    return inferred, place, notices, ending


def _run(
    what: Subject,
    session: Session,
    recorded: Recorded,
    device: str | None,
    sizes: Mapping[str, int] | None = None,
) -> Run:
    """Build the subject and call it once, recorded; with other sizes, what it prints is not seen."""
    import torch

    from attnscope.tracing.axes.inference import Run
    from attnscope.tracing.diagnose.crash import failure_of
    from attnscope.tracing.diagnose.findings import Watcher
    from attnscope.tracing.instrument.torch_internals.meta_kernels import without_compiler

    files = {site.file for site in session.sites}
    watcher = Watcher(files)
    options: dict[str, Any] = {} if sizes else {"stats": recorded.stats, "keep": recorded.keep}
    error: BaseException | None = None
    with (
        without_compiler() if device == "meta" else nullcontext(),
        _unseen() if sizes else nullcontext(),
        session.recording(depth=recorded.depth, watch=watcher, **options) as recorder,
    ):
        try:
            with interrupt.raised(), _exits():
                built = what.build(sizes, device=device, seed=recorded.seed, train=recorded.train)
                with torch.device(device) if device not in (None, "cpu") else nullcontext():
                    built.callable(*built.args, **built.kwargs)
        except BaseException as caught:
            if is_a(caught, AttnscopeError) and not sizes:
                raise
            error = caught
    return Run(
        steps=recorder.steps,
        parts=recorder.parts,
        amounts=watcher.amounts,
        views=watcher.views,
        failure=failure_of(error, files, recorder.parts) if error is not None else None,
        error=error,
        findings=watcher.findings,
        sources=recorder.sources() if recorded.source and not sizes else None,
        device=recorder.device,
    )


@contextmanager
def _unseen() -> Iterator[None]:
    """Drop what code prints, which may have deleted its stdout."""
    before = getattr(sys, "stdout", None)
    sys.stdout = io.StringIO()
    try:
        yield
    finally:
        sys.stdout = before


@contextmanager
def _exits() -> Iterator[None]:
    """Let `os._exit` raise SystemExit: what was traced until then is to be shown."""
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
    """Whether torch has drawn nothing on the CPU, or on meta, since this seed was set."""
    import torch

    begun = torch.Generator().manual_seed(seed).get_state()
    return device in ("cpu", "meta") and torch.equal(torch.random.get_rng_state(), begun)


def _needs_values(run: Run) -> bool:
    """Whether code failed because a device without values has none."""
    return run.error is not None and "meta" in safe_str(run.error)


# What is shown of the sizes.


def _axes(what: Subject) -> set[str]:
    """The names of the inputs' axes."""
    return {axis for axes in what.axes.values() for axis in axes or () if isinstance(axis, str)}


def _sizes_shown(what: Subject, inferred: Inferred) -> dict[str, int]:
    """The sizes that have names: those that the user said, and defaults that name an axis."""
    dims = " ".join(axis for step in inferred.runs[0].steps for axis in step.dims or ())
    used = set(re.findall(r"[^\W\d]\w*", dims))
    sizes = {**what.sizes, **what.defaults}
    return {name: size for name, size in sizes.items() if name in what.given or name in used}


def _options(inferred: Inferred, what: Subject) -> dict[str, Any]:
    """What is true of the sizes: said by the user, and found out."""
    said = [each.text for each in what.where]
    found = [str(requirement) for requirement, *_ in inferred.refusals] if inferred.complete else []
    return {"where": said + found} if said + found else {}
