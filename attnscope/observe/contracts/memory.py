"""Estimate of the peak memory of a run of the textbook, before it runs.

Every step that owns its memory lives until the end. The estimate adds the temporary tensors of each step
and those of a proof; `attnscope.cli.output` estimates the memory for showing or writing values.
tests/benchmarks/memory.py measures how close the estimate is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from attnscope.base.dtypes import FLOATS
from attnscope.observe.trace import Step, Trace

FIXED = 4 * 2**20
"""Bytes that libraries take while they compute: threads, buffers for products."""

STATS = 10 * 2**20
"""Bytes for the statistics of a chunk of values at a time, in float64."""

PROOF = 44 * 2**20
"""Bytes for the scores of a block of queries at a time, in float64, during verification."""

UNUSED_BY_PROOF = {"scores_capped", "scores_masked", "K_shared", "V_shared"}
"""Steps that no reference reads, so a run that is only verified need not keep them."""


@dataclass(frozen=True)
class Uses:
    """The uses of a run's values that take memory."""

    #: the names of the steps whose tensors are kept, or True for all
    keep: bool | Collection[str] = False
    stats: bool = False
    verify: bool = False  #: the run is compared with references
    afterwards: int = 0  #: the bytes that showing and writing values takes


def bytes_needed(plan: Trace, uses: Uses | None = None) -> int:
    """Return the peak memory of running a plan, in bytes, without the module's weights."""
    uses = uses or Uses()
    live, peak = 0, 0
    for step in plan.steps:
        allocated = 0 if step.view_of or step.same_as else step.bytes
        stats = step.bytes + STATS if uses.stats else 0  # a copy, which later steps cannot change
        peak = max(peak, live + allocated + max(_temporary(step, plan), stats))
        live += allocated
    if uses.keep is True:
        kept = live
    elif uses.verify:
        owners = (step for step in plan.steps if not (step.view_of or step.same_as))
        kept = sum(step.bytes for step in owners if step.name not in UNUSED_BY_PROOF)
    else:
        kept = sum(plan[name].bytes for name in uses.keep or ())
    afterwards = max(_proof_bytes(plan) if uses.verify else 0, uses.afterwards)
    return FIXED + max(peak, kept + afterwards)


def _temporary(step: Step, plan: Trace) -> int:
    """Return the bytes of temporary tensors while a step is computed."""
    size = prod(step.shape)
    if step.name == "mask":
        bools = len(plan.options.get("mask", ())) + 2  # each kind, the `&` so far, the next `&`
        if step.dtype == "bool":
            return (bools - 1) * size
        return max(bools * size, (bools - 1) * size + step.bytes)
    if step.name in ("scores", "scores_capped", "attention_drop"):
        return step.bytes  # unscaled scores; the tanh; dropout's random mask
    if step.name == "scores_masked" and plan["mask"].dtype == "bool":
        return plan["mask"].bytes  # its negation
    if step.name == "attention":
        other = plan.options.get("softmax_dtype", step.dtype)
        wider = FLOATS[other] * size
        return 0 if other == step.dtype else max(2 * wider - step.bytes, wider)
    if step.name in ("Q_rot", "K_rot"):
        of_each = step.name == "Q_rot" and plan.options.get("align") == "lengths"
        angles = 2 * step.bytes // plan.sizes.get("n_head", 1) if of_each else 0  # of each sequence
        return 2 * step.bytes + angles
    return 0


def _proof_bytes(plan: Trace) -> int:
    """Return the bytes of a proof beside the run's steps: vectors in float64, and blocks of scores."""
    n_batch, n_head = (plan.sizes.get(axis, 1) for axis in ("n_batch", "n_head"))
    d_K = plan.sizes.get("d_K", plan.sizes.get("d_head", 1))
    d_V = plan.sizes.get("d_V", d_K)
    n_Q, n_K = plan.sizes["n_Q"], plan.sizes["n_K"]
    if "query" in plan.options:
        n_Q = 1
    inputs = 8 * n_batch * n_head * (n_Q * d_K + n_K * (d_K + d_V))
    results = 8 * n_batch * n_head * n_Q * d_V
    derived = "rope_theta" in plan.options or {"X", "Q_feat"} & {step.name for step in plan.steps}
    return (4 if derived else 2) * inputs + (8 if derived else 6) * results + PROOF
