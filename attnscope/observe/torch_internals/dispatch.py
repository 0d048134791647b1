"""Read tensors without side effects: unseen by modes, subclasses, function transforms and autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd import forward_ad
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.base.errors import class_attribute

__all__ = [
    "TENSOR",
    "OpOverload",
    "UncompiledMode",
    "composite_kernel",
    "flex_attention_kernel",
    "has_values",
    "is_dense",
    "is_derivative",
    "is_in_transform",
    "is_ordinary",
    "is_traced_by_jit",
    "registered_name",
    "sizes_of",
    "unseen",
    "without_other_modes",
    "without_torch_dispatch",
    "without_torch_function",
]

TENSOR: Any = torch._C.TensorBase
"""Has the attributes of tensors as torch computes them, bypassing overrides in the user's classes."""

without_torch_function: Any = torch._C.DisableTorchFunction
"""A context manager that disables `__torch_function__` of tensor subclasses."""

without_torch_dispatch: Any = torch._C._DisableTorchDispatch
"""A context manager that hides operators from dispatch modes and from `__torch_dispatch__`."""

is_traced_by_jit: Any = torch._C._is_tracing
"""Check whether `torch.jit.trace` is tracing: reading a shape adds to its graph."""


class UncompiledMode(TorchDispatchMode):
    """A mode of which torch's compiler takes no notice."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False; otherwise torch imports its compiler (two seconds) to protect this mode."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True; otherwise compiled code would be recompiled with the mode in it."""
        return True


@contextmanager
def unseen() -> Iterator[None]:
    """Run attnscope's own operators on ordinary tensors, so that nothing else notices.

    They reach neither modes, which may count, trace or forbid them (FakeTensorMode, make_fx), nor
    function transforms (vmap, grad), which would wrap their results, nor autograd.
    """
    with (
        without_torch_function(),
        without_torch_dispatch(),
        torch._C._DisableFuncTorch(),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        yield


@contextmanager
def without_other_modes(*, transforms: bool = False) -> Iterator[None]:
    """Run attnscope's own operators so that only modes notice that are entered within the context.

    Args:
        transforms: whether these use function transforms, such as vmap.
    """
    outer = nullcontext() if transforms else torch._C._DisableFuncTorch()
    modes = [_python_dispatch._pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    try:
        with without_torch_function(), outer, torch.no_grad():
            yield
    finally:
        for mode in reversed(modes):
            _python_dispatch._push_mode(mode)


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Check whether operators on a tensor run plain kernels: no code of its class or of a transform.

    Not ordinary: classes with a `__torch_dispatch__` of their own (fake, distributed, masked and jagged
    tensors), and tensors inside vmap, grad, jvp or functionalize.
    """
    dispatch = class_attribute(tensor, "__torch_dispatch__")
    return dispatch is torch.Tensor.__torch_dispatch__ and not is_in_transform(tensor)


def is_in_transform(tensor: torch.Tensor) -> bool:
    """Check whether a tensor exists only inside vmap, grad, jvp or functionalize."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_dense(tensor: torch.Tensor) -> bool:
    """Check whether a tensor is an ordinary one, and neither sparse, nested nor quantized."""
    if not is_ordinary(tensor) or TENSOR.is_nested.__get__(tensor):
        return False
    return TENSOR.layout.__get__(tensor) is torch.strided and not TENSOR.is_quantized.__get__(tensor)


def has_values(tensor: torch.Tensor) -> bool:
    """Check whether the values of a tensor lie in memory, one for each element, and may be read.

    They may not where reading them fails or changes the program: see `is_ordinary`. Tensors on meta
    do not have them, nor those whose memory was freed.
    """
    if not is_dense(tensor) or TENSOR.is_meta.__get__(tensor) or TENSOR._is_zerotensor(tensor):
        return False
    return not TENSOR.numel(tensor) or TENSOR.untyped_storage(tensor).nbytes() > 0


def sizes_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return a tensor's shape, without running code of its class.

    A nested tensor has several shapes: return their number. Return None if sizes are symbols, as when
    torch exports code: comparing those would add conditions to what is exported.
    """
    with without_torch_function():
        if TENSOR.is_nested.__get__(tensor):
            return (TENSOR.size(tensor, 0),)
        sizes = tuple(TENSOR.shape.__get__(tensor))
    return sizes if all(type(size) is int for size in sizes) else None


@cache
def composite_kernel(operator: OpOverload) -> Callable[..., Any] | None:
    """Return a function that runs a composite operator, such as matmul, as the operators it consists of.

    Autograd decomposes them before modes see them; in inference mode, modes see them whole.

    Returns:
        None for operators that are not composite.
    """
    composite, name = torch._C.DispatchKey.CompositeImplicitAutograd, operator.name()
    if not torch._C._dispatch_has_kernel(name):  # it is not run by kernels, such as prim::device
        return None
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not has_kernel(name, composite) or has_kernel(name, "CPU"):
        return None
    return partial(operator._op_dk, composite)


def registered_name(function: Any) -> str | None:
    """Return the name of an operator that is not torch's own, `namespace::name`; None for others."""
    if not isinstance(function, OpOverload | OpOverloadPacket):
        return None
    packet = function.overloadpacket if isinstance(function, OpOverload) else function
    name = packet._qualified_op_name
    return None if name.partition("::")[0] in ("aten", "prims", "prim") else name


def flex_attention_kernel(operator: Any) -> Callable[..., Any] | None:
    """Return the Python code of FlexAttention where no kernel is compiled, as on the CPU.

    Modes see FlexAttention as a single operator of functions, and none of the operators that it runs.

    Returns:
        None for other operators, or if other modes are active, which expect the single operator.
    """
    if str(operator) != "flex_attention" or torch._C._len_torch_dispatch_stack():
        return None
    return operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)


def is_derivative() -> bool:
    """Check whether operators may compute derivatives now: in a backward pass, or in forward mode."""
    return torch._C._current_graph_task_id() >= 0 or forward_ad._current_level >= 0
