"""Command lines in separate processes: paused, interrupted, killed, several at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELD_UP = Path(__file__).with_name("held_up.py")
AT_MOST = 120.0
"""The seconds after which a process is killed, and the test fails."""


def environment(**more: str) -> dict[str, str]:
    """Return an environment with one thread per process, so that results are identical to the last bit."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


@dataclass
class Hold:
    """A pause of a run before its batch number `at`, until it may continue.

    Attributes:
        folder: where the processes say that they are there.
        at: the batch, from 0; each process counts its own.
    """

    folder: Path
    at: int

    def processes(self, n: int) -> list[int]:
        """Return the ids of the processes, by rank, once all have reached the pause."""
        until = time.monotonic() + AT_MOST
        places = [self.folder / f"held.{rank}" for rank in range(n)]
        while not all(place.exists() for place in places):
            assert time.monotonic() < until, "it did not come to the place where it is held up"
            time.sleep(0.05)
        return [int(place.read_text()) for place in places]

    def go_on(self) -> None:
        (self.folder / "go on").touch()


@dataclass
class Ended:
    """The exit status and the output of a process."""

    exit_status: int
    out: str
    err: str


@dataclass
class Running:
    """A running process."""

    process: subprocess.Popen[str]

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> Ended:
        out, err = self.process.communicate(timeout=AT_MOST)
        return Ended(self.process.returncode, out, err)


def command(*arguments: object, hold: Hold | None = None, ranks: int | None = None) -> list[str]:
    """Return a command line of `attnscope heads`, in one process or in several that torchrun starts."""
    start = [sys.executable]
    if ranks is not None:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    start += ["-m", "attnscope"] if hold is None else [str(HELD_UP), str(hold.folder), str(hold.at)]
    return [*start, "heads", *map(str, arguments)]


@contextmanager
def running(line: Sequence[str], **options: Any) -> Iterator[Running]:
    """Run a process; at the end, stop it and all processes that it started."""
    process = subprocess.Popen(
        line,
        **{"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        text=True,
        start_new_session=True,
    )
    try:
        yield Running(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=AT_MOST)


def heads(*arguments: object, ranks: int | None = None, **options: Any) -> Ended:
    """Run `attnscope heads` to its end."""
    with running(command(*arguments, ranks=ranks), **options) as run:
        return run.end()
