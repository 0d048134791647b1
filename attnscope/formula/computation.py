"""A computation of the textbook: planned without torch, then run and checked against its plan."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import prod
from typing import Any

from attnscope.attention.mask_rules import Masks
from attnscope.observe import contracts
from attnscope.observe.trace import Step, Trace


@dataclass(frozen=True)
class TextbookCall:
    """One call of a function or module of the textbook.

    Attributes:
        target: the function or the module.
        tensors: its input tensors by name; the results of the previous call precede them.
        options: its other arguments.
    """

    target: Callable[..., Any]
    tensors: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Computation:
    """A planned computation, with all options resolved.

    Attributes:
        plan: the trace of a dry run, according to the contract.
        calls: creates the inputs on a device, drawing those that the user did not pass, and returns
            the calls to trace, in order.
        masks: the masks.
        code: the functions that are called: modules and qualified names.
        drawn: whether anything is drawn at random: inputs, weights or dropout.
        drawn_inputs: the names of the inputs that are drawn.
        weight_bytes: the bytes of the weights, which the plan's steps do not include.
    """

    plan: Trace
    calls: Callable[[str], list[TextbookCall]]
    masks: Masks
    code: tuple[tuple[str, str], ...]
    drawn: bool
    drawn_inputs: Collection[str] = ()
    weight_bytes: int = 0

    @property
    def rows(self) -> int:
        """The number of rows of the scores."""
        plan = self.plan
        rows = prod(size for axis, size in plan.sizes.items() if axis in ("n_batch", "n_head", "n_Q"))
        return rows // plan.sizes["n_Q"] if "query" in plan.options else rows


def run(
    plan: Trace, calls: list[TextbookCall], *, keep: bool | Collection[str] = False, stats: bool = False
) -> list[Step]:
    """Make the calls, and check that their steps are those of the plan.

    Args:
        plan: the declared steps.
        calls: the calls; each receives the results of the previous one as its first arguments.
        keep: names of the steps whose tensors are kept, or True for all.
        stats: whether to compute the statistics of each tensor.
    """
    import torch

    from attnscope.observe.calls import trace

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
