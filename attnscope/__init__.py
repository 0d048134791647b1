"""attnscope: see attention. The shape, the making, the cost and the values of every tensor.

Everything here is imported when it is first used, so that `import attnscope` is instant.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without importing typing

if TYPE_CHECKING:
    from typing import Any

    from attnscope.attention.mha import MultiHeadAttention
    from attnscope.attention.sdpa import sdpa
    from attnscope.checkpoints.head import read_head
    from attnscope.errors import AttnscopeError
    from attnscope.models.head_weights import head_weights
    from attnscope.models.maps.attention_maps import attention_maps, attention_steps
    from attnscope.results.common import Check, Stats
    from attnscope.results.maps import AttentionMap, AttentionMaps
    from attnscope.results.trace import Step, Trace
    from attnscope.results.weights import HeadWeights, WeightSlice
    from attnscope.tracing.calls import trace, trace_call
    from attnscope.tracing.inspect import inspect

__version__ = "0.1.0"

_HOMES = {
    "AttentionMap": "attnscope.results.maps",
    "AttentionMaps": "attnscope.results.maps",
    "AttnscopeError": "attnscope.errors",
    "Check": "attnscope.results.common",
    "HeadWeights": "attnscope.results.weights",
    "MultiHeadAttention": "attnscope.attention.mha",
    "Stats": "attnscope.results.common",
    "Step": "attnscope.results.trace",
    "Trace": "attnscope.results.trace",
    "WeightSlice": "attnscope.results.weights",
    "attention_maps": "attnscope.models.maps.attention_maps",
    "attention_steps": "attnscope.models.maps.attention_maps",
    "head_weights": "attnscope.models.head_weights",
    "inspect": "attnscope.tracing.inspect",
    "read_head": "attnscope.checkpoints.head",
    "sdpa": "attnscope.attention.sdpa",
    "trace": "attnscope.tracing.calls",
    "trace_call": "attnscope.tracing.calls",
}

__all__ = [
    "AttentionMap",
    "AttentionMaps",
    "AttnscopeError",
    "Check",
    "HeadWeights",
    "MultiHeadAttention",
    "Stats",
    "Step",
    "Trace",
    "WeightSlice",
    "attention_maps",
    "attention_steps",
    "head_weights",
    "inspect",
    "read_head",
    "sdpa",
    "trace",
    "trace_call",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
