"""What torchrun tells each of the processes that it starts, in its environment.

Every command asks at its end; so this is apart from `ranks`, and imports nothing more.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import os


def launched() -> bool:
    """Whether this process is one of several, as `torchrun` starts them."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def is_first() -> bool:
    """Whether this process is the first of several, or the only one."""
    return not launched() or os.environ["RANK"] == "0"


def processes_here() -> int:
    """How many processes of a run are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
