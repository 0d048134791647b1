"""What recording needs of torch that is not public.

It stands here alone; and of torch's compiler in `compiler` and `meta_kernels`. torch may change it in
any release: so `pyproject.toml` bounds torch from above, and CI runs the newest one allowed.
"""

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
"""Has the attributes of tensors as torch computes them, whatever a class of the user's makes of them."""

without_torch_function: Any = torch._C.DisableTorchFunction
"""A context: operations do not call `__torch_function__` of their tensors' classes."""

without_torch_dispatch: Any = torch._C._DisableTorchDispatch
"""A context: operators are seen by no mode, and by no class's `__torch_dispatch__`."""

below_autograd: Any = torch._C._AutoDispatchBelowAutograd
"""A context: operators are not recorded for gradients, and so are quicker."""


def unseen_by_modes(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Keep operators of ours from all modes: the recorder's, and a user's own, if there are any."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return without_torch_dispatch()
    alone = torch._C._len_torch_dispatch_stack() <= 1
    return nullcontext() if alone else _disable_current_modes()
