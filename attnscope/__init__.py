"""See attention: the shape, origin, cost and values of every tensor between Q, K, V and the output.

Everything here is imported when it is first used, so that `import attnscope` is instant.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without importing typing

if TYPE_CHECKING:
    from typing import Any

    from attnscope.answers.answer import answer
    from attnscope.answers.result import Answer
    from attnscope.attention.mha import MultiHeadAttention
    from attnscope.attention.sdpa import sdpa
    from attnscope.auditing.audit import audit
    from attnscope.auditing.result import Audit
    from attnscope.checkpoints.result import HeadWeights, WeightSlice
    from attnscope.comparison.result import Comparison
    from attnscope.comparisons import compare
    from attnscope.document.result import Check, Stats
    from attnscope.errors import AttnscopeError
    from attnscope.head_effects.effects import effects
    from attnscope.head_effects.result import HeadEffects
    from attnscope.heads.measure_heads import measure_heads
    from attnscope.load import load
    from attnscope.maps.attention_maps import attention_maps, attention_steps
    from attnscope.maps.compare_maps import compare_maps
    from attnscope.maps.differences import MapDifferences
    from attnscope.masks.mask import mask
    from attnscope.masks.result import AttentionMask, AttentionMasks
    from attnscope.model_card.card import card, cards
    from attnscope.model_card.cards import Cards
    from attnscope.model_card.result import Card
    from attnscope.models.heads.result import HeadRow, HeadTable
    from attnscope.models.maps.result import AttentionMap, AttentionMaps
    from attnscope.observe.calls import trace, trace_call
    from attnscope.observe.trace import Step, Trace
    from attnscope.textbook.compute import compute, dry_run, verify
    from attnscope.textbook.example.result import WorkedExample
    from attnscope.textbook.example.worked_example import worked_example
    from attnscope.textbook.scaling.measure import measure_scaling
    from attnscope.textbook.scaling.result import Scaling
    from attnscope.tracing.comments.trace_comments import annotate, check_comments
    from attnscope.tracing.inspect import inspect
    from attnscope.tracing.watch import trace_script
    from attnscope.weights.compare_checkpoints import compare_checkpoints
    from attnscope.weights.differences import HeadDifferences
    from attnscope.weights.head_weights import head_weights
    from attnscope.weights.read_head import read_head

__version__ = "0.1.0"

_HOMES = {
    "Answer": "attnscope.answers.result",
    "Audit": "attnscope.auditing.result",
    "AttentionMap": "attnscope.models.maps.result",
    "AttentionMaps": "attnscope.models.maps.result",
    "AttentionMask": "attnscope.masks.result",
    "AttentionMasks": "attnscope.masks.result",
    "AttnscopeError": "attnscope.errors",
    "Card": "attnscope.model_card.result",
    "Cards": "attnscope.model_card.cards",
    "Check": "attnscope.document.result",
    "HeadDifferences": "attnscope.weights.differences",
    "Comparison": "attnscope.comparison.result",
    "HeadEffects": "attnscope.head_effects.result",
    "HeadRow": "attnscope.models.heads.result",
    "HeadTable": "attnscope.models.heads.result",
    "HeadWeights": "attnscope.checkpoints.result",
    "MapDifferences": "attnscope.maps.differences",
    "MultiHeadAttention": "attnscope.attention.mha",
    "Scaling": "attnscope.textbook.scaling.result",
    "Stats": "attnscope.document.result",
    "Step": "attnscope.observe.trace",
    "Trace": "attnscope.observe.trace",
    "WeightSlice": "attnscope.checkpoints.result",
    "WorkedExample": "attnscope.textbook.example.result",
    "answer": "attnscope.answers.answer",
    "annotate": "attnscope.tracing.comments.trace_comments",
    "attention_maps": "attnscope.maps.attention_maps",
    "audit": "attnscope.auditing.audit",
    "attention_steps": "attnscope.maps.attention_maps",
    "card": "attnscope.model_card.card",
    "cards": "attnscope.model_card.card",
    "check_comments": "attnscope.tracing.comments.trace_comments",
    "compare_checkpoints": "attnscope.weights.compare_checkpoints",
    "compare_maps": "attnscope.maps.compare_maps",
    "compare": "attnscope.comparisons",
    "compute": "attnscope.textbook.compute",
    "dry_run": "attnscope.textbook.compute",
    "effects": "attnscope.head_effects.effects",
    "head_weights": "attnscope.weights.head_weights",
    "inspect": "attnscope.tracing.inspect",
    "load": "attnscope.load",
    "load_ipython_extension": "attnscope.magic",
    "mask": "attnscope.masks.mask",
    "measure_heads": "attnscope.heads.measure_heads",
    "measure_scaling": "attnscope.textbook.scaling.measure",
    "read_head": "attnscope.weights.read_head",
    "sdpa": "attnscope.attention.sdpa",
    "trace": "attnscope.observe.calls",
    "trace_call": "attnscope.observe.calls",
    "trace_script": "attnscope.tracing.watch",
    "unload_ipython_extension": "attnscope.magic",
    "verify": "attnscope.textbook.compute",
    "worked_example": "attnscope.textbook.example.worked_example",
}

__all__ = [
    "Answer",
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
    "HeadEffects",
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
    "answer",
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
    "effects",
    "head_weights",
    "inspect",
    "load",
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

        found = getattr(import_module(_HOMES[name]), name)
        if type(found) is type(__getattr__) and name in __all__:
            from attnscope.arguments import checked
            from attnscope.keywords import speaking

            found = globals()[name] = speaking(checked(found))
        return found
    if name.startswith("_"):  # Python and its tools ask for these
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from attnscope.errors import NoAttributeError
    from attnscope.text import nearest

    near = nearest(name, __all__)
    raise NoAttributeError(f"attnscope has no {name!r}.", hint=near or "dir(attnscope)")


def __dir__() -> list[str]:
    return list(__all__)
