"""Tracing: run a piece of code, and get every named tensor in it.

`rewrite` puts recording calls into functions, `recorder` listens to them while they run,
`cost` says what an operator costs. The textbook's traces get their axes' names from
`attnscope.contracts`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FunctionType
from typing import Any

from attnscope import contracts
from attnscope.errors import SourceError
from attnscope.results import Trace


@contextmanager
def trace(target: Any, *, stats: bool = False, keep: bool | Collection[str] = False) -> Iterator[Trace]:
    """Trace the first call of `target` that is made inside the context.

    Args:
        target: a function, a class with a `forward` (or a `__call__`), or an instance of one.
        stats: whether each step gets the six numbers of its values.
        keep: names whose tensors are kept with their steps, or True for all. A kept tensor shows
            the values that it had when it got its name, as long as the context lasts; what
            overwrites it later overwrites what was kept.

    Yields:
        The trace: empty at first, filled when the context ends.

    Raises:
        SourceError: the target's source is not to be had.

    >>> import torch, attnscope
    >>> with attnscope.trace(attnscope.sdpa) as trace:
    ...     out = attnscope.sdpa(torch.ones(3, 4), torch.ones(5, 4), torch.ones(5, 6))
    >>> for step in trace.steps:
    ...     print(f"{step.name:10} {' '.join(step.dims):8} {step.shape}")
    Q          n_Q d_K  (3, 4)
    K          n_K d_K  (5, 4)
    V          n_K d_V  (5, 6)
    scores     n_Q n_K  (3, 5)
    attention  n_Q n_K  (3, 5)
    out        n_Q d_V  (3, 6)
    """
    from attnscope.tracing.recorder import Recorder
    from attnscope.tracing.rewrite import rewritten

    function = _function_of(target)
    code = function.__code__
    recorder = Recorder(code.co_filename, code.co_firstlineno, stats=stats, keep=keep)
    result = Trace(title=function.__qualname__.removesuffix(".forward"))
    with rewritten(code.co_filename, recorder):
        if function.__code__ is code:
            raise SourceError(
                f"the source of {function.__qualname__} in {code.co_filename}"
                " is not what was imported: it has changed since.",
                hint="start anew, so that the code that runs is the code in the file",
            )
        try:
            with recorder:
                yield result
        finally:
            recorder.done = True
            result.steps = list(recorder.steps)
            result.device = recorder.device
            if result.steps:
                result.dtype = result.steps[0].dtype
    contracts.label(result, f"{function.__module__}.{function.__qualname__}")


def trace_call(
    target: Callable[..., Any],
    *args: Any,
    stats: bool = False,
    keep: bool | Collection[str] = False,
    **kwargs: Any,
) -> Trace:
    """Call `target(*args, **kwargs)` once and return its trace.

    Args:
        target: a function, or an instance of a class with a `forward` or a `__call__`.
        stats, keep: as in `trace`; every other argument goes to the target.

    Raises:
        SourceError: the target's source is not to be had.

    >>> import torch, attnscope
    >>> mha = attnscope.MultiHeadAttention(d_feat=8, n_head=2)
    >>> x = torch.ones(3, 4, 8)
    >>> attnscope.trace_call(mha, x, x, x)["scores"].shape
    (3, 2, 4, 4)
    """
    with trace(target, stats=stats, keep=keep) as result:
        target(*args, **kwargs)
    if not result.steps and isinstance(target, type):
        raise SourceError(
            f"calling {target.__qualname__} makes one, and runs no attention.",
            hint=f"trace_call({target.__qualname__}(…), …), with an instance",
        )
    return result


def _function_of(target: Any) -> FunctionType:
    """The function that runs when `target` is called."""
    if not inspect.isroutine(target):
        owner = target if isinstance(target, type) else type(target)
        target = getattr(owner, "forward", None) or owner.__call__
    target = inspect.unwrap(target)
    target = getattr(target, "__func__", target)
    if not isinstance(target, FunctionType):
        raise SourceError(
            f"cannot trace {target!r}: it is not written in Python.",
            hint="trace the Python function or module that calls it",
        )
    suspends = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
    if target.__code__.co_flags & suspends or target.__name__ == "<lambda>":
        raise SourceError(
            f"cannot trace {target.__qualname__}: it is a generator, a coroutine or a lambda.",
            hint="trace the function that calls it: what it names is recorded there",
        )
    return target
