"""See attention: the shape, origin, cost and values of every tensor between Q, K, V and the output.

Everything here is imported when it is first used, so that `import attnscope` is instant.
"""

from __future__ import annotations

__version__ = "0.1.0"

_HOMES = {
    "Answer": "attnscope.model.answers.result",
    "Audit": "attnscope.auditing.result",
    "AttentionMap": "attnscope.model.maps.result",
    "AttentionMaps": "attnscope.model.maps.result",
    "AttentionMask": "attnscope.masks.result",
    "AttentionMasks": "attnscope.masks.result",
    "AttnscopeError": "attnscope.base.errors",
    "Card": "attnscope.model.card.result",
    "Cards": "attnscope.model.card.cards",
    "Check": "attnscope.document.result",
    "HeadDifferences": "attnscope.model.weights.differences",
    "Comparison": "attnscope.code.compare.result",
    "HeadEffects": "attnscope.model.effects.result",
    "HeadRow": "attnscope.model.heads.result",
    "HeadTable": "attnscope.model.heads.result",
    "HeadWeights": "attnscope.model.files.result",
    "MapDifferences": "attnscope.model.maps.differences",
    "MultiHeadAttention": "attnscope.attention.mha",
    "Scaling": "attnscope.formula.scaling.result",
    "Stats": "attnscope.document.result",
    "Step": "attnscope.observe.trace",
    "Trace": "attnscope.observe.trace",
    "WeightSlice": "attnscope.model.files.result",
    "WorkedExample": "attnscope.formula.example.result",
    "answer": "attnscope.model.answers.answer",
    "annotate": "attnscope.code.trace.comments.trace_comments",
    "attention_maps": "attnscope.model.maps.attention_maps",
    "audit": "attnscope.auditing.audit",
    "attention_steps": "attnscope.model.maps.attention_maps",
    "card": "attnscope.model.card.card",
    "cards": "attnscope.model.card.card",
    "check_comments": "attnscope.code.trace.comments.trace_comments",
    "compare_checkpoints": "attnscope.model.weights.compare_checkpoints",
    "compare_maps": "attnscope.model.maps.compare_maps",
    "compare": "attnscope.code.compare.compare",
    "compute": "attnscope.formula.compute",
    "dry_run": "attnscope.formula.compute",
    "effects": "attnscope.model.effects.effects",
    "head_weights": "attnscope.model.weights.head_weights",
    "inspect": "attnscope.code.trace.inspect",
    "load": "attnscope.load",
    "load_ipython_extension": "attnscope.notebook",
    "mask": "attnscope.masks.mask",
    "measure_heads": "attnscope.model.heads.measure_heads",
    "measure_scaling": "attnscope.formula.scaling.measure",
    "read_head": "attnscope.model.weights.head_weights",
    "sdpa": "attnscope.attention.sdpa",
    "trace": "attnscope.observe.calls",
    "trace_call": "attnscope.observe.calls",
    "trace_script": "attnscope.code.trace.watch",
    "unload_ipython_extension": "attnscope.notebook",
    "verify": "attnscope.formula.compute",
    "worked_example": "attnscope.formula.example.worked_example",
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


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        found = getattr(import_module(_HOMES[name]), name)
        if type(found) is type(__getattr__) and name in __all__:
            from attnscope.base.arguments import checked, naming_keywords

            found = globals()[name] = naming_keywords(checked(found))
        return found
    if name.startswith("_"):  # Python and its tools ask for these
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from attnscope.base.errors import NoAttributeError
    from attnscope.base.text import nearest

    near = nearest(name, __all__)
    raise NoAttributeError(f"attnscope has no {name!r}.", hint=near or "dir(attnscope)")


def __dir__() -> list[str]:
    return list(__all__)
