"""Trace calls that happen anyway: `trace` as a context or a decorator, and `trace_call`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from attnscope.base.arguments import checked
from attnscope.base.errors import SourceError
from attnscope.observe import contracts
from attnscope.observe.instrument.session import Session
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    from attnscope.observe.axes.from_source import ObservedAxes
    from attnscope.observe.diagnose.findings import Watcher
    from attnscope.observe.instrument.recorder import Recorder


OPTIONS = {"stats", "keep", "depth", "follow", "subexpressions", "findings"}
"""The options of `trace` as a context or a decorator; with others it calls the code."""


class trace:  # noqa: N801 - read as a verb
    """Trace the first call of a target within a context, or every call of a decorated function.

    With arguments of the target, `trace(module, x)`, or a name, `trace("model.py:Attention", …)`, it
    does what the command `attnscope trace` does, and returns a trace: it is `attnscope.inspect`, which
    calls the code itself, also with other sizes. Without, it records a call that happens anyway.

    The context manager returns the trace, which is filled when the context ends. A decorated function
    or method has the trace of its last call as `function.trace`.

    Args:
        target: a function, a class with a `forward` (or a `__call__`), or an instance of one.
        stats: whether to compute six statistics of the values of each step.
        keep: names whose tensors are kept with their steps, or True for all. Within the context, a
            kept tensor has the values that it had when it got its name; operators that overwrite
            it later overwrite the kept values too.
        depth: calls deeper than this get no steps of their own; their cost is added to the caller's.
        follow: names of modules whose functions are recorded too.
        subexpressions: whether subexpressions get steps too, named `…`.
        findings: whether to search for likely mistakes, as far as one run shows them.

    Raises:
        SourceError: the target's source is not available.

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

    def __new__(cls, target: Any = None, *args: Any, **options: Any) -> Any:
        """Return a decorator if there are only options, and the trace of a call if there are arguments.

        >>> import torch, attnscope
        >>> attnscope.trace(attnscope.sdpa, *torch.ones(3, 2, 4, 8))["scores"].shape
        (2, 4, 4)
        """
        if args or isinstance(target, str) or not options.keys() <= OPTIONS:
            import attnscope

            return attnscope.inspect(target, *args, **options)
        return functools.partial(cls, **options) if target is None else super().__new__(cls)

    @checked
    def __init__(
        self,
        target: Any,
        *,
        stats: bool = False,
        keep: bool | Collection[str] = False,
        depth: int | None = None,
        follow: Sequence[str] = (),
        subexpressions: bool = False,
        findings: bool = True,
    ) -> None:
        self.target = target
        self.trace: Trace | None = None
        self._recorder_options = {"stats": stats, "keep": keep, "depth": depth}
        self._session_options = {"follow": follow, "parts": subexpressions}
        self._has_findings = findings
        self._contexts: list[ExitStack] = []
        if callable(target) and not isinstance(target, type):
            functools.update_wrapper(self, target, updated=())

    def __repr__(self) -> str:
        name = getattr(self.target, "__qualname__", type(self.target).__qualname__)
        return f"attnscope.trace({name}), which records calls within `with`; trace({name}, …) calls it"

    def __enter__(self) -> Trace:
        context = ExitStack()
        session = context.enter_context(Session(self.target, **self._session_options))  # type: ignore[arg-type]
        watcher = _watcher(session) if self._has_findings else None
        axes = None if contracts.has_contract(_qualified(session)) else _observed_axes()
        options: dict[str, Any] = {**self._recorder_options, "watch": watcher, "axes": axes}
        recorder = context.enter_context(session.recording(**options))
        result = Trace(title=session.function.__qualname__.removesuffix(".forward"), findings=None)
        if session.compiled:
            result.notices.append(f"{result.title} is compiled by torch.compile: it is not traced")
        fill = functools.partial(self._fill, result, session, recorder, watcher, axes)
        context.push(lambda kind, *_: fill(code_runs=kind is None))
        self._contexts.append(context)
        return result

    def __exit__(self, *exception: object) -> None:
        self._contexts.pop().__exit__(*exception)  # type: ignore[arg-type]

    @staticmethod
    def _fill(
        result: Trace,
        session: Session,
        recorder: Recorder,
        watcher: Watcher | None,
        axes: ObservedAxes | None,
        *,
        code_runs: bool,
    ) -> None:
        result.steps = list(recorder.steps)
        result.device = recorder.device
        result.notices += dict.fromkeys(recorder.notes)
        if recorder.error is not None:
            from attnscope.base.tracebacks import describe

            result.set_tracing_error(describe(recorder.error), code_runs=code_runs)
        if result.steps:
            result.dtype = result.steps[0].dtype
        if axes is None:
            contracts.label(result, _qualified(session))
        else:
            result.sizes = axes.name_axes()
        if watcher is not None and recorder.functions:  # the target was called
            from attnscope.observe.diagnose.findings import findings_of_one_run

            result.findings = findings_of_one_run(result.steps, recorder.parts, watcher, result.sizes)
            result.saw_softmax = watcher.saw_softmax

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the target, traced, and return what it returns."""
        with self as self.trace:
            return self.target(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def _qualified(session: Session) -> str:
    return f"{session.function.__module__}.{session.function.__qualname__}"


def _observed_axes() -> ObservedAxes:
    from attnscope.observe.axes.from_source import ObservedAxes

    return ObservedAxes()


def _watcher(session: Session) -> Watcher:
    from attnscope.observe.diagnose.findings import Watcher

    return Watcher({site.file for site in session.sites})


def trace_call(
    target: Callable[..., Any],
    *args: Any,
    stats: bool = False,
    keep: bool | Collection[str] = False,
    findings: bool = True,
    **kwargs: Any,
) -> Trace:
    """Call `target(*args, **kwargs)` once and return its trace.

    Args:
        target: a function, or an instance of a class with a `forward` or a `__call__`.
        args, kwargs: the arguments of the call.
        stats, keep, findings: as in `trace`.

    Raises:
        SourceError: the target's source is not available.

    >>> import torch, attnscope
    >>> mha = attnscope.MultiHeadAttention(d_feat=8, n_head=2)
    >>> x = torch.ones(3, 4, 8)
    >>> attnscope.trace_call(mha, x, x, x)["scores"].shape
    (3, 2, 4, 4)
    """
    with trace(target, stats=stats, keep=keep, findings=findings) as result:
        target(*args, **kwargs)
    if not result.steps and isinstance(target, type):
        raise SourceError(
            f"calling {target.__qualname__} creates an instance and does not run attention.",
            hint=f"trace_call({target.__qualname__}(…), …), with an instance",
        )
    return result
