"""What `trace` does: run the code, name its axes, look for what is wrong, and show it."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from attnscope.cli.comments import check_comments, show_comments
from attnscope.cli.options import Format
from attnscope.cli.output import (
    NOT_DRAWN,
    Output,
    progress,
    refuse_in_csv,
    shown_path,
    stored_of_all,
    tell,
    written_first,
)
from attnscope.errors import AttnscopeError, OptionError, SourceError, is_a, said, warn_idle
from attnscope.process import interrupt
from attnscope.process.streams import of_user
from attnscope.results.trace import Source, Step, Trace
from attnscope.text import printable_lines

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


@dataclass(frozen=True)
class Wanted:
    """What a user wants of a trace of their code: the options of `attnscope trace`."""

    output: Output
    follow: tuple[str, ...] = ()
    depth: int | None = None
    parts: bool = False
    stats: bool = False
    source: bool = False
    strict: bool = False
    annotate: bool = False
    write: bool = False
    check: bool = False
    device: str = "cpu"
    seed: int = 0
    seed_given: bool = False
    train: bool = False

    def check_options(self, dtype: str) -> None:
        """Raise an AttnscopeError for what cannot be done, before anything is."""
        from attnscope.contracts import DTYPES
        from attnscope.process.devices import check_device_name, check_seed

        check_device_name(self.device)
        check_seed(self.seed)
        if dtype not in DTYPES:
            raise OptionError(f"{dtype!r} is not a dtype.", hint=f"--dtype {', '.join(DTYPES)}")
        asked = {"--stats": self.stats, "--show": self.output.show, "--save": self.output.save}
        wanted = [option for option, given in asked.items() if given]
        if wanted and self.device == "meta":
            raise OptionError(
                f"{wanted[0]} needs values, and meta has none.",
                hint=f"leave out {wanted[0]}, or choose --device cpu",
            )
        if self.write and not self.annotate:
            raise OptionError("--write is for --annotate.", hint="--annotate --write")
        others = {"--check": self.check, "--source": self.source, **asked}
        others |= {"--format": self.output.format is not Format.TABLE, "--strict": self.strict}
        for option, given in others.items():
            if self.annotate and given:
                raise OptionError(
                    f"--annotate prints a diff and nothing else, and {option} has no place in it.",
                    hint=f"one of them: --annotate, or {option}",
                )
        refuse_in_csv(self.output.format, {"--source": self.source, "--check": self.check})
        self.output.check([dtype])
        warn_idle([(self.annotate and self.output.wide, "--wide", "a diff has no columns")])


def examine(
    target: str,
    init: list[str],
    inputs: list[str],
    where: list[str],
    call: str | None,
    dtype: str,
    wanted: Wanted,
) -> int:
    """Trace what the user names, with what the user gives it, and show what is wanted of it.

    Returns:
        The exit status: 1 if the code fails, if a comment is not true, or if there are findings and
        that is asked for.
    """
    wanted.check_options(dtype)
    from attnscope.process.devices import check_device, check_memory
    from attnscope.process.memory import check_imports
    from attnscope.tracing.program import status_of
    from attnscope.tracing.target.load import load
    from attnscope.tracing.target.subject import subject

    check_imports()
    with progress(f"importing {target} …"), of_user():
        what = subject(load(target), init, inputs, where, call, dtype)
        check_device(wanted.device)
        no_module = wanted.train and not what.has_mode
        warn_idle([(no_module, "--train", "no nn.Module is called or passed in")])
        if wanted.device != "meta":
            check_memory(what.total_bytes(), wanted.device, hint="--device meta, which needs none")
    with progress(f"running {target} …"), of_user():
        trace, file, ending = traced(what, wanted)
    trace.title = target
    for notice in trace.notices:
        tell(notice)
    if is_a(ending, KeyboardInterrupt):  # what there is is shown, and no file is written
        if not wanted.annotate:
            _show(trace, replace(wanted, output=replace(wanted.output, save=None, force=False)))
        return interrupt.STATUS
    if wanted.annotate:
        return show_comments(trace, file, write=wanted.write)
    if wanted.check:
        check_comments(trace, file)
    _show(trace, wanted)
    if is_a(ending, SystemExit):
        status, text = status_of(ending)
        if text is not None:
            print(printable_lines(text), file=sys.stderr)
        return status
    failed = trace.crash is not None or any(check.ok is False for check in trace.checks)
    return 1 if failed or (wanted.strict and trace.findings) else 0


def _show(trace: Trace, wanted: Wanted) -> None:
    from attnscope.tracing.instrument.loops import folded

    output = wanted.output
    shapes = {step.name: (step.shape, step.dims) for step in trace.steps}
    output.check_selections(shapes, f"the steps of {trace.title}")
    shown, steps = output.shown_of(trace), trace.steps
    if not wanted.stats:  # these are of one turn of a loop
        trace = replace(trace, steps=folded(trace.steps))
    tensors = stored_of_all(steps) if output.save is not None else {}
    with written_first(lambda: output.write(tensors)):
        output.print_run(trace, shown, source=wanted.source)


# Running.


def traced(what: Subject, wanted: Wanted) -> tuple[Trace, str, BaseException | None]:
    """Run a subject, and then again with other sizes.

    Returns:
        What is known of it afterwards; its file; and what it raised, or the KeyboardInterrupt that came
        while it ran with other sizes.
    """
    from attnscope.tracing.axes.inference import coincidences, regrouped
    from attnscope.tracing.diagnose.crash import crash_of
    from attnscope.tracing.diagnose.findings import scale_findings
    from attnscope.tracing.instrument.session import Session
    from attnscope.tracing.target.load import described

    with Session(what.function(), follow=wanted.follow, parts=wanted.parts) as session:
        inferred, device, notices, ending = _run_all(what, session, wanted)
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
        title=what.loaded.name,
        sizes=_sizes_shown(what, inferred),
        options=_options(inferred, what),
        device=device,
        dtype=what.dtype,
        seed=wanted.seed,
        steps=base.steps,
        notices=notices,
        source=base.sources,
        file=shown_path(session.file),
    )
    widths = {each[-1] for each in what.axes.values() if each and isinstance(each[-1], str)}
    views = regrouped(inferred)
    explained = {finding.line for finding in views}
    by_chance = coincidences(inferred, _axes(what), widths, told=what.sizes_told)
    findings = [finding for finding in by_chance if finding.line not in explained]
    findings += views + scale_findings(inferred) + base.findings
    trace.findings = sorted(findings, key=lambda finding: finding.line or 0)
    if base.failure is not None:
        trace.crash = crash_of(base.failure, inferred.dims_of, shown_path(base.failure.file))
    elif is_a(base.error, Exception):  # it comes from another file
        raise SourceError(f"running {what.loaded.name} raises {described(base.error)}.") from base.error
    placed: list[Step | Source] = [*trace.steps, *trace.source]
    for each in placed:
        each.file = each.file and shown_path(each.file)
    return trace, session.file, ending


def _run_all(
    what: Subject, session: Session, wanted: Wanted
) -> tuple[Inferred, str, list[str], BaseException | None]:
    """Run a subject with its own sizes, and with others; on another device, if it looks at values."""
    from attnscope.tracing.axes.inference import Inferred, Run, infer
    from attnscope.tracing.axes.resize import required_by
    from attnscope.tracing.axes.symbols import Symbols

    notices: list[str] = []
    device, begun = wanted.device, time.monotonic()
    base = _run(what, session, wanted, device)
    if device == "meta" and _needs_values(base):
        device = "cpu"
        notices.append("the code looks at values, which meta has none of: it was run on cpu")
        base = _run(what, session, wanted, device)
    warn_idle([(wanted.seed_given and _drew_nothing(wanted.seed, device), "--seed", NOT_DRAWN)])
    quick = device == "cpu" and time.monotonic() - begun < QUICK
    looks_at_values = False

    def attempt(sizes: dict[str, int]) -> Run:
        nonlocal looks_at_values
        widest = prod(sorted(sizes.values())[-3:])  # as large as a weight may be
        small = widest <= FEW_ELEMENTS and what.total_bytes(sizes) <= FEW_BYTES
        elsewhere = "cpu" if (quick and small) or looks_at_values else "meta"
        if elsewhere == "cpu" and what.total_bytes(sizes) > MOST_BYTES:
            return Run([], {}, error=MemoryError("too large to be run on the CPU"))
        run = _run(what, session, wanted, elsewhere, sizes)
        if elsewhere == "meta" and _needs_values(run):
            looks_at_values = True
            notices.append("the code looks at values: other sizes were run on cpu, not on meta")
            run = _run(what, session, wanted, "cpu", sizes)
        if is_a(run.error, KeyboardInterrupt):
            raise run.error
        return run

    given = {**what.defaults, **what.sizes}
    equations = [(each.name, each.value) for each in what.where]
    known = required_by(equations, given)
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
    except KeyboardInterrupt as caught:
        names = Symbols({name: (size,) for name, size in given.items()})
        inferred, ending = Inferred(names, [base], complete=False), caught
    return inferred, device, notices, ending


def _run(
    what: Subject,
    session: Session,
    wanted: Wanted,
    device: str,
    sizes: Mapping[str, int] | None = None,
) -> Run:
    """Build the subject and call it once, recorded; with other sizes, what it prints is not seen."""
    import torch

    from attnscope.tracing.axes.inference import Run
    from attnscope.tracing.diagnose.crash import failure_of
    from attnscope.tracing.diagnose.findings import Watcher
    from attnscope.tracing.instrument.meta_kernels import without_compiler

    files = {site.file for site in session.sites}
    watcher = Watcher(files)
    options: dict[str, Any] = {} if sizes else {"stats": wanted.stats, "keep": wanted.output.keep}
    error: BaseException | None = None
    with (
        without_compiler() if device == "meta" else nullcontext(),
        _unseen() if sizes else nullcontext(),
        session.recording(depth=wanted.depth, watch=watcher, **options) as recorder,
    ):
        try:
            with interrupt.raised(), _exits():
                built = what.build(sizes, device=device, seed=wanted.seed, train=wanted.train)
                with torch.device(device) if device != "cpu" else nullcontext():
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
        sources=recorder.sources() if wanted.source and not sizes else [],
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
    return run.error is not None and "meta" in said(run.error)


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
