"""A computation of the textbook: planned without torch, and then run and held against its plan."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import prod
from typing import Any

from attnscope import contracts
from attnscope.results.trace import Step, Trace
from attnscope.textbook.inputs.mask_options import Masks


@dataclass(frozen=True)
class Call:
    """One call of the textbook.

    Attributes:
        target: the function or the module.
        tensors: its inputs by name, which come after what the call before it returned.
        options: its other arguments.
    """

    target: Callable[..., Any]
    tensors: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Computation:
    """What is to be computed, with all options resolved.

    Attributes:
        plan: what the contract says: the trace of a dry run.
        calls: makes the inputs on a device, drawing those that nobody gave, and returns the calls that
            are to be traced, one after the other.
        masks: the masks.
        code: the functions that are called: modules and qualified names.
        drawn: whether anything is drawn.
        weight_bytes: what the weights take, beside the plan's steps.
    """

    plan: Trace
    calls: Callable[[str], list[Call]]
    masks: Masks
    code: tuple[tuple[str, str], ...]
    drawn: bool
    weight_bytes: int = 0

    @property
    def rows(self) -> int:
        """How many rows the scores have."""
        plan = self.plan
        rows = prod(size for axis, size in plan.sizes.items() if axis in ("n_batch", "n_head", "n_Q"))
        return rows // plan.sizes["n_Q"] if "query" in plan.options else rows


def run(
    plan: Trace, calls: list[Call], *, keep: bool | Collection[str] = False, stats: bool = False
) -> list[Step]:
    """Make the calls, and check that the steps are those of the plan.

    Args:
        plan: what the contract says.
        calls: what is called; each gets first what the one before it returned.
        keep: names whose tensors are kept, or True for all.
        stats: whether to compute each tensor's six numbers.
    """
    import torch

    from attnscope.tracing.calls import trace

    steps: list[Step] = []
    with torch.no_grad():
        result: tuple[Any, ...] = ()
        for call in calls:
            with trace(call.target, stats=stats, keep=keep, findings=False) as traced:
                result = call.target(*result, **call.tensors, **call.options)
            known = {step.name for step in steps}
            steps += [step for step in traced.steps if step.name not in known]
    declared = {step.name: step for step in plan.steps}
    for step in steps:
        if step.name in declared:
            step.dims, step.why = declared[step.name].dims, declared[step.name].why
    contracts.check(Trace(plan.title, steps=steps), plan)
    return steps
