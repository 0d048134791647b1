"""`python held_up.py FOLDER AT heads …`: attnscope, held up before its batch AT until FOLDER/go on is there."""

import os
import sys
import time
from pathlib import Path

from attnscope.cli.app import entry
from attnscope.model.heads import corpus_run
from attnscope.model.heads.measurer import HeadMeasurer


def hold(folder, at):
    """Pause every measurement at its batch, and save after each round."""
    corpus_run.SECONDS_BETWEEN_SAVES = 0.0  # seconds
    measure, batches = HeadMeasurer.measure, []

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

    HeadMeasurer.measure = measure_later


if __name__ == "__main__":
    hold(Path(sys.argv.pop(1)), int(sys.argv.pop(1)))
    sys.exit(entry())
