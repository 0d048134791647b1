"""Trace the attention of one layer of a model, from its queries, keys and values on."""

from __future__ import annotations

from collections.abc import Collection

from attnscope.base.errors import check_kept
from attnscope.document.result import Check
from attnscope.model.run.attention_hook import AttentionCall
from attnscope.observe import contracts
from attnscope.observe.trace import Trace

AXES = {
    "Q": "n_batch n_head n_Q d_K",
    "K": "n_batch n_kv_head n_K d_K",
    "V": "n_batch n_kv_head n_K d_V",
    "sinks": "n_head",
    "K_shared": "n_batch n_head n_K d_K",
    "V_shared": "n_batch n_head n_K d_V",
    "x_raw": "n_batch n_head n_Q d_V",
    "x_rsh1": "n_batch n_Q n_head d_V",
    "x_rsh2": "n_batch n_Q n_head·d_V",
}
"""The axes of each step; of all others, those of the scores."""

OF_SCORES = ("n_batch", "n_head", "n_Q", "n_K")


def trace_steps(
    call: AttentionCall, title: str, *, keep: bool | Collection[str] = False, stats: bool = False
) -> Trace:
    """Trace attnscope's own attention on the inputs of a layer's attention.

    Returns:
        `Q`, `K`, `V` (after RoPE, before key/value heads are repeated) to `x_rsh2`, at least in float32,
        with a check that `x_rsh2` equals the output of the model's own attention.
    """
    import torch

    from attnscope.attention.observed import observed
    from attnscope.base.arrays import largest_difference
    from attnscope.model.run.validate import output_tolerance
    from attnscope.observe.calls import trace

    arguments = call.arguments()
    with torch.no_grad(), trace(observed, keep=keep, stats=stats, findings=False) as result:
        computed, _ = observed(**arguments)
    check_kept(keep, [step.name for step in result.steps], title)
    n_batch, n_head, n_Q, d_K = call.query.shape
    _, n_kv_head, n_K, d_V = call.value.shape
    result.title = title
    result.sizes = {"n_batch": n_batch, "n_head": n_head, "n_kv_head": n_kv_head, "n_Q": n_Q, "n_K": n_K}
    result.sizes |= {"d_K": d_K, "d_V": d_V}
    if n_kv_head == n_head:
        del result.sizes["n_kv_head"]
    result.options = {"scale": call.scale}
    if call.softcap is not None:
        result.options["softcap"] = call.softcap
    result.steps = contracts.without_idle_stages(step for step in result.steps if step.depth == 0)
    for step in result.steps:
        of_queries = step.name == "sinks" and len(step.shape) > 1
        axes = None if of_queries else AXES.get(step.name)
        if n_kv_head == n_head and axes:
            axes = axes.replace("n_kv_head", "n_head")
        step.dims = tuple(axes.split()) if axes else _aligned(step.shape, result.sizes)
    output = call.output.flatten(2).to(computed)
    difference, tolerance = largest_difference(computed, output), output_tolerance(call)
    name = "x_rsh2 = the model's own"
    result.checks = [Check.within(name, difference, tolerance)]
    if call.query.dtype != computed.dtype:
        original, dtype = (str(x.dtype).removeprefix("torch.") for x in (call.query, computed))
        result.notices.append(f"the model runs in {original}; its attention is recomputed in {dtype}.")
    return result


def _aligned(shape: tuple[int, ...], sizes: dict[str, int]) -> tuple[str, ...]:
    """Return the axes of a tensor that broadcasts to the scores: `1` for broadcast axes."""
    axes = OF_SCORES[len(OF_SCORES) - len(shape) :]
    pairs = zip(axes, shape, strict=True)
    return tuple("1" if size == 1 != sizes[axis] else axis for axis, size in pairs)
