"""How much memory a run of the textbook takes at its peak, before it runs.

Every step that owns its memory lives until the end. What is beside the steps is said here by name:
what makes a step and is let go of, and what a proof computes; `attnscope.render.memory` says what values
need to be shown or written. tests/benchmarks/memory.py measures how near that comes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from attnscope.contracts.plan import DTYPES
from attnscope.results.trace import Step, Trace

FIXED = 4 * 2**20
"""Bytes that libraries take while they compute: threads, buffers for products."""

STATS = 10 * 2**20
"""Bytes for the numbers of some values at a time, in float64."""

PROOF = 44 * 2**20
"""Bytes for the scores of some queries at a time, in float64: `verification`'s blocks."""

UNUSED_BY_PROOF = {"scores_capped", "scores_masked", "K_shared", "V_shared"}
"""Steps that no reference looks at: a run that is compared with them need not keep these."""


@dataclass(frozen=True)
class Uses:
    """What is done with the values of a run.

    Attributes:
        keep: the names of the steps whose tensors are kept, or True for all.
        stats: each tensor's numbers are computed.
        verify: it is compared with references.
        afterwards: how many bytes showing and writing them takes.
    """

    keep: bool | Collection[str] = False
    stats: bool = False
    verify: bool = False
    afterwards: int = 0


def bytes_needed(plan: Trace, uses: Uses | None = None) -> int:
    """The memory that running a plan takes at its peak, in bytes, beside its weights.

    Args:
        plan: what is run.
        uses: what is done with its values; None: nothing.
    """
    uses = uses or Uses()
    live, peak = 0, 0
    for step in plan.steps:
        own = 0 if step.view_of or step.same_as else step.bytes
        looked_at = step.bytes + STATS if uses.stats else 0  # a copy, that nobody else can change
        peak = max(peak, live + own + max(_beside(step, plan), looked_at))
        live += own
    if uses.keep is True:
        kept = live
    elif uses.verify:
        kept = _own(plan, without=UNUSED_BY_PROOF)
    else:
        kept = sum(plan[name].bytes for name in uses.keep or ())
    afterwards = max(_of_proof(plan) if uses.verify else 0, uses.afterwards)
    return FIXED + max(peak, kept + afterwards)


def _own(plan: Trace, without: Collection[str]) -> int:
    """The bytes of the steps that own their memory."""
    own = [step for step in plan.steps if not (step.view_of or step.same_as)]
    return sum(step.bytes for step in own if step.name not in without)


def _beside(step: Step, plan: Trace) -> int:
    """The bytes beside a step and those before it, while it is made."""
    size = prod(step.shape)
    if step.name == "mask":
        bools = len(plan.options.get("mask", ())) + 2  # each kind, all so far, all with the next
        if step.dtype == "bool":
            return (bools - 1) * size
        return max(bools * size, (bools - 1) * size + step.bytes)
    if step.name in ("scores", "scores_capped", "attention_drop"):
        return step.bytes  # before it is scaled; the tangent; what is kept
    if step.name == "scores_masked" and plan["mask"].dtype == "bool":
        return plan["mask"].bytes  # its contrary
    if step.name == "attention":
        other = plan.options.get("softmax_dtype", step.dtype)
        return (
            0
            if other == step.dtype
            else max(2 * DTYPES[other] * size - step.bytes, DTYPES[other] * size)
        )
    if step.name in ("Q_rot", "K_rot"):
        return 2 * step.bytes
    return 0


def _of_proof(plan: Trace) -> int:
    """The bytes of a proof beside the run's steps: vectors in float64, and blocks of scores."""
    n_batch, n_head = (plan.sizes.get(axis, 1) for axis in ("n_batch", "n_head"))
    d_K = plan.sizes.get("d_K", plan.sizes.get("d_head", 1))
    d_V = plan.sizes.get("d_V", d_K)
    n_Q, n_K = plan.sizes["n_Q"], plan.sizes["n_K"]
    if "query" in plan.options:
        n_Q = 1
    inputs = 8 * n_batch * n_head * (n_Q * d_K + n_K * (d_K + d_V))
    results = 8 * n_batch * n_head * n_Q * d_V
    made = "rope_theta" in plan.options or {"X", "Q_feat"} & {step.name for step in plan.steps}
    return (4 if made else 2) * inputs + (8 if made else 6) * results + PROOF
