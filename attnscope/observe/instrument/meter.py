"""Counts the bytes that code allocates while it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch

from attnscope.observe.instrument.cost import fresh_bytes_of
from attnscope.observe.torch_internals.dispatch import OpOverload, UncompiledMode


class Meter(UncompiledMode):
    """A context in which each operator reports how many bytes have been allocated since it began.

    An operator that makes a tensor of a given size reports it before it allocates it, others afterwards.
    Tensors on meta, and those of classes of their own, do not count; freed memory counts nevertheless.

    Args:
        report: receives the bytes; it may end the code by raising an exception.
    """

    supports_higher_order_operators = True

    def __init__(self, report: Callable[[int], None]) -> None:
        super().__init__()
        self.report = report
        self.n_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        size_at = _place_of_size(func) if isinstance(func, OpOverload) else None
        if size_at is not None:
            self.report(self.n_bytes + _bytes_of(args[size_at], **(kwargs or {})))
        out = func(*args, **(kwargs or {}))
        first = out[0] if type(out) in (tuple, list) and out else out
        if isinstance(func, OpOverload) and type(first) is torch.Tensor and not first.is_meta:
            n_bytes = fresh_bytes_of(func, args, kwargs or {}, out)
            self.n_bytes += n_bytes if type(n_bytes) is int else 0  # not a symbol
        self.report(self.n_bytes)
        return out


@cache
def _place_of_size(operator: Any) -> int | None:
    """Return the index of the size among the arguments of an operator that makes a new tensor."""
    arguments = operator._schema.arguments
    names = [each.name for each in arguments]
    takes_tensors = any("Tensor" in str(each.type) for each in arguments)
    return names.index("size") if "size" in names and not takes_tensors else None


def _bytes_of(
    size: Any, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any
) -> int:
    """Return the bytes of a new tensor; 0 on meta, or if its sizes are symbols."""
    if (device is not None and device.type == "meta") or any(type(each) is not int for each in size):
        return 0
    return prod(size) * (dtype or torch.get_default_dtype()).itemsize
