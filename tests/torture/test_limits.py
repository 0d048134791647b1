"""Little memory, few files, closed streams: one line says what is lacking, and nothing is left half-written."""

import os
import resource
import stat
import subprocess

import pytest

from tests.torture.cases import Ended, environment, run_process

pytestmark = [pytest.mark.torture, pytest.mark.slow]

GIB = 2**30
TRACED = "import torch\n\n\ndef attend(x):\n    y = torch.ones(2**28)\n    z = x * 2\n    return z\n"
PROGRAM = "import torch\nfrom traced import attend\n\nattend(torch.ones(2, 3))\nprint('done')\n"

HUNGRY = {
    "sdpa": ["sdpa", "--batch", 4, "--nq", 4000, "--nk", 4000, "--format", "json"],
    "sdpa --verify": ["sdpa", "--batch", 1, "--nq", 3000, "--nk", 3000, "--verify", "--save", "out.npz"],
    "mha": ["mha", "--batch", 16, "--nq", 1000, "--d-feat", 512, "--heads", 8, "--format", "json"],
    "sdpa --dry-run": ["sdpa", "--nq", 10**6, "--dry-run", "--format", "json"],
    "model": ["model", "minilm", "--text", "the cat sat", "--page", "out.html"],
    "heads": ["heads", "minilm", "--text", "the cat sat " * 100, "--plot", "out.svg"],
    "heads --corpus": ["heads", "minilm", "--corpus", "c.txt", "--checkpoint", "out.npz"],
    "trace": ["trace", "traced.py:attend", "--input", "x=n:2,d:3", "--format", "json"],
    "example": ["example", "--format", "json"],
}


@pytest.fixture
def folder(cases):
    (cases.folder / "traced.py").write_text(TRACED)
    (cases.folder / "program.py").write_text(PROGRAM)
    (cases.folder / "c.txt").write_text("the cat sat\n" * 200)
    return cases.folder


def limited(kind, value):
    """A process with a limit on something."""
    return lambda: resource.setrlimit(kind, (value, value))


def written(folder, line):
    return [folder / str(word) for word in line if str(word).startswith("out.")]


@pytest.mark.parametrize("gib", [1.0, 2.0])
@pytest.mark.parametrize("what", HUNGRY)
def test_little_memory_is_told(cases, folder, what, gib):
    line = HUNGRY[what]
    cases.run(
        *line, statuses=[0, 1, 2] if what == "trace" else [0, 2], may_change=written(folder, line), what=f"{what} in {gib} GiB",
        within=lambda: run_process(line, preexec_fn=limited(resource.RLIMIT_AS, int(gib * GIB))),
    )  # fmt: skip


WRITERS = {
    "sdpa": ["sdpa", "--nq", 20, "--batch", 1, "--save", "out.safetensors"],
    "page": ["model", "minilm", "--text", "the cat sat", "--page", "out.html"],
    "plot": ["model", "minilm", "--text", "the cat sat", "--plot", "out.pdf"],
    "run": ["heads", "minilm", "--corpus", "c.txt", "--checkpoint", "out.npz"],
    "to": ["run", "--watch", "traced.py:attend", "--to", "out.txt", "program.py"],
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_file_that_may_not_be_so_large_is_told(cases, folder, what):
    line = WRITERS[what]
    cases.run(
        *line, statuses=[2], noisy=what == "to", what="files of 300 bytes",
        within=lambda: run_process(line, preexec_fn=limited(resource.RLIMIT_FSIZE, 300), env=environment(PYTHONDONTWRITEBYTECODE="1")),
    )  # fmt: skip


SMALL = {
    "sdpa": ["sdpa", "--batch", 1, "--nq", 3, "--nk", 4],
    "sdpa --dry-run": ["sdpa", "--dry-run", "--format", "json"],
    "model": ["model", "bert", "--text", "the cat sat", "--save", "out.npz"],
    "heads": ["heads", "bert", "--text", "the cat sat", "--format", "csv"],
    "trace": ["trace", "traced.py:attend", "--input", "x=n:2,d:3"],
    "a mistake": ["sdpa", "--heads", 3, "--kv-heads", 2, "--dry-run"],
    "help": ["heads", "--help"],
    "run": ["run", "--watch", "traced.py:attend", "program.py"],
}
STREAMS = {
    "stdout is closed": ">&-",
    "stderr is closed": "2>&-",
    "stdin is closed": "<&-",
    "all are closed": "<&- >&- 2>&-",
    "stdout is full": "> full",
    "stderr is full": "2> full",
    "nobody reads stdout": "| true",
    "nobody reads stderr": "2>&1 >/dev/null | true",
    "stdout is a file that may only be read": ">&0 < c.txt",
}


@pytest.mark.parametrize(
    ("what", "streams"),
    [
        (what, streams)
        for i, what in enumerate(SMALL)
        for j, streams in enumerate(STREAMS)
        if (i + j) % 3 == 0 or what == "run"
    ],
)
def test_streams_that_are_closed_or_full_are_no_traceback(cases, folder, model_folder, what, streams):
    os.mknod(folder / "full", stat.S_IFCHR | 0o666, os.makedev(1, 7))
    line = [model_folder("bert") if word == "bert" else word for word in SMALL[what]]
    right = {2} if what == "a mistake" else {0}
    if "stdout" in streams or "all" in streams:  # a result that cannot be written
        right |= {2, 141} if what != "run" else {1, 120, 141}
    if streams == "all are closed" and what == "run":
        right |= {0, 1, 120}

    def within():
        import shlex
        import sys

        command = shlex.join([sys.executable, "-m", "attnscope", *map(str, line)])
        script = f"set -o pipefail; {command} {STREAMS[streams]}"
        done = subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            env=environment(),
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    silent = streams in ("stderr is closed", "all are closed", "stderr is full", "nobody reads stderr")
    ended = cases.run(
        *line,
        statuses=right,
        record=False,
        noisy=True,
        may_change=written(folder, line),
        what=streams,
        silent=silent,
        unprinted="stdout" in streams or "all" in streams,
        within=within,
    )
    if "Traceback" in ended.err and what != "run":
        cases.note(["a traceback"], line, ended, streams)
    if not silent and ended.status == 2 and "attnscope: error: " not in ended.err:
        cases.note(["no line says why"], line, ended, streams)
    if (
        streams in ("stdin is closed", "stderr is closed", "stderr is full")
        and right == {0}
        and not ended.out
    ):
        cases.note(["there is no result"], line, ended, streams)
