"""The memory budget of a run: set by the user, or a share of the free memory."""

from __future__ import annotations

from attnscope.base.errors import OptionError, SizeError
from attnscope.base.spelling import spelled
from attnscope.base.units import parse_amount

SHARE = 0.8
"""The default share of the free memory that a run may take."""


def parse_size(size: str | int) -> int:
    """Parse a memory limit in bytes, such as `100`, `2G`, `500MB` or `1.5 GiB`: see `parse_amount`.

    Raises:
        OptionError: it is not a size.
    """
    n_bytes = parse_amount(size)
    if n_bytes is None or not 1 <= n_bytes < 2**63:
        raise OptionError(
            f"{spelled('memory')} is {size!r}, which is not a size.",
            hint=f"{spelled(memory='2G')}, or 500M",
        )
    return n_bytes


def memory_budget(memory: str | int | None, device: str) -> int:
    """Compute how many bytes a run may take on a device.

    Processes that share a machine's memory, as under torchrun, divide the free memory among them.

    Args:
        memory: a size for `parse_size`; None: a share of the free memory.
        device: such as `cpu`.

    Raises:
        OptionError: `memory` is not a size.
        SizeError: it is more than the free memory.
    """
    from attnscope.base.process.devices import free_memory
    from attnscope.base.process.launch import processes_here

    free = free_memory(device)
    if memory is None:
        sharing = processes_here() if device == "cpu" else 1
        return int(SHARE * (2**34 if free is None else free.n_bytes) / sharing)
    n_bytes = parse_size(memory)
    if free is not None and n_bytes > free.n_bytes:
        raise SizeError(
            f"{spelled('memory', memory)} is more than the free memory: {free.describe(device)}."
        )
    return n_bytes
