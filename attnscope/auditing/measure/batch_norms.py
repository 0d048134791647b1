"""Batch norms, whose training uses the statistics of all rows and positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

import torch

KINDS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.SyncBatchNorm)


def batch_norms_of(module: torch.nn.Module | None) -> list[torch.nn.Module]:
    """Return the batch norms among the modules of a module; None has none."""
    return [] if module is None else [each for each in module.modules() if isinstance(each, KINDS)]


@contextmanager
def batch_statistics(norms: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Let batch norms use the statistics of their input, as in training; then restore their own."""
    before = [deepcopy(norm.state_dict()) for norm in norms]
    for norm in norms:
        norm.train()
    try:
        yield
    finally:
        for norm, state in zip(norms, before, strict=True):
            norm.eval()
            norm.load_state_dict(state)
