"""See attention: the shape, origin, cost and values of every tensor between Q, K, V and the output.

Everything here is imported when it is first used, so that `import attnscope` is instant.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without importing typing

if TYPE_CHECKING:
    from typing import Any

    from attnscope.attention.mha import MultiHeadAttention
    from attnscope.attention.sdpa import sdpa
    from attnscope.checkpoints.head import read_head
    from attnscope.comparison.compare import compare
    from attnscope.cost.card import card, cards
    from attnscope.errors import AttnscopeError
    from attnscope.influence.audit import audit
    from attnscope.masks.mask import mask
    from attnscope.models.compare_checkpoints import compare_checkpoints
    from attnscope.models.compare_maps import compare_maps
    from attnscope.models.head_weights import head_weights
    from attnscope.models.maps.attention_maps import attention_maps, attention_steps
    from attnscope.models.measure_heads import measure_heads
    from attnscope.results.audit import Audit
    from attnscope.results.card import Card
    from attnscope.results.cards import Cards
    from attnscope.results.common import Check, Stats
    from attnscope.results.comparison import Comparison
    from attnscope.results.differences import HeadDifferences, MapDifferences
    from attnscope.results.example import WorkedExample
    from attnscope.results.heads import HeadRow, HeadTable
    from attnscope.results.maps import AttentionMap, AttentionMaps
    from attnscope.results.masks import AttentionMask, AttentionMasks
    from attnscope.results.scaling import Scaling
    from attnscope.results.trace import Step, Trace
    from attnscope.results.weights import HeadWeights, WeightSlice
    from attnscope.textbook.compute import compute, dry_run, verify
    from attnscope.textbook.scaling import measure_scaling
    from attnscope.textbook.worked_example import worked_example
    from attnscope.tracing.calls import trace, trace_call
    from attnscope.tracing.comments.trace_comments import annotate, check_comments
    from attnscope.tracing.inspect import inspect
    from attnscope.tracing.watch import trace_script

__version__ = "0.1.0"

_HOMES = {
    "Audit": "attnscope.results.audit",
    "AttentionMap": "attnscope.results.maps",
    "AttentionMaps": "attnscope.results.maps",
    "AttentionMask": "attnscope.results.masks",
    "AttentionMasks": "attnscope.results.masks",
    "AttnscopeError": "attnscope.errors",
    "Card": "attnscope.results.card",
    "Cards": "attnscope.results.cards",
    "Check": "attnscope.results.common",
    "HeadDifferences": "attnscope.results.differences",
    "Comparison": "attnscope.results.comparison",
    "HeadRow": "attnscope.results.heads",
    "HeadTable": "attnscope.results.heads",
    "HeadWeights": "attnscope.results.weights",
    "MapDifferences": "attnscope.results.differences",
    "MultiHeadAttention": "attnscope.attention.mha",
    "Scaling": "attnscope.results.scaling",
    "Stats": "attnscope.results.common",
    "Step": "attnscope.results.trace",
    "Trace": "attnscope.results.trace",
    "WeightSlice": "attnscope.results.weights",
    "WorkedExample": "attnscope.results.example",
    "annotate": "attnscope.tracing.comments.trace_comments",
    "attention_maps": "attnscope.models.maps.attention_maps",
    "audit": "attnscope.influence.audit",
    "attention_steps": "attnscope.models.maps.attention_maps",
    "card": "attnscope.cost.card",
    "cards": "attnscope.cost.card",
    "check_comments": "attnscope.tracing.comments.trace_comments",
    "compare_checkpoints": "attnscope.models.compare_checkpoints",
    "compare_maps": "attnscope.models.compare_maps",
    "compare": "attnscope.comparison.compare",
    "compute": "attnscope.textbook.compute",
    "dry_run": "attnscope.textbook.compute",
    "head_weights": "attnscope.models.head_weights",
    "inspect": "attnscope.tracing.inspect",
    "load_ipython_extension": "attnscope.magic",
    "mask": "attnscope.masks.mask",
    "measure_heads": "attnscope.models.measure_heads",
    "measure_scaling": "attnscope.textbook.scaling",
    "read_head": "attnscope.checkpoints.head",
    "sdpa": "attnscope.attention.sdpa",
    "trace": "attnscope.tracing.calls",
    "trace_call": "attnscope.tracing.calls",
    "trace_script": "attnscope.tracing.watch",
    "unload_ipython_extension": "attnscope.magic",
    "verify": "attnscope.textbook.compute",
    "worked_example": "attnscope.textbook.worked_example",
}

__all__ = [
    "AttentionMap",
    "AttentionMaps",
    "AttentionMask",
    "AttentionMasks",
    "AttnscopeError",
    "Audit",
    "Card",
    "Cards",
    "Check",
    "Comparison",
    "HeadDifferences",
    "HeadRow",
    "HeadTable",
    "HeadWeights",
    "MapDifferences",
    "MultiHeadAttention",
    "Scaling",
    "Stats",
    "Step",
    "Trace",
    "WeightSlice",
    "WorkedExample",
    "annotate",
    "attention_maps",
    "attention_steps",
    "audit",
    "card",
    "cards",
    "check_comments",
    "compare",
    "compare_checkpoints",
    "compare_maps",
    "compute",
    "dry_run",
    "head_weights",
    "inspect",
    "mask",
    "measure_heads",
    "measure_scaling",
    "read_head",
    "sdpa",
    "trace",
    "trace_call",
    "trace_script",
    "verify",
    "worked_example",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
