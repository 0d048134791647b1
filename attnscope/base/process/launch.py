"""The environment variables that torchrun sets for each process it starts.

Every command reads them at its end, so this module is separate from `ranks` and imports only `os`.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import os


def launched() -> bool:
    """Check whether this process is one of several that `torchrun` has started."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def is_first() -> bool:
    """Check whether this process is the first of several (rank 0), or the only one."""
    return not launched() or os.environ["RANK"] == "0"


def processes_here() -> int:
    """Return the number of processes of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
