"""What `trace` does: run the code, name its axes, look for what is wrong, and show it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.options import Format
from attnscope.cli.output import Output, progress
from attnscope.errors import OptionError
from attnscope.results import Trace

if TYPE_CHECKING:
    from attnscope.inputs.subject import Subject
    from attnscope.tracing.inference import Inferred, Run
    from attnscope.tracing.session import Session


QUICK = 1.0
"""Seconds. Code that took less is run on the CPU with other sizes too, which are small; else on meta."""


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
    train: bool = False

    def check_options(self, dtype: str) -> None:
        """Raise an AttnscopeError for what cannot be done, before anything is."""
        from attnscope.contracts import DTYPES
        from attnscope.inputs.drawn import check_device_name, check_seed

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
        if self.annotate and self.output.format is not Format.TABLE:
            raise OptionError(
                "--annotate shows a diff and no table.", hint=f"leave out --format {self.output.format}"
            )
        if self.output.format is Format.CSV:
            for option, given in {"--source": self.source, "--check": self.check}.items():
                if given:
                    raise OptionError(
                        f"csv holds one table, and {option} prints more.", hint="--format json"
                    )
        self.output.check([dtype])


def examine_target(
    target: str,
    init: list[str],
    inputs: list[str],
    where: list[str],
    call: str | None,
    dtype: str,
    wanted: Wanted,
) -> int:
    """Trace what the user names, with what the user gives it.

    Returns:
        The exit status: 1 if the code fails, if a comment is not true, or if there are findings and
        that is asked for.
    """
    wanted.check_options(dtype)
    from attnscope.inputs.drawn import check_device
    from attnscope.inputs.subject import subject
    from attnscope.inputs.target import load

    with redirect_stdout(sys.stderr), progress(f"importing {target} …"):
        loaded = load(target)
        what = subject(loaded, init, inputs, where, call, dtype)
        check_device(wanted.device)
    with redirect_stdout(sys.stderr), progress(f"running {target} …"):
        trace = traced(what, wanted)
    trace.title = target
    return present(trace, wanted)


def traced(what: Subject, wanted: Wanted) -> Trace:
    """Run a subject, and then again with other sizes; what is known of it afterwards."""
    from attnscope.tracing.crash import crash_of
    from attnscope.tracing.findings import scale_findings
    from attnscope.tracing.folding import folded
    from attnscope.tracing.inference import coincidences, infer
    from attnscope.tracing.resize import required_by
    from attnscope.tracing.session import Session

    session = Session(what.function(), follow=wanted.follow, parts=wanted.parts)
    with session:
        notices: list[str] = []
        device = wanted.device
        begun = time.monotonic()
        base = _run(what, session, wanted, None, device)
        if device == "meta" and _needs_values(base):
            device = "cpu"
            notices.append("the code looks at values, which meta has not: it was run on cpu instead")
            base = _run(what, session, wanted, None, device)
        elsewhere = "cpu" if device == "cpu" and time.monotonic() - begun < QUICK else "meta"

        def attempt(sizes: dict[str, int]) -> Run:
            nonlocal elsewhere
            run = _run(what, session, wanted, sizes, elsewhere, quiet=True)
            if elsewhere == "meta" and _needs_values(run):
                elsewhere = "cpu"
                notices.append("the code looks at values: other sizes were run on cpu, not on meta")
                run = _run(what, session, wanted, sizes, elsewhere, quiet=True)
            return run

        given = {**what.defaults, **what.sizes}
        equations = [(each.name, each.numerator, each.denominator) for each in what.where]
        known = list(required_by(equations, given))
        inferred = infer(base, attempt, given, defaults=what.defaults, known=known)
    inferred.name_axes()
    if not inferred.complete:
        notices.append("the code ran with no other sizes: axes are named by their sizes alone")
    trace = Trace(
        title=what.loaded.name,
        sizes=_sizes_shown(what, inferred),
        options=_options(inferred),
        device=device,
        dtype=what.dtype,
        seed=wanted.seed,
        steps=base.steps
        if wanted.stats or wanted.output.show or wanted.output.save
        else folded(base.steps),
        notices=notices,
        file=_shown_path(session.file),
    )
    if session.compiled:
        trace.notices = [f"{what.loaded.name} is compiled by torch.compile: it ran untraced"]
    for step in trace.steps:
        step.file = step.file and _shown_path(step.file)
    axes = [axis for each in what.axes.values() for axis in each or () if isinstance(axis, str)]
    trace.findings = sorted(
        [
            *coincidences(inferred, axes),
            *scale_findings(inferred, _line_text),
            *base.findings,
        ],
        key=lambda finding: finding.line or 0,
    )
    if base.failure is not None:
        trace.crash = crash_of(base.failure, inferred.dims_of, _shown_path(base.failure.file))
    elif base.error is not None:
        raise base.error
    if wanted.source:
        trace.source = base.sources
    return trace


def _run(
    what: Subject,
    session: Session,
    wanted: Wanted,
    sizes: Mapping[str, int] | None,
    device: str,
    *,
    quiet: bool = False,
) -> Run:
    """Build the subject and call it once, recorded."""
    import contextlib
    import io

    import torch

    from attnscope.errors import AttnscopeError
    from attnscope.tracing.crash import failure_of
    from attnscope.tracing.findings import Watcher
    from attnscope.tracing.inference import Run
    from attnscope.tracing.meta import without_compiler

    files = {site.file for site in session.sites}
    watcher = Watcher(files)
    keep: Any = bool(wanted.output.save) or (
        {wanted.output.selection[0]} if wanted.output.show else False
    )
    options = {} if quiet else {"stats": wanted.stats, "keep": keep}
    error: BaseException | None = None
    silence = contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext()
    context = torch.device(device) if device != "cpu" else contextlib.nullcontext()
    compiler = without_compiler() if device == "meta" else contextlib.nullcontext()
    with compiler, session.recording(depth=wanted.depth, watch=watcher, **options) as recorder, silence:
        try:
            built = what.build(sizes, device=device, seed=wanted.seed, train=wanted.train)
            with context:
                built.callable(*built.args, **built.kwargs)
        except AttnscopeError:
            raise
        except Exception as caught:
            error = caught
    failure = failure_of(error, files, recorder.parts) if error is not None else None
    steps, parts = recorder.steps, recorder.parts
    return Run(
        steps, parts, watcher.amounts, failure, error, watcher.findings, session.sources(recorder)
    )


def _needs_values(run: Run) -> bool:
    """Whether code failed because a device without values has none."""
    return run.error is not None and "meta" in str(run.error)


def _sizes_shown(what: Subject, inferred: Inferred) -> dict[str, int]:
    """The sizes that have names: those that the user said, and defaults that name an axis."""
    used = {name for step in inferred.runs[0].steps for dims in step.dims or () for name in _words(dims)}
    return {
        name: size
        for name, size in {**what.sizes, **what.defaults}.items()
        if name in what.sizes or name in used
    }


def _words(dims: str) -> list[str]:
    import re

    return re.findall(r"[^\W\d]\w*", dims)


def _options(inferred: Inferred) -> dict[str, Any]:
    required = [str(requirement) for requirement, *_ in inferred.refusals] if inferred.complete else []
    return {"where": required} if required else {}


def _line_text(line: tuple[str, int]) -> str:
    import linecache

    return linecache.getline(*line)


def _shown_path(file: str) -> str:
    """A file as a reader knows it: from here, if it is below."""
    path = Path(file)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def present(trace: Trace, wanted: Wanted) -> int:
    """Show a trace of a user's code."""
    output = wanted.output
    output.print_run(trace, None, source=wanted.source)
    for notice in trace.notices:
        print(f"note: {notice}", file=sys.stderr)
    failed = trace.crash is not None or any(check.ok is False for check in trace.checks)
    return 1 if failed or (wanted.strict and trace.findings) else 0
