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

    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with kept_host_random_state(), torch.random.fork_rng(devices):
        yield


def seed_torch(seed: int) -> None:
    """Seed torch, on the CPU and on all devices that it was built for.

    For each kind of device, `torch.manual_seed` writes down the stack of its caller, even if torch was
    built for the CPU alone. That takes longer than a small run.
    """
    import torch

    if torch.accelerator.current_accelerator() is None:
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def kept_host_random_state() -> Iterator[None]:
    """Restore the random state of Python, and of numpy if it has been imported, on exit."""
    numpy = sys.modules.get("numpy.random")
    python_state, numpy_state = random.getstate(), numpy and numpy.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.set_state(numpy_state)
