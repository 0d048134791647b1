"""Runs hostile command lines, and finds in how they end what must never happen.

The oracle is what is documented: the statuses, where results and errors go, what becomes of files.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import resource
import shlex
import signal
import stat
import subprocess
import sys
import threading
import traceback
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from attnscope.base.text import printable
from attnscope.cli.app import main
from tests.hints import faults_of_hint
from tests.torture.whole import why_not_whole

AT_MOST = 60
"""Seconds that a command may take in this process; then it hangs."""

HEADROOM = 4 * 2**30
"""Bytes of address space that a command may take beside what this process has."""

MOST_OF_AN_ERROR = 3 * 2**29
"""Bytes of memory that a command may take before it says what is wrong."""

SEED = os.environ.get("TORTURE_SEED", "")
"""Another one draws other cases."""

REPORTED = 12
"""How many faults a failing test lists."""

SHORT = 500
"""Characters of an output that are quoted."""

ERROR = "attnscope: error: "

Status = int
Arguments = Sequence[object]


class Hangs(BaseException):
    """A command took too long."""


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: its exit status; that of an exception is 70.
        out, err: what it wrote.
        error: the traceback of an exception that came out of it.
    """

    status: Status
    out: str
    err: str
    error: str | None = None


@dataclass
class Cases:
    """The cases of one test: how they ended, and what was wrong.

    Attributes:
        group: what they have in common.
        folder: where they run; all that they may write is in it.
        counts: how many ended with which status.
        faults: what must never happen, and did.
    """

    group: str
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def run(
        self,
        *arguments: object,
        statuses: Collection[Status] = (0, 1, 2),
        record: bool | None = None,
        noisy: bool = False,
        may_change: Collection[Path] = (),
        theirs: Collection[Path] = (),
        unprinted: bool = False,
        silent: bool = False,
        within: Callable[[], Ended] | None = None,
        what: str = "",
    ) -> Ended:
        """Run a command line, and note what is wrong with how it ended.

        Args:
            arguments: the command line.
            statuses: those that are right.
            record: whether stdout is to be one JSON document; by default where the last option is
                `--format json`.
            noisy: whether code of somebody else writes to both streams.
            may_change: the files that it may write.
            theirs: the files with which code of somebody else may do anything.
            silent: whether nobody reads stderr.
            unprinted: whether a mistake may be that what was done cannot be printed.
            within: runs it, if not in this process.
            what: what is special about the case.
        """
        words = [str(argument) for argument in arguments]
        if record is None:
            record = words[-2:] == ["--format", "json"] and words[0] != "run" and "--" not in words
        before, resident = snapshot(self.folder), resident_memory()
        ended = (within or (lambda: run_here(words)))()
        self.counts[str(ended.status)] += 1
        exact = "--annotate" in words  # a diff, for `patch`
        found = [
            *faults_of(ended, statuses=statuses, record=record, noisy=noisy, exact=exact, silent=silent)
        ]
        found += changes(
            before, snapshot(self.folder), may_change, 0 if unprinted else ended.status, theirs
        )
        taken = resident_memory("VmHWM") - resident
        if ended.status == 2 and taken > MOST_OF_AN_ERROR:
            found.append(f"an error takes {taken / 2**30:.1f} GiB")
        if within is None and not noisy:
            found += faults_of_hint(words, ended.err, lambda line: self._pasted(line, before))
        self.note(found, words, ended, what)
        return ended

    def _pasted(self, words: Sequence[str], before: Collection[Path]) -> str:
        """Run a command line as a hint has it, and return its stderr; what it writes is removed."""
        if words[:1] == ["run"] or {"--force", "--write"} & {
            *words
        }:  # which ends this process; changes files
            return ""
        err = run_here(words).err
        for path in snapshot(self.folder).keys() - before:
            if path.is_file() or path.is_symlink():
                path.unlink()
        return err

    def note(self, found: Sequence[str], words: Sequence[str], ended: Ended, what: str = "") -> None:
        """Keep what is wrong with a case, and how to see it again."""
        if found:
            said = [
                f"{name}: {text[:SHORT]!r}"
                for name, text in {"out": ended.out, "err": ended.err, "raised": ended.error}.items()
                if text
            ]
            self.faults.append(
                "\n    ".join(
                    [
                        f"{what + ': ' if what else ''}attnscope {shlex.join(words)[:SHORT]}",
                        *(f"✗ {each}" for each in found),
                        f"status: {ended.status}",
                        *said,
                    ]
                )
            )

    def same(self, one: Ended, other: Ended, what: str) -> None:
        """Note if two commands that must print the same do not."""
        if one.out != other.out:
            self.note([f"it prints what another does not: {other.out[:SHORT]!r}"], [], one, what)

    def verdict(self) -> None:
        """Fail if anything was wrong."""
        if self.faults:
            shown = "\n".join(self.faults[:REPORTED])
            more = f"\n… and {len(self.faults) - REPORTED} more" if len(self.faults) > REPORTED else ""
            total = sum(self.counts.values())
            said = f"{len(self.faults)} of {total} cases are wrong:\n{shown}{more}"
            raise AssertionError(said.encode("utf-8", "backslashreplace").decode())  # for xdist


def seeded(name: object) -> random.Random:
    """Return what draws the cases of a name: the same in every run with one `SEED`."""
    return random.Random(f"{SEED}{name}")


def resident_memory(field: str = "") -> int:
    """The memory of this process in bytes: now, from when its largest counts; or the largest since."""
    if not field:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak begins anew
    found = re.search(rf"{field or 'VmRSS'}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


# Running a command.


def run_here(words: Sequence[str], stdin: bytes = b"") -> Ended:
    """Run a command line in this process, and put back what it changes for others."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2)]
    buffers = [stream.buffer for stream in streams]
    error = None
    with _kept(), _limited():
        sys.stdout, sys.stderr = streams
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        try:
            status = main([str(word) for word in words])
        except SystemExit as ended:  # what code of a user asks for
            status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            if isinstance(ended.code, str):
                print(ended.code, file=streams[1])
        except BaseException as raised:
            if isinstance(raised, KeyboardInterrupt) and not isinstance(raised, Hangs):
                raise
            error, status = _traceback(raised), 70
    return Ended(status, *map(_content, streams, buffers), error)


def _content(stream: io.TextIOWrapper, buffer: Any) -> str:
    with suppress(ValueError):  # the code that was traced has closed it
        stream.flush()
        return buffer.getvalue().decode("utf-8", "backslashreplace")
    return ""


def _traceback(error: BaseException) -> str:
    """The last frames of a traceback, whatever its exception does when it is shown."""
    try:
        return "".join(traceback.format_exception(error)[-4:])
    except BaseException:
        return f"{type(error).__name__}, which cannot be shown"


@contextmanager
def _kept() -> Iterator[None]:
    """Whatever a command, or the code that it traces, changes in this process is put back."""
    main_module, modules = sys.modules["__main__"], set(sys.modules)
    kept = {
        name: getattr(sys, name)
        for name in ("stdin", "stdout", "stderr", "argv", "excepthook", "displayhook", "unraisablehook")
    }
    path, meta_path, folder = list(sys.path), list(sys.meta_path), os.getcwd()
    environment, depth, dtype = dict(os.environ), sys.getrecursionlimit(), torch.get_default_dtype()
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    threads, tracer, umask = threading.excepthook, sys.gettrace(), os.umask(0o022)
    gradients = torch.is_grad_enabled()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for name, value in kept.items():
            setattr(sys, name, value)
        sys.modules["__main__"] = main_module
        for name in set(sys.modules) - modules:
            if not name.startswith(("attnscope", "torch", "transformers", "numpy", "matplotlib")):
                where = getattr(sys.modules[name], "__file__", None) or ""
                if where.startswith(folder):  # code that was traced
                    del sys.modules[name]
        sys.path[:], sys.meta_path[:] = path, meta_path
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.setrecursionlimit(depth)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        threading.excepthook = threads
        sys.settrace(tracer)
        os.umask(umask)


@contextmanager
def _limited() -> Iterator[None]:
    """A command that hangs, or takes all memory, ends; the others go on."""

    def hang(*_: Any) -> None:
        raise Hangs(f"it took longer than {AT_MOST} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, AT_MOST)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def environment(**more: str) -> dict[str, str]:
    """That of a process: one thread, no hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def run_process(words: Sequence[str], *, seconds: float = 120.0, **options: Any) -> Ended:
    """Run a command line in a process of its own."""
    line = [sys.executable, "-m", "attnscope", *map(str, words)]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    options = {"env": environment(), "start_new_session": True, **piped, **options}
    with subprocess.Popen(line, **options) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            err = (err or b"") + b"\nTraceback: it hangs\n"
    return Ended(
        process.returncode, *((text or b"").decode("utf-8", "backslashreplace") for text in (out, err))
    )


# What must never happen.


def faults_of(
    ended: Ended,
    *,
    statuses: Collection[Status] = (0, 1, 2),
    record: bool = False,
    noisy: bool = False,
    exact: bool = False,
    silent: bool = False,
) -> Iterator[str]:
    """What is wrong with how a command ended.

    Args:
        ended: how it did.
        statuses: those that are right.
        record: whether stdout is to be one JSON document, if it ended with 0 or 1.
        noisy: whether code of somebody else writes to both streams.
        exact: whether stdout is to have what files hold, as it is.
        silent: whether nobody reads stderr.
    """
    if ended.error is not None:
        yield "an exception came out"
        return
    if ended.status not in statuses:
        yield f"the status is none of {', '.join(map(str, statuses))}"
    if "Traceback" in ended.err and (not noisy or _ours(ended.err)):
        yield "a traceback of ours is on stderr"
    for name, text in {"stdout": ended.out, "stderr": ended.err}.items():
        bad = controls(text)
        if bad and not noisy and not (exact and name == "stdout"):
            yield f"control characters on {name}: {', '.join(sorted(bad))}"
    lines = ended.err.splitlines()
    errors = [line for line in lines if line.startswith(ERROR)]
    if ended.status == 2 and len(errors) != 1 and not (noisy and errors) and not silent:
        yield f"{len(errors)} lines say what is wrong, and not one"
    if ended.status == 2 and "cannot write" not in ended.err and not noisy:
        yield from faults_of_mistake(ended.out, errors, record=record)
    if ended.status == 0 and errors:
        yield "all is done, and yet there is an error"
    if ended.status == 1 and not (ended.out.strip() or ended.err.strip()) and not silent:
        yield "it fails without a word"
    strange = [line for line in lines if not line.startswith(("attnscope: ", "  try  "))]
    if strange and not noisy:
        yield f"a line on stderr is not ours: {strange[0]!r}"
    if any(len(line) > 2000 for line in errors):
        yield f"an error is {max(map(len, errors))} characters long"
    if any(line.rstrip() in (ERROR.rstrip(), "  try") for line in lines):
        yield "an error or a hint says nothing"
    if record and ended.status in (0, 1):
        why = why_not_json(ended.out)
        if why is not None:
            yield f"stdout is not strict JSON: {why}"


def _ours(err: str) -> bool:
    """Whether a traceback goes through attnscope's files, below the line that runs a user's program."""
    return any("/attnscope/" in line and line.lstrip().startswith("File ") for line in err.splitlines())


def controls(text: str) -> set[str]:
    """The characters that a terminal would obey, or that would change how others are read."""
    return {
        f"U+{ord(each):04X}"
        for each in set(text)
        if each != "\n"
        and (
            unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")
            or each in "\u200e\u200f\u061c"
            or "\u202a" <= each <= "\u202e"
            or "\u2066" <= each <= "\u2069"
        )
    }


def why_not_json(text: str) -> str | None:
    """Why a text is not one JSON document as RFC 8259 has it, without a key that stands twice."""

    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]
        if twice:
            raise ValueError(f"the key {twice[0]!r} stands twice")
        return dict(pairs)

    try:
        content = json.loads(text, parse_constant=no_constant, object_pairs_hook=once)
    except ValueError as error:
        return str(error)
    return None if isinstance(content, dict) and "schema" in content else "it is no record"


def faults_of_mistake(text: str, errors: Sequence[str], *, record: bool) -> Iterator[str]:
    """What is wrong with stdout after a mistake: it is empty, or has the record of what is on stderr."""
    if not text and not record:
        return
    if (why := why_not_json(text)) is not None:
        yield f"a mistake has something else than a record on stdout: {why}"
        return
    error = json.loads(text).get("error", {})
    if not all(printable(error.get("message")) in line for line in errors):
        yield "the record of a mistake does not say what stderr says"
    if error.get("status") != 2 or set(error) != {"message", "hint", "status"}:
        yield "the record of a mistake has other values"


# Files.

Place = tuple[str, str]


def snapshot(folder: Path) -> dict[Path, Place]:
    """What is in a folder: of each file its kind, and what tells it from another."""
    found: dict[Path, Place] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in (*files, *folders):
            path = Path(root, name)
            status = path.lstat()
            kind = stat.S_IFMT(status.st_mode)
            if kind == stat.S_IFLNK:
                found[path] = ("link", os.readlink(path))
            elif kind == stat.S_IFREG:
                found[path] = ("file", sha256(path.read_bytes()).hexdigest())
            else:
                found[path] = (str(kind), str(status.st_rdev))
    return found


def changes(
    before: Mapping[Path, Place],
    after: Mapping[Path, Place],
    may: Collection[Path],
    status: Status,
    theirs: Collection[Path] = (),
) -> Iterator[str]:
    """What a command has done to files that it may not do.

    Args:
        before, after: what was there, and is.
        may: the files that it may write: whole, or not at all.
        status: how it ended; after a mistake, 2, nothing has changed.
        theirs: the files with which code of somebody else may do anything.
    """
    allowed = {Path(os.path.realpath(path)) for path in may}
    for path in sorted({*before, *after}, key=str):
        if before.get(path) == after.get(path) or path in theirs:
            continue
        real = Path(os.path.realpath(path))
        if real not in allowed and (".part" in path.name or path.name.startswith(".")):
            yield f"a temporary file is left: {path.name!r}"
        elif path not in after:
            yield f"it has taken {path.name!r} away"
        elif path in before and before[path][0] != after[path][0]:
            yield f"{path.name!r} is now something else: {before[path]}, then {after[path]}"
        elif real not in allowed:
            yield f"it has {'changed' if path in before else 'made'} {path.name!r}"
        elif status == 2:
            yield f"it failed, and yet has {'changed' if path in before else 'made'} {path.name!r}"
        elif path.is_file() and (why := why_not_whole(path)) is not None:
            yield f"{path.name!r} is not whole: {why}"
