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
    given = set(storage_keys((args, kwargs)))
    returned = [tensor.untyped_storage() for tensor in tensors_in(out)]
    fresh = {s._cdata: s.nbytes() for s in returned if s._cdata not in given}
    return sum(fresh.values())


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors with a storage, in nested lists, tuples and dicts."""
    for leaf in tree_iter(tree):
        if isinstance(leaf, torch.Tensor) and has_storage(leaf):
            yield leaf


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor has one plain memory: sparse ones and those inside of vmap have not."""
    if tensor.layout is not torch.strided:
        return False
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def storage_keys(tree: Any) -> Iterator[int]:
    """What tells the storages of those tensors apart, on every device, meta included."""
    for tensor in tensors_in(tree):
        yield tensor.untyped_storage()._cdata
