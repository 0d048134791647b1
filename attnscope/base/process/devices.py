"""Devices: check their names and free memory, and draw random tensors on them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnscope.base.errors import OptionError, SizeError
from attnscope.base.process.memory import FreeMemory, free_host_memory
from attnscope.base.process.random_state import kept_host_random_state
from attnscope.base.spelling import either, spelled
from attnscope.base.text import shortened
from attnscope.base.units import bytes_text

if TYPE_CHECKING:
    import torch

DEVICE = re.compile(r"cpu|mps|meta|(cuda|xpu)(:\d+)?")


def check_device_name(device: str) -> None:
    """Raise an OptionError unless `device` is a device's name, such as `cpu` or `cuda:1`."""
    if not DEVICE.fullmatch(device):
        raise OptionError(
            f"{shortened(repr(device))} is not a device.",
            hint=f"{spelled(device='cpu')}, cuda, cuda:1 (and so on), mps, xpu or meta",
        )


def check_device(device: str) -> None:
    """Raise an OptionError unless torch can use the device with this name on this machine."""
    import torch

    kind, _, number = device.partition(":")
    if kind in ("cpu", "meta"):
        return
    backend = getattr(torch, kind)
    count = backend.device_count() if backend.is_available() else 0
    if int(number or 0) >= count:
        raise OptionError(
            f"there is no device {device} here: torch {torch.__version__} sees {count} of kind {kind}.",
            hint=spelled(device="cpu"),
        )


def free_memory(device: str) -> FreeMemory | None:
    """Return the free memory of a device, or None if it is unknown."""
    if device.startswith("meta"):
        return FreeMemory(2**63 - 1)  # nothing is allocated, but torch counts bytes in 64 bits
    if device.startswith("cpu"):
        return free_host_memory()
    import torch

    if device.startswith("cuda"):
        return FreeMemory(int(torch.cuda.mem_get_info(device)[0]))
    return None


def check_seed(seed: int) -> None:
    """Raise an OptionError unless torch can draw with `seed`."""
    if not -(2**63) <= seed < 2**64:
        raise OptionError(
            f"{seed} is not a valid seed: it does not fit into 64 bits.", hint=spelled(seed=0)
        )


def check_memory(needed: int, device: str, hint: str | None = None) -> None:
    """Raise a SizeError with `hint`, or that of a dry run, if a run needs more memory than is free."""
    free = free_memory(device)
    if free is not None and needed > free.n_bytes:
        dry_run = either(command_line="--dry-run", python="attnscope.dry_run(…)")
        raise SizeError(
            f"this run needs at least {bytes_text(needed)}, but {free.describe(device)}.",
            hint=hint or f"{dry_run}, which shows the same rows at any size without computing them",
        )


@contextmanager
def kept_random_state(device: str) -> Iterator[None]:
    """Restore the random state of Python, numpy and torch on exit, on the host and on a device.

    If torch has not been imported, its random state does not exist yet, and it is not imported for this.

    Args:
        device: such as `cpu` or `cuda:1`.
    """
    if "torch" not in sys.modules:
        with kept_host_random_state():
            yield
        return
    import torch

    kind, _, number = device.partition(":")
    backend = getattr(torch, kind) if kind in ("cuda", "xpu") else None
    devices = []
    if backend is not None and int(number or 0) < backend.device_count():
        devices = [torch.device(device)]
    torch_state = torch.random.fork_rng(devices=devices, device_type=kind if devices else "cuda")
    with kept_host_random_state(), torch_state:
        yield


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Seed torch on the host and on a device, and restore its random state on exit.

    `torch.manual_seed` would seed all other devices too.

    Args:
        seed: the same seed draws the same values.
        device: such as `cpu` or `cuda:1`.
    """
    import torch

    kind = device.partition(":")[0]
    with kept_random_state(device):
        torch.default_generator.manual_seed(seed)
        if kind in ("cuda", "xpu"):
            with getattr(torch, kind).device(device):
                getattr(torch, kind).manual_seed(seed)
        elif kind == "mps":
            torch.mps.manual_seed(seed)
        yield


def draw(
    shape: tuple[int, ...], *, dtype: str, device: str, distribution: str | None = None
) -> torch.Tensor:
    """Draw a tensor of independent values, from torch's current random state.

    Args:
        shape: its shape.
        dtype: such as `float32`.
        device: such as `cpu`; on `meta`, tensors have no values.
        distribution: `uniform` for values in [0, 1); `normal` or None for standard normal ones.
    """
    import torch

    values = torch.rand if distribution == "uniform" else torch.randn
    return values(shape, dtype=getattr(torch, dtype), device=device)
