"""Signals at any moment: Ctrl-C ends with 130 and one line, others as they end any process; no file is left half-written."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.torture.cases import Ended, environment, seeded
from tests.torture.files import corpora

pytestmark = [pytest.mark.torture, pytest.mark.slow]

PARTS, PER_PART = 2, 5
MOST = 90.0
"""Seconds that a process may take; then it hangs."""

TRACED = """\
import torch


def attend(x):
    for _ in range(3):
        scores = x @ x.mT
        x = scores.softmax(-1) @ x
    return x
"""
PROGRAM = """\
import time
import torch
from traced import attend

attend(torch.ones(2, 3))
until = time.monotonic() + 60
while time.monotonic() < until:
    attend(torch.ones(2, 3))
"""

LINES = {
    "sdpa": ["sdpa", "--batch", 4, "--nq", 200, "--nk", 300, "--verify", "--save", "out.npz"],
    "example": ["example"],
    "model --page": [
        "model",
        "minilm",
        "--text",
        "the cat sat",
        "--page",
        "out.html",
        "--plot",
        "out.svg",
    ],
    "heads": ["heads", "minilm", "--text", "the cat sat on the mat", "--page", "out.html"],
    "heads --checkpoint": ["heads", "minilm", "--corpus", "long.txt", "--checkpoint", "out.npz"],
    "model --save": ["model", "bert", "--text", "the cat sat", "--save", "out.safetensors"],
    "trace": ["trace", "traced.py:attend", "--input", "x=n:2,d:3", "--save", "out.pt"],
    "run": ["run", "--watch", "traced.py:attend", "--to", "out.txt", "program.py"],
}
"""Commands that are interrupted, and what they write."""

CPU = {"example": 1.6, "trace": 2.0, "run": 3.0}
"""Seconds of the processor that a command takes about; of others, this many:"""
USUAL = 3.5

BY_SHELL = {signal.SIGINT: {130}, signal.SIGTERM: {-15, 143}, signal.SIGHUP: {-1, 129}}


def cpu_of(process):
    """The seconds that a process has computed: how far it is, however busy the machine is."""
    try:
        with open(f"/proc/{process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] == "Z":
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interrupted(line, numbers, after):
    """Run a command line, and send it signals after so many seconds of computing."""
    with subprocess.Popen(
        [sys.executable, "-m", "attnscope", *map(str, line)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment(), start_new_session=True,
    ) as process:  # fmt: skip
        hung = False
        try:
            until = time.monotonic() + MOST
            while (used := cpu_of(process)) is not None and used < after and time.monotonic() < until:
                time.sleep(0.004)
            for number in numbers:
                if process.poll() is None:
                    process.send_signal(number)
                    time.sleep(0.01)
            out, err = process.communicate(timeout=MOST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            hung = True
    texts = [text.decode("utf-8", "backslashreplace") for text in (out, err)]
    return Ended(process.returncode, *texts, "it hangs" if hung else None)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("what", LINES)
def test_a_signal_at_any_moment_ends_it_as_signals_do(cases, model_folder, what, part):
    drawing = seeded(f"{what} {part}")
    folder = cases.folder
    (folder / "traced.py").write_text(TRACED)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "long.txt").write_bytes(b"\n".join([corpora()["c.txt"]] * 500))
    line = [model_folder("bert") if word == "bert" else word for word in LINES[what]]
    written = [folder / word for word in line if str(word).startswith("out.")]
    for number in range(PER_PART):
        for path in written:
            path.unlink(missing_ok=True)
        kind = drawing.choice([signal.SIGINT] * 3 + [signal.SIGTERM, signal.SIGHUP])
        numbers = [kind] * (2 if kind == signal.SIGINT and drawing.random() < 0.2 else 1)
        after = drawing.uniform(0.12, CPU.get(what, USUAL))
        is_program = what == "run"
        # A second Ctrl-C ends the process at once. And where Ctrl-C comes within an `exec` of text, as in a
        # named tuple, `python -m` ends by the signal.
        may_kill = kind == signal.SIGINT and (is_program or len(numbers) == 2)
        by_signal = {-signal.SIGINT} if may_kill else set()
        ended = cases.run(
            *line, statuses={0, *BY_SHELL[kind], *by_signal}, record=False, noisy=is_program, may_change=written,
            what=f"{'+'.join(each.name for each in numbers)} after {after:.2f} s, {part}.{number}",
            within=lambda numbers=numbers, after=after: interrupted(line, numbers, after),
        )  # fmt: skip
        if ended.status == 130 and not is_program and "heads --checkpoint" not in what:
            said = [text for text in ended.err.splitlines() if "interrupt" in text]
            if len(said) != 1:
                cases.note(
                    [f"{len(said)} lines say that it was interrupted, and not one"], line, ended, what
                )
