"""What one operator costs: floating-point operations, and memory that was not there before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

aten = torch.ops.aten

# Products that torch's own counter passes over: (shapes of the arguments) -> FLOPs.
_MORE_PRODUCTS: dict[Any, Callable[..., int]] = {
    aten.mv: lambda A, x: 2 * prod(A),
    aten.addmv: lambda y, A, x: 2 * prod(A),
    aten.dot: lambda x, y: 2 * prod(x),
    aten.vdot: lambda x, y: 2 * prod(x),
    aten._scaled_dot_product_flash_attention_for_cpu: lambda Q, K, V: sdpa_flop_count(Q, K, V),
}


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, and bytes that were allocated."""

    flops: int = 0
    fresh_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.fresh_bytes + other.fresh_bytes)


def cost_of(operator: Any, args: tuple, kwargs: dict, out: Any) -> Cost:
    """What one operator cost.

    Args:
        operator: the ATen overload that ran, on `args` and `kwargs`, and returned `out`.
    """
    return Cost(_flops(operator, args, kwargs, out), _fresh_bytes(args, kwargs, out))


def _flops(operator: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """Of a matrix product, a convolution or a fused attention: a multiply and an add are two.

    Element-wise work is not counted.

    Source: `torch.utils.flop_counter`.
    """
    packet = operator._overloadpacket
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    if packet in _MORE_PRODUCTS:
        shapes = [tuple(arg.shape) for arg in args if isinstance(arg, torch.Tensor)]
        return int(_MORE_PRODUCTS[packet](*shapes[:3]))
    return 0


def _fresh_bytes(args: tuple, kwargs: dict, out: Any) -> int:
    """Bytes of the storages that an operator returned and was not given."""
    given = {storage._cdata for storage in storages_in((args, kwargs))}
    fresh = {s._cdata: s.nbytes() for s in storages_in(out) if s._cdata not in given}
    return sum(fresh.values())


def storages_in(tree: Any) -> Iterator[torch.UntypedStorage]:
    """The storages of the tensors in nested lists, tuples and dicts.

    Their `_cdata` tells them apart, on every device, meta included.
    """
    for leaf in tree_iter(tree):
        if isinstance(leaf, torch.Tensor) and (storage := storage_of(leaf)) is not None:
            yield storage


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's one plain memory; sparse tensors and those inside of vmap have none."""
    if tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
