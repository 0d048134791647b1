"""Leaves the random numbers of this process as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put back the random state of Python, numpy and torch, on the CPU and on GPUs in use."""
    import torch

    numpy = sys.modules.get("numpy.random")
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    of_python, of_numpy = random.getstate(), numpy and numpy.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(of_python)
        if numpy is not None:
            numpy.set_state(of_numpy)
