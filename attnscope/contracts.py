"""What every step of `sdpa` and `mha` is: its name, axes, expression, and what it takes.

From this alone a dry run prints every shape at any size, without torch. A real run is
checked against it, step by step, and gets its axes' names from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod

from attnscope.errors import OptionError, SizeError, heads_do_not_divide
from attnscope.results import Step, Trace

DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""The dtypes that attention runs in, and the bytes of an element."""

OPTIONAL = ("scores_masked", "attention_drop")
"""Stages that return what they are given when there is nothing for them to do. Then they have no row."""

INPUT = "input"
"""How a tensor was made that the caller handed in."""


@dataclass(frozen=True)
class Stage:
    """One declared step.

    Attributes:
        name: as in the code.
        dims: the axes' names.
        how: the expression, as in the code.
        product: for a matrix product, the axes that it runs over: FLOPs = 2 · their sizes.
        view_of: the step whose memory it looks at.
        same_as: the step that it is, under another name.
        layout: the axes in the order in which they lie in memory, if that is not `dims`.
        copied: the view is copied into a memory of its own, unless it is contiguous.
        dtype: if it is not the inputs'.
    """

    name: str
    dims: str
    how: str
    product: str = ""
    view_of: str | None = None
    same_as: str | None = None
    layout: str = ""
    copied: bool = False
    dtype: str = ""


def sdpa(sizes: dict[str, int], *, dtype: str = "float32", mask: str | None = None) -> Trace:
    """The steps of `attnscope.attention.sdpa.sdpa`.

    Args:
        sizes: `n_Q n_K d_K d_V`, after none, one or both of `n_batch n_head`.
        dtype: the inputs'.
        mask: the dims of a boolean mask, or None for no mask.

    Raises:
        SizeError: a size is not a positive whole number.
        OptionError: an unknown dtype.
    """
    lead = " ".join(axis for axis in ("n_batch", "n_head") if axis in sizes)
    last = "scores"

    def stages() -> Iterator[Stage]:
        nonlocal last
        yield Stage("Q", f"{lead} n_Q d_K", INPUT)
        yield Stage("K", f"{lead} n_K d_K", INPUT)
        yield Stage("V", f"{lead} n_K d_V", INPUT)
        if mask is not None:
            yield Stage("mask", mask, INPUT, dtype="bool")
        scores = f"{lead} n_Q n_K"
        yield Stage("scores", scores, "Q @ K.mT * scale", product=f"{lead} n_Q n_K d_K")
        if mask is not None:
            yield Stage("scores_masked", scores, "masked(scores, mask)")
            last = "scores_masked"
        yield Stage("attention", scores, f"{last}.softmax(dim=-1)")
        yield Stage("out", f"{lead} n_Q d_V", "attention @ V", product=f"{lead} n_Q n_K d_V")

    return _plan("sdpa", sizes, stages(), dtype)


def mha(
    sizes: dict[str, int],
    *,
    dtype: str = "float32",
    self_attention: bool = True,
    mask: str | None = None,
    dropout: bool = False,
) -> Trace:
    """The steps of `attnscope.attention.mha.MultiHeadAttention.forward`.

    Args:
        sizes: `n_batch n_Q n_K d_feat n_head`; `d_head` follows.
        dtype: the inputs'.
        self_attention: K and V are Q itself; otherwise V is K.
        mask: the dims of a boolean mask, or None for no mask.
        dropout: attention weights are dropped: in training, at a rate above 0.

    Raises:
        SizeError: a size is not a positive whole number, or the heads do not divide d_feat.
        OptionError: an unknown dtype.
    """
    q_feat, k_feat = "n_batch n_Q d_feat", "n_batch n_K d_feat"
    q_split = "n_batch n_head n_Q d_head"
    scores, heads_last = "n_batch n_head n_Q n_K", "n_batch n_Q n_head d_head"
    last, weights = "scores", "attention"

    def projection(name: str, dims: str) -> Stage:
        return Stage(f"{name}_feat", dims, f"self.W_{name}({name})", product=f"{dims} n_head d_head")

    def split(name: str, n: str) -> Stage:
        how = f"{name}_feat.view(n_batch, {n}, n_head, d_head).transpose(1, 2)"
        layout = f"n_batch {n} n_head d_head"
        dims = f"n_batch n_head {n} d_head"
        return Stage(f"{name}_split", dims, how, view_of=f"{name}_feat", layout=layout)

    def stages() -> Iterator[Stage]:
        nonlocal last, weights
        yield Stage("Q", q_feat, INPUT)
        yield Stage("K", k_feat, INPUT, same_as="Q" if self_attention else None)
        yield Stage("V", k_feat, INPUT, same_as="Q" if self_attention else "K")
        if mask is not None:
            yield Stage("mask", mask, INPUT, dtype="bool")
        yield projection("Q", q_feat)
        yield projection("K", k_feat)
        yield projection("V", k_feat)
        yield split("Q", "n_Q")
        yield split("K", "n_K")
        yield split("V", "n_K")
        how = "Q_split @ K_split.mT * self.scale"
        yield Stage("scores", scores, how, product=f"{q_split} n_K")
        if mask is not None:
            yield Stage("scores_masked", scores, "masked(scores, mask)")
            last = "scores_masked"
        yield Stage("attention", scores, f"{last}.softmax(dim=-1)")
        if dropout:
            yield Stage("attention_drop", scores, "self.dropout(attention)")
            weights = "attention_drop"
        yield Stage("x_raw", q_split, f"{weights} @ V_split", product=f"{scores} d_head")
        how = "x_raw.transpose(1, 2).contiguous()"
        yield Stage("x_rsh1", heads_last, how, view_of="x_raw", layout=q_split, copied=True)
        yield Stage("x_rsh2", q_feat, "x_rsh1.view(n_batch, n_Q, d_feat)", view_of="x_rsh1")
        yield Stage("x", q_feat, "self.W_O(x_rsh2)", product=f"{q_feat} n_head d_head")

    check_sizes(sizes)
    if sizes["d_feat"] % sizes["n_head"]:
        raise heads_do_not_divide(sizes["d_feat"], sizes["n_head"])
    sizes = sizes | {"d_head": sizes["d_feat"] // sizes["n_head"]}
    return _plan("mha", sizes, stages(), dtype)


def check_sizes(sizes: dict[str, int]) -> None:
    """Raise a SizeError unless every size is a positive whole number."""
    for axis, size in sizes.items():
        if size < 1:
            raise SizeError(f"{axis} is {size}, but a size is a whole number from 1 up.")


def bytes_needed(plan: Trace) -> int:
    """The memory that running a plan takes at its peak, in bytes: a lower bound.

    Every step that owns its memory lives until the end, and the largest exists twice for a
    moment: dot products before and after they are scaled.
    """
    own = [step.bytes for step in plan.steps if not (step.view_of or step.same_as)]
    return sum(own) + max(own)


def label(trace: Trace, function: str) -> None:
    """Give a trace of the textbook its axes' names, and leave out the stages that did nothing.

    A trace of anything else, or of sizes that the contract does not know (inputs that
    broadcast against each other, say), is left as it is.

    Args:
        trace: as it was recorded.
        function: the traced function's module and qualified name.
    """
    if function not in _PLANS or not trace.steps:
        return
    trace.steps = _without_idle_stages(step for step in trace.steps if step.depth == 0)
    steps = {step.name: step for step in trace.steps}
    if not {"Q", "K", "V"} <= set(steps) or not all(prod(step.shape) for step in trace.steps):
        return  # tensors without elements, or none at all
    plan = _PLANS[function](steps)
    if plan is None or len(plan.steps) != len(trace.steps):
        return
    pairs = list(zip(trace.steps, plan.steps, strict=True))
    if all((real.name, real.shape) == (said.name, said.shape) for real, said in pairs):
        trace.title, trace.sizes = plan.title, plan.sizes
        for real, said in pairs:
            real.dims = said.dims


def check(trace: Trace, plan: Trace) -> None:
    """Make sure that a real run made the steps that its contract says.

    What depends on the kernels that torch picked (`fresh_bytes`), the source (`line`) and the
    values (`stats`) is not in the contract.

    Raises:
        AssertionError: they differ, and one of the two is wrong.
    """
    real, said = _declared(trace), _declared(plan)
    if real != said:
        lines = ["the run is not what its contract says:"]
        lines += [f"  ran       {row}" for row in real if row not in said]
        lines += [f"  contract  {row}" for row in said if row not in real]
        raise AssertionError("\n".join(lines))


def _declared(trace: Trace) -> list[tuple]:
    return [
        (s.name, s.dims, s.shape, s.dtype, s.how, s.bytes, s.flops, s.contiguous, s.view_of, s.same_as)
        for s in trace.steps
    ]


def _without_idle_stages(steps: Iterable[Step]) -> list[Step]:
    """Drop the optional stages that returned their input, and name that input in what follows."""
    kept: list[Step] = []
    idle: dict[str, str] = {}
    for step in steps:
        for name, source in idle.items():
            step.how = re.sub(rf"\b{name}\b", source, step.how)
        if step.name in OPTIONAL and step.same_as:
            idle[step.name] = step.same_as
        else:
            kept.append(step)
    return kept


def _plan(title: str, sizes: dict[str, int], stages: Iterable[Stage], dtype: str) -> Trace:
    check_sizes(sizes)
    if dtype not in DTYPES:
        raise OptionError(
            f"{dtype!r} is not a dtype that attention runs in.", hint=f"--dtype {', '.join(DTYPES)}"
        )
    plan = Trace(title=title, sizes=sizes, dtype=dtype)
    owners: dict[str, str] = {}
    for stage in stages:
        step = _step(stage, sizes, stage.dtype or dtype)
        source = step.view_of or step.same_as
        owners[step.name] = owners[source] if source else step.name
        if step.view_of:
            step.view_of = owners[step.name]
        plan.steps.append(step)
    return plan


def _step(stage: Stage, sizes: dict[str, int], dtype: str) -> Step:
    dims = tuple(stage.dims.split())
    # A layout is contiguous when its axes come in the order of the dims; axes of one do not count.
    contiguous = [a for a in (stage.layout or stage.dims).split() if sizes.get(a) != 1] == [
        a for a in dims if sizes.get(a) != 1
    ]
    own = stage.copied and not contiguous
    shape = tuple(1 if axis == "1" else sizes[axis] for axis in dims)
    return Step(
        name=stage.name,
        dims=dims,
        shape=shape,
        dtype=dtype,
        how=stage.how,
        bytes=prod(shape) * DTYPES.get(dtype, 1),
        flops=2 * prod(sizes[axis] for axis in stage.product.split()) if stage.product else 0,
        contiguous=contiguous or own,
        view_of=None if own else stage.view_of,
        same_as=stage.same_as,
    )


# A recorded trace -> the plan for its inputs' sizes, or None if the contract has none for them.


def _plan_for_sdpa(steps: dict[str, Step]) -> Trace | None:
    Q, K, V = (steps[name].shape for name in "QKV")
    if not 2 <= len(Q) <= 4 or not len(Q) == len(K) == len(V):
        return None
    lead = ("n_batch", "n_head")[: len(Q) - 2]
    sizes = dict(zip(lead, Q[:-2], strict=True))
    sizes |= {"n_Q": Q[-2], "n_K": K[-2], "d_K": Q[-1], "d_V": V[-1]}
    return sdpa(sizes, mask=_mask_dims(steps, sizes, (*lead, "n_Q", "n_K")))


def _plan_for_mha(steps: dict[str, Step]) -> Trace | None:
    if "Q_split" not in steps:
        return None
    n_batch, n_Q, d_feat = steps["Q"].shape
    n_head = steps["Q_split"].shape[1]
    sizes = {"n_batch": n_batch, "n_Q": n_Q, "n_K": steps["K"].shape[1]}
    sizes |= {"d_feat": d_feat, "n_head": n_head}
    mask = _mask_dims(steps, sizes, ("n_batch", "n_head", "n_Q", "n_K"))
    return mha(sizes, mask=mask, dropout="attention_drop" in steps)


def _mask_dims(steps: dict[str, Step], sizes: dict[str, int], axes: tuple[str, ...]) -> str | None:
    """The mask's axes: the last of the scores', and 1 where it broadcasts."""
    if "mask" not in steps:
        return None
    shape = steps["mask"].shape[-len(axes) :]  # a wider mask will not match the plan
    aligned = zip(axes[len(axes) - len(shape) :], shape, strict=True)
    return " ".join("1" if size == 1 != sizes[axis] else axis for axis, size in aligned)


_PLANS: dict[str, Callable[[dict[str, Step]], Trace | None]] = {
    "attnscope.attention.sdpa.sdpa": _plan_for_sdpa,
    "attnscope.attention.mha.MultiHeadAttention.forward": _plan_for_mha,
}
