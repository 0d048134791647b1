"""The processes that share a run: a single one, or those that `torchrun` starts.

Every process reads its rank and the number of processes from its environment. After each round, they
exchange their results in the order of their ranks, so that sums are added in the same order with any
number of processes.

Source: torchrun's environment, https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from attnscope.base.errors import ModelError, OptionError, first_line
from attnscope.base.process.launch import launched
from attnscope.base.spelling import spelled


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, as seen by one of them."""

    rank: int
    world_size: int
    device: str

    @property
    def is_first(self) -> bool:
        """Whether this process is the first, which prints."""
        return self.rank == 0

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank, in each of them."""
        if self.world_size == 1:
            return [value]
        from torch import distributed

        values: list[Any] = [None] * self.world_size
        try:
            distributed.all_gather_object(values, value)
        except RuntimeError as error:
            raise ModelError(
                f"another of the {self.world_size} processes is lost: {first_line(error).rstrip('.')}.",
                hint=f"the same command resumes from the last {spelled('checkpoint')}",
            ) from error
        return values

    def first_mismatch(self, value: Any) -> int | None:
        """Return the rank of the first process whose value differs from that of process 0, if any."""
        values = self.all_gather(value)
        return next((rank for rank, each in enumerate(values) if each != values[0]), None)


@contextmanager
def process_group(device: str) -> Iterator[ProcessGroup]:
    """Connect the processes of a run: with gloo on CPUs, nccl on GPUs, one for each process."""
    if not launched():
        yield ProcessGroup(0, 1, device)
        return
    import torch
    from torch import distributed

    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        n_gpu = torch.cuda.device_count()
        if local >= n_gpu:
            raise OptionError(
                f"this machine has {n_gpu} GPUs, too few for process {local + 1}.",
                hint=f"torchrun --nproc-per-node {n_gpu}" if n_gpu else spelled(device="cpu"),
            )
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    if distributed.is_initialized():  # by the program that measures
        yield ProcessGroup(distributed.get_rank(), distributed.get_world_size(), device)
        return
    try:
        distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    except Exception as error:
        raise ModelError(f"cannot connect to the other processes: {first_line(error)}.") from error
    try:
        yield ProcessGroup(distributed.get_rank(), distributed.get_world_size(), device)
        with suppress(RuntimeError):  # the first one prints; none leaves while another is running
            distributed.barrier()
    finally:
        distributed.destroy_process_group()
