"""`python held_up.py FOLDER AT heads …`: attnscope, held up before its batch AT until FOLDER/go on is there."""

import os
import sys
import time
from pathlib import Path

from attnscope.cli import census
from attnscope.cli.app import entry
from attnscope.models.survey import Survey

folder, at = Path(sys.argv.pop(1)), int(sys.argv.pop(1))
census.BETWEEN_SAVINGS = 0.0  # seconds: after each round
measure, batches = Survey.measure, []


def measure_later(self, batch):
    if len(batches) == at:
        rank = os.environ.get("RANK", "0")
        (folder / f"coming.{rank}").write_text(str(os.getpid()))
        (folder / f"coming.{rank}").rename(folder / f"held.{rank}")
        until = time.monotonic() + 100
        while not (folder / "go on").exists() and time.monotonic() < until:
            time.sleep(0.02)
    batches.append(batch)
    return measure(self, batch)


Survey.measure = measure_later
sys.exit(entry())
