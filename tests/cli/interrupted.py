"""Send Ctrl-C to commands at random moments, and count how they end.

Run: python -m tests.cli.interrupted --signals 200
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

CODE = Path(__file__).parents[1] / "code" / "trace" / "code" / "tutorial_mha.py"
COMMANDS = {
    "help": ["--help"],
    "sdpa": ["sdpa", "--save", "values.npz"],
    "trace": [
        "trace", f"{CODE}:MultiHeadedAttention", "--init", "d_feat=20", "--init", "n_head=5",
        "--input", "Q=n_batch:2,n_Q:3,d_feat", "--input", "K=n_batch,n_K:7,d_feat", "--input", "V=n_batch,n_K,d_feat",
    ],
    "bert": ["bert", "--text", "The cat sat on the mat.", "--page", "page.html", "--save", "maps.npz"],
    "heads": ["heads", "minilm", "--corpus", "texts.txt", "--checkpoint", "run.npz"],
}  # fmt: skip
OUTPUTS = {"texts.txt", "values.npz", "page.html", "maps.npz", "run.npz"}
LINE = "attnscope: interrupted."


@dataclass
class Interrupted:
    """The result of a command that received one SIGINT.

    Attributes:
        status: its exit status.
        err: what it wrote on stderr.
        left: the files in its folder that are none of its outputs.
    """

    status: int
    err: str
    left: set[str]

    @property
    def kind(self) -> str:
        """The outcome in a few words; only the last is an error."""
        lines = self.err.splitlines()
        if self.left:
            return f"leaves {', '.join(self.left)}"
        if self.status == 130 and lines.count(LINE) == 1 and lines[-1] == LINE and not self._told:
            return "130 and one line"
        if self.status == 0 and LINE not in lines and not self._told:
            return "done before"
        # What Python does before `__main__` runs cannot be caught: it imports the package first.
        before_us = "attnscope/" not in re.sub(r"bin/attnscope|attnscope/__init__\.py", "", self.err)
        no_module = "Could not import runpy module" in self.err  # the message of `-m`, with a traceback
        fatal = "Fatal Python error" in self.err
        # In a callback, Python prints the exception and goes on; our own handler raises none.
        lost = self.status == 0 and "Exception ignored" in self.err and "KeyboardInterrupt" in self.err
        if before_us and (self.status == -signal.SIGINT or no_module or fatal or lost):
            return "before our handler"
        return f"status {self.status}: {self.err[-2000:]}"

    @property
    def _told(self) -> bool:
        return any(word in self.err for word in ("Traceback", "Exception ignored", "terminate called"))


GOOD = {"130 and one line", "done before", "before our handler"}


def run(command: list[str], folder: Path, after: float | None) -> Interrupted:
    """Run a command in a folder, and send it one SIGINT after some seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    (folder / "texts.txt").write_text("The cat sat on the mat.\nA dog ran.\n" * 40)
    process = subprocess.Popen(
        [sys.executable, "-m", "attnscope", *command], cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
    )  # fmt: skip
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    return Interrupted(process.returncode, err, set(os.listdir(folder)) - OUTPUTS)


def count(
    signals: int, seed: int, commands: dict[str, list[str]] = COMMANDS
) -> Counter[tuple[str, str]]:
    """Interrupt commands in turn at moments drawn evenly over how long each takes; how often it ended how."""
    random_ = random.Random(seed)
    counts: Counter[tuple[str, str]] = Counter()
    takes = {}
    for number in range(signals):
        name = list(commands)[number % len(commands)]
        with tempfile.TemporaryDirectory() as folder:
            if name not in takes:
                began = time.monotonic()
                run(commands[name], Path(folder), None)
                takes[name] = time.monotonic() - began
        with tempfile.TemporaryDirectory() as folder:
            ended = run(commands[name], Path(folder), random_.uniform(0, takes[name]))
        counts[name, ended.kind] += 1
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ctrl-C at random moments.")
    parser.add_argument("--signals", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=None)
    arguments = parser.parse_args()
    chosen = {name: COMMANDS[name] for name in COMMANDS if arguments.only in (None, name)}
    found = count(arguments.signals, arguments.seed, chosen)
    for (name, kind), times in sorted(found.items()):
        print(f"{times:4d}  {name}: {kind}")
    raise SystemExit(any(kind not in GOOD for _, kind in found))
