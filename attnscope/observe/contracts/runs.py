"""Recorded runs of the textbook: name their axes, and check them against their contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import prod

from attnscope.observe.contracts.mha import mha
from attnscope.observe.contracts.plan import Variant
from attnscope.observe.contracts.sdpa import sdpa, sdpa_columns, sdpa_query
from attnscope.observe.trace import Step, Trace

IDLE = {
    *("Q_split", "K_split", "V_split", "Q_rot", "K_rot", "K_all", "V_all", "K_shared", "V_shared"),
    *("scores_capped", "scores_biased", "scores_masked"),
    *("attention_filled", "attention_drop", "out_merged"),
}
"""Stages that return their input unchanged when their variant is not used; they get no row then."""


def has_contract(function: str) -> bool:
    """Check whether a function, by its module and qualified name, belongs to the textbook."""
    return function in _PLANS


def label(trace: Trace, function: str) -> None:
    """Name the axes of a trace of the textbook, and drop the stages that did nothing.

    A trace of another function, or of sizes that the contract does not cover (such as inputs
    that broadcast against each other), is left as it is.

    Args:
        function: the traced function's module and qualified name.
    """
    if function not in _PLANS or not trace.steps:
        return
    trace.steps = without_idle_stages(step for step in trace.steps if step.depth == 0)
    steps = {step.name: step for step in trace.steps}
    if not {"Q", "K", "V"} <= set(steps) or not all(prod(step.shape) for step in trace.steps):
        return  # an input is missing, or a tensor has no elements
    plan = _PLANS[function](steps)
    if plan is None or len(plan.steps) != len(trace.steps):
        return
    pairs = list(zip(trace.steps, plan.steps, strict=True))
    if all((real.name, real.shape) == (planned.name, planned.shape) for real, planned in pairs):
        trace.title, trace.sizes = plan.title, plan.sizes
        for real, planned in pairs:
            real.dims = planned.dims


def check(trace: Trace, plan: Trace) -> None:
    """Check that a real run had exactly the steps that its contract declares.

    The contract does not include what depends on the kernels that torch picked (`fresh_bytes`),
    the source (`line`) or the values (`stats`).

    Raises:
        AssertionError: they differ, so one of the two is wrong.
    """
    real, planned = _declared_fields(trace), _declared_fields(plan)
    if real != planned:
        lines = ["the run differs from its contract:"]
        lines += [f"  ran       {row}" for row in real if row not in planned]
        lines += [f"  contract  {row}" for row in planned if row not in real]
        raise AssertionError("\n".join(lines))


def _declared_fields(trace: Trace) -> list[tuple]:
    return [
        (s.name, s.dims, s.shape, s.dtype, s.how, s.bytes, s.flops, s.contiguous, s.view_of, s.same_as)
        for s in trace.steps
    ]


def without_idle_stages(steps: Iterable[Step]) -> list[Step]:
    """Drop the stages that returned their input, and name that input in later expressions."""
    kept: list[Step] = []
    known: dict[str, str] = {}  # a step's name -> the first name of its tensor
    idle: dict[str, str] = {}  # an idle stage's name -> its input's name
    for step in steps:
        for name, source in idle.items():
            step.how = re.sub(rf"\b{name}\b", source, step.how)
        known[step.name] = step.same_as or step.name
        if step.name in IDLE and step.same_as:
            words = re.findall(r"\w+", step.how)
            idle[step.name] = next(word for word in words if known.get(word) == step.same_as)
        else:
            kept.append(step)
    return kept


# From a recorded trace to the plan for the sizes of its inputs; None if the contract has none.


def _plan_for(
    steps: dict[str, Step], contract: Callable[..., Trace], *, transposed: bool = False
) -> Trace | None:
    split = "Q_split" in steps
    Q, K, V = (steps[f"{name}_split" if split else name].shape for name in "QKV")
    if transposed:
        Q, K, V = map(_transposed, (Q, K, V))
        if "mask" in steps and len(steps["mask"].shape) == 1:
            return None  # it has no axis of keys
    if not 2 <= len(Q) <= 4 or not len(Q) == len(K) == len(V):
        return None
    lead = ("n_batch", "n_head")[: len(Q) - 2]
    sizes = dict(zip(lead, Q[:-2], strict=True))
    sizes |= {"n_Q": Q[-2], "n_K": K[-2], "d_K": Q[-1], "d_V": V[-1]}
    if len(K) == 4:
        sizes["n_kv_head"] = K[1]
    if "K_past" in steps:
        past = steps["K_past"].shape
        sizes["n_past"] = (_transposed(past) if transposed else past)[-2]
        sizes["n_K"] += sizes["n_past"]
    variant = _variant(steps, sizes, (*lead, "n_Q", "n_K"), transposed=transposed)
    return contract(sizes, variant=replace(variant, split=split))


def _plan_for_mha(steps: dict[str, Step]) -> Trace | None:
    if not {"Q_split", "K_split", "V_split"} <= steps.keys():
        return None
    places = {
        "n_batch": ("Q", 0), "n_Q": ("Q", 1), "n_K": ("K", 1), "d_feat": ("Q", 2), "d_context": ("K", 2),
        "n_head": ("Q_split", 1), "n_kv_head": ("K_split", 1), "d_head": ("Q_split", 3),
        "d_V": ("V_split", 3),
    }  # fmt: skip
    sizes = {size: steps[name].shape[axis] for size, (name, axis) in places.items()}
    if "K_past" in steps:
        sizes["n_past"] = steps["K_past"].shape[2]
        sizes["n_K"] += sizes["n_past"]
    return mha(sizes, variant=_variant(steps, sizes, ("n_batch", "n_head", "n_Q", "n_K")))


def _variant(
    steps: dict[str, Step],
    sizes: dict[str, int],
    axes: tuple[str, ...],
    *,
    transposed: bool = False,
) -> Variant:
    """Return the variant of a recorded run; values that only occur in explanations are placeholders."""
    n_Q, n_K = sizes["n_Q"], sizes["n_K"]
    n_pos = steps["cos"].shape[0] if "cos" in steps else 0
    mask: str | None = None
    if "mask" in steps:  # the last axes of the scores, with 1 where it broadcasts
        shape = steps["mask"].shape[-len(axes) :]  # a wider mask will not match the plan
        shape = _transposed(shape) if transposed else shape
        aligned = zip(axes[len(axes) - len(shape) :], shape, strict=True)
        mask = " ".join("1" if size == 1 != sizes[axis] else axis for axis, size in aligned)
    return Variant(
        mask=mask,
        mask_dtype="bool" if "mask" in steps and steps["mask"].dtype == "bool" else "",
        masked_rows="zero" if "attention_filled" in steps else None,
        rope_theta=1.0 if "cos" in steps else None,
        shortest=n_Q + n_K - n_pos if n_pos > max(n_Q, n_K) else None,
        softcap=1.0 if "scores_capped" in steps else None,
        dropout=0.5 if "attention_drop" in steps else 0.0,
    )


def _transposed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], *shape[:-3:-1])


_PLANS: dict[str, Callable[[dict[str, Step]], Trace | None]] = {
    "attnscope.attention.sdpa.sdpa": partial(_plan_for, contract=sdpa),
    "attnscope.attention.columns.sdpa_columns": partial(
        _plan_for, contract=sdpa_columns, transposed=True
    ),
    "attnscope.attention.one_query.sdpa_query": partial(_plan_for, contract=sdpa_query),
    "attnscope.attention.mha.MultiHeadAttention.forward": _plan_for_mha,
}
