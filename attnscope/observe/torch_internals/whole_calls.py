"""Calls of torch's own attention, received as a whole, wherever in Python or C++ they are made.

Modes see most of these functions only as the operators that they consist of. So, while a mode records,
`scaled_dot_product_attention` has a kernel in Python, which runs the composite one, and
`multi_head_attention_forward` has code that calls its own. What they return is what they return anyway.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.nn import functional

from attnscope.observe.instrument.code_swap import Relay, with_relay
from attnscope.observe.instrument.rewrite import RELAY
from attnscope.observe.torch_internals.dispatch import composite_kernel

SDPA = torch.ops.aten.scaled_dot_product_attention.default
MHA = functional.multi_head_attention_forward
BACKENDS = ("CPU", "CUDA", "MPS", "XPU", "Meta")
"""The devices on which calls of `scaled_dot_product_attention` are received."""

OPERATORS = {
    SDPA: "scaled_dot_product_attention",
    torch.ops.aten._native_multi_head_attention.default: "native_multi_head_attention",
    torch.ops.aten._transformer_encoder_layer_fwd.default: "transformer_encoder_layer_fwd",
}
"""Operators that compute attention as a whole. Modes see the first one only in inference mode."""


@dataclass(frozen=True)
class WholeCall:
    """A call of torch's own attention."""

    name: str
    args: tuple[Any, ...]  #: its arguments
    kwargs: dict[str, Any]
    run: Callable[[], Any]  #: calls it


Listener = Callable[[WholeCall], Any]
"""Runs a call, and returns what it returned."""

_listeners: list[Listener] = []


@contextmanager
def received(listener: Listener) -> Iterator[None]:
    """Let a listener run all calls of torch's own attention within the context."""
    _listeners.append(listener)
    try:
        with _installed():
            yield
    finally:
        _listeners.remove(listener)


@contextmanager
def _installed() -> Iterator[None]:
    """Replace the kernel and the code; nested contexts change nothing."""
    if len(_listeners) > 1:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    code = MHA.__code__
    try:
        for backend in BACKENDS:
            library.impl("scaled_dot_product_attention", _sdpa, f"Autograd{backend}")
        if not any(isinstance(each, Relay) for each in code.co_consts):  # its lines are recorded
            MHA.__code__ = _forwarding(code)
        yield
    finally:
        MHA.__code__ = code
        library._destroy()


def _sdpa(*args: Any, **kwargs: Any) -> Any:
    run = partial(_plain_sdpa, *args, **kwargs)
    return _told(WholeCall("scaled_dot_product_attention", args, kwargs, run))


def _mha(*args: Any) -> Any:
    return _told(WholeCall("multi_head_attention_forward", args, {}, partial(_plain_mha, *args)))


def _told(call: WholeCall) -> Any:
    """Let the listeners run a call, the last one first."""
    for listener in _listeners:
        call = replace(call, run=partial(listener, call))
    return call.run()


def _plain(function: Any) -> FunctionType:
    """Return a function with the present code of another."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return copy


_plain_sdpa: Any = composite_kernel(SDPA)
_plain_mha = _plain(MHA)


class _Forwarder(Relay):
    """A relay that a function passes its arguments to."""

    __slots__ = ("call",)

    def __init__(self) -> None:
        super().__init__()
        self.call = _mha

    class silence:  # noqa: N801
        """What compiled code has in its place: it calls the function itself."""

        call = staticmethod(_plain_mha)


@cache
def _forwarding(code: CodeType) -> CodeType:
    """Return code with the same arguments, which passes them on."""
    names = ", ".join(inspect.signature(MHA).parameters)
    source = f"def {code.co_name}({names}): return {RELAY!r}.call({names})"
    scope: dict[str, Any] = {}
    exec(compile(source, code.co_filename, "exec", dont_inherit=True), scope)
    new = with_relay(_Forwarder(), scope[code.co_name].__code__)
    return new.replace(co_firstlineno=code.co_firstlineno)
