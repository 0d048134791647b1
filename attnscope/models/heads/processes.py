"""The processes that share a run: one by itself, or as many as `torchrun` starts.

Every process knows its rank and how many there are from its environment. They meet after each round and
learn what all have found, in the order of their ranks: so sums are added in the same order however many
there are.

Source: torchrun's environment, https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from attnscope.errors import ModelError, OptionError, first_line
from attnscope.process.launch import launched


@dataclass(frozen=True)
class ProcessGroup:
    """One process among those of a run.

    Attributes:
        rank: its number, from 0.
        world_size: how many there are.
        device: where it runs its model.
    """

    rank: int
    world_size: int
    device: str

    @property
    def is_first(self) -> bool:
        """Whether it is the one that prints."""
        return self.rank == 0

    def all_gather(self, found: Any) -> list[Any]:
        """What every process has found, by rank: in all of them.

        Raises:
            ModelError: another process is lost.
        """
        if self.world_size == 1:
            return [found]
        from torch import distributed

        everybodys: list[Any] = [None] * self.world_size
        with _lost_process_reported(self):
            distributed.all_gather_object(everybodys, found)
        return everybodys

    def first_mismatch(self, own: Any) -> int | None:
        """The first process that has something else than process 0; None: all have the same."""
        everybodys = self.all_gather(own)
        return next((rank for rank, each in enumerate(everybodys) if each != everybodys[0]), None)


@contextmanager
def process_group(device: str) -> Iterator[ProcessGroup]:
    """This process among the others, as long as they work together: gloo on CPUs, nccl on GPUs.

    Args:
        device: where models run; `cuda` is another GPU for each process of a machine.

    Raises:
        OptionError: a machine has fewer GPUs than processes.
        ModelError: the others are not to be found.
    """
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
                f"this machine has {n_gpu} GPUs, and process {local + 1} needs another.",
                hint=f"torchrun --nproc-per-node {n_gpu}" if n_gpu else "--device cpu",
            )
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    if distributed.is_initialized():  # by the program that measures
        yield ProcessGroup(distributed.get_rank(), distributed.get_world_size(), device)
        return
    try:
        distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    except Exception as error:
        raise ModelError(f"the other processes are not to be found: {first_line(error)}.") from error
    try:
        yield ProcessGroup(distributed.get_rank(), distributed.get_world_size(), device)
        with suppress(RuntimeError):  # the first one prints; nobody leaves while another is at work
            distributed.barrier()
    finally:
        distributed.destroy_process_group()


@contextmanager
def _lost_process_reported(group: ProcessGroup) -> Iterator[None]:
    """What fails between processes is told as the loss of one."""
    try:
        yield
    except RuntimeError as error:
        raise ModelError(
            f"another of the {group.world_size} processes is lost: {first_line(error).rstrip('.')}.",
            hint="the same command again goes on where --checkpoint was written last",
        ) from error
