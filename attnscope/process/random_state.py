"""The random state of this process: Python's, numpy's and torch's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_global_random_state() -> Iterator[None]:
    """Restore the random state of Python, numpy and torch on exit, on the CPU and on GPUs in use."""
    import torch

    numpy = sys.modules.get("numpy.random")
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python_state, numpy_state = random.getstate(), numpy and numpy.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.set_state(numpy_state)
