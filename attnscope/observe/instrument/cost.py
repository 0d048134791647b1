"""The cost of operators: floating-point operations and newly allocated memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from attnscope.observe.operators.tape import mapped
from attnscope.observe.torch_internals.dispatch import TENSOR, OpOverload, UncompiledMode

aten = torch.ops.aten

# Products that torch's own counter omits or counts slowly: (shapes of the arguments) -> FLOPs.
_MORE_PRODUCTS: dict[Any, Callable[..., int]] = {
    aten.addmm: lambda y, A, B: 2 * prod(A) * B[-1],
    aten.baddbmm: lambda y, A, B: 2 * prod(A) * B[-1],
    aten.mv: lambda A, x: 2 * prod(A),
    aten.addmv: lambda y, A, x: 2 * prod(A),
    aten.dot: lambda x, y: 2 * prod(x),
    aten.vdot: lambda x, y: 2 * prod(x),
    aten._scaled_dot_product_flash_attention_for_cpu: lambda Q, K, V: sdpa_flop_count(Q, K, V),
}


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, and newly allocated bytes."""

    flops: int = 0
    fresh_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.fresh_bytes + other.fresh_bytes)


NOTHING = Cost()


def cost_of(operator: Any, args: tuple, kwargs: dict, out: Any) -> Cost:
    """Return the cost of one call of an operator."""
    if not _computes(operator):
        return NOTHING
    formula = _formula(operator)
    flops = 0 if formula is None else int(formula(args, kwargs, out))
    return Cost(flops, fresh_bytes_of(operator, args, kwargs, out))


def fresh_bytes_of(operator: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """Return the bytes that one call of an operator has allocated; arguments as in `cost_of`."""
    if not _computes(operator):
        return 0
    returned = {storage._cdata: storage for storage in storages_in(out)}
    for storage in storages_in(() if _makes_new(operator) else (args, kwargs)):
        returned.pop(storage._cdata, None)
    return sum(storage.nbytes() for storage in returned.values())


@cache
def _computes(operator: Any) -> bool:
    """Check whether an operator may cost anything; one that returns a view of its input does not."""
    returns = operator._schema.returns
    views = all(each.alias_info is not None and not each.alias_info.is_write for each in returns)
    return not (returns and views)


@cache
def _formula(operator: Any) -> Callable[[tuple, dict, Any], int] | None:
    """Return a function that counts an operator's FLOPs from its arguments and result; None if 0.

    Those of matrix products, convolutions and fused attention count, a multiply-add as two; element-wise
    work does not. Source: `torch.utils.flop_counter`.
    """
    packet = operator._overloadpacket
    if packet in _MORE_PRODUCTS:
        more = _MORE_PRODUCTS[packet]
        return lambda args, kwargs, out: more(
            *[tuple(arg.shape) for arg in args if isinstance(arg, torch.Tensor)][:3]
        )
    if packet in flop_registry:
        of_tensors = flop_registry[packet]
        of_shapes = getattr(of_tensors, "__wrapped__", None)  # skips torch's own extraction of shapes
        if of_shapes is None:
            return lambda args, kwargs, out: of_tensors(*args, **kwargs, out_val=out)
        return lambda args, kwargs, out: of_shapes(
            *_shapes(args), **_shapes(kwargs), out_shape=_shapes(out)
        )
    return None


def _shapes(tree: Any) -> Any:
    return mapped(tree, torch.Tensor, lambda tensor: tensor.shape)


@cache
def _makes_new(operator: Any) -> bool:
    """Check whether an operator's schema declares that its results alias none of its inputs."""
    returns = operator._schema.returns
    return (
        all(each.alias_info is None for each in returns)
        and operator._overloadpacket is not aten._unsafe_view
    )


def storages_in(tree: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of the tensors in nested lists, tuples and dicts.

    Their `_cdata` identifies them on every device, including meta.
    """
    if isinstance(tree, torch.Tensor):
        storage = storage_of(tree)
        if storage is not None:
            yield storage
    elif isinstance(tree, tuple | list):
        for each in tree:
            yield from storages_in(each)
    elif isinstance(tree, dict):
        yield from storages_in(list(tree.values()))


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return a tensor's storage; None for sparse tensors and for those inside vmap."""
    if TENSOR.layout.__get__(tensor) is not torch.strided:
        return None
    try:
        return TENSOR.untyped_storage(tensor)
    except (NotImplementedError, RuntimeError):
        return None


class Meter(UncompiledMode):
    """A context in which each operator reports how many bytes have been allocated since it began.

    An operator that makes a tensor of a given size reports it before it allocates it, others afterwards.
    Tensors on meta, and those of classes of their own, do not count; freed memory counts nevertheless.
    """

    supports_higher_order_operators = True

    def __init__(self, report: Callable[[int], None]) -> None:
        super().__init__()
        self.report = report  #: receives the bytes; it may end the code by raising an exception
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
