"""Modes of torch's functions that code does not notice, whatever it asks torch about modes.

With a mode, `torch.overrides.has_torch_function` is True for plain tensors too, and code that asks takes
another branch. While a mode of attnscope is active, what code may ask answers as without it. Torch's own
functions ask with names of their own, and still call the mode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

_active: list[TorchFunctionMode] = []
"""The modes that code does not notice, in the order in which they were entered."""

_replaced = ExitStack()
"""Puts back what answers for torch's functions."""


class UnnoticedMode(TorchFunctionMode):
    """A mode of torch's functions that code does not notice."""

    def __enter__(self) -> UnnoticedMode:
        super().__enter__()
        _begin(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _end()
        super().__exit__(*exception)


@contextmanager
def unnoticed_device(device: str) -> Iterator[None]:
    """Make new tensors on a device, as `with torch.device(…)` does; code does not notice the mode."""
    mode = DeviceContext(device)
    with mode:
        _begin(mode)
        try:
            yield
        finally:
            _end()


@contextmanager
def without_fused_layers() -> Iterator[None]:
    """Run torch's modules of attention step by step, as they do in training, not as one operator."""
    mha = torch.backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


def _begin(mode: TorchFunctionMode) -> None:
    _active.append(mode)
    if len(_active) > 1:
        return
    _replaced.enter_context(without_fused_layers())
    modules = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
    for module in modules:
        if module not in _searched:
            _searched[module] = bool(_questions(module))
        if not (_searched[module] or module.__name__ == "__main__"):
            continue
        for name, question in _questions(module):
            _replaced.callback(setattr, module, name, question)
            setattr(module, name, ANSWERS[question])


def _end() -> None:
    _active.pop()
    if not _active:
        _replaced.close()


def _others() -> list[Any]:
    """Return the active modes of torch's functions that code does notice, the outermost first."""
    stack = [_mode_at(i) for i in range(_n_modes())]
    return [each for each in stack if not any(each is mode for mode in _active)]


def _with_others(question: Callable[..., Any], *args: Any) -> Any:
    """Ask torch as if only the modes that code does notice were active; torch itself asks as it is."""
    caller = sys._getframe(1).f_globals.get("__name__", "")
    is_torch = caller.startswith("torch.") and caller != overrides.__name__
    if is_torch or _others():
        return question(*args)
    hidden = [overrides._pop_mode() for _ in range(_n_modes())]
    try:
        return question(*args)
    finally:
        for mode in reversed(hidden):
            overrides._push_mode(mode)


_has_modes = torch._C._is_torch_function_mode_enabled
_n_modes = torch._C._len_torch_function_stack
_mode_at = torch._C._get_function_stack_at
ANSWERS: dict[Any, Callable[..., Any]] = {
    question: partial(_with_others, question)
    for question in (
        torch._C._has_torch_function,
        torch._C._has_torch_function_unary,
        torch._C._has_torch_function_variadic,
    )
} | {
    _has_modes: lambda: bool(_others()),
    _n_modes: lambda: len(_others()),
    _mode_at: lambda i: _others()[i],
}
"""What answers in place of each of torch's functions by which code may notice a mode."""


_searched: dict[ModuleType, bool] = {}
"""By module, whether it has names that stand for functions of which code may ask."""


def _questions(module: ModuleType) -> list[tuple[str, Any]]:
    """Return the names in a module that stand for functions of which code may ask."""
    package = module.__name__.partition(".")[0]
    if module not in (overrides, torch._C) and package in ("torch", "attnscope"):
        return []
    known = {id(question): question for question in ANSWERS}
    values = list(vars(module).items())
    found = [(name, known[id(value)]) for name, value in values if id(value) in known]
    # torch.overrides calls a mode only if there is one
    return [each for each in found if module is not overrides or each[1] is not _has_modes]
