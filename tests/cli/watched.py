"""`python watched.py heads …`: attnscope, which fails if Python takes itself down while threads of gloo live."""

import atexit
import os
import sys
from pathlib import Path

from attnscope.cli.app import entry


def watch():
    """Fail if a thread of gloo is still alive, which only sometimes aborts the process."""
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    if any("gloo" in name for name in threads):
        print(f"still there: {sorted(threads)}", file=sys.stderr, flush=True)
        os._exit(99)


if __name__ == "__main__":
    atexit.register(watch)
    sys.exit(entry())
