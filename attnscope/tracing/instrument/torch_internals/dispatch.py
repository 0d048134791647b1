"""Hide operators from dispatch modes, tensor subclasses and autograd."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

__all__ = [
    "TENSOR",
    "OpOverload",
    "TorchDispatchMode",
    "below_autograd",
    "unseen_by_modes",
    "without_torch_dispatch",
    "without_torch_function",
]

TENSOR: Any = torch._C.TensorBase
"""Has the attributes of tensors as torch computes them, bypassing overrides in the user's classes."""

without_torch_function: Any = torch._C.DisableTorchFunction
"""A context manager that disables `__torch_function__` of tensor subclasses."""

without_torch_dispatch: Any = torch._C._DisableTorchDispatch
"""A context manager that hides operators from dispatch modes and from `__torch_dispatch__`."""

below_autograd: Any = torch._C._AutoDispatchBelowAutograd
"""A context manager that skips autograd, which makes operators faster."""


def unseen_by_modes(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Hide attnscope's own operators from all dispatch modes: the recorder's and the user's."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return without_torch_dispatch()
    alone = torch._C._len_torch_dispatch_stack() <= 1
    return nullcontext() if alone else _disable_current_modes()
