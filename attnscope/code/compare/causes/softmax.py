"""Other softmaxes: over another axis, in another precision, without a sink, followed by dropout."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis
from attnscope.code.pairs.rounding import EXACT
from attnscope.observe.operators.fused import dropout_of


def softmax_axis(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side's softmax runs over another axis than the keys."""
    scores, attention = case.of_wrong("scores_masked"), case.of_wrong()
    parts = scores.unflatten(0, (-1, case.n_head or 1))
    axes = {2: "queries (n_Q)"} | (
        {0: "sequences (n_batch)", 1: "heads (n_head)"} if case.n_head else {}
    )
    for axis, name in axes.items():
        text = f"{case.wrong}'s softmax runs over the {name}, not over the keys (n_K)"
        text += ": its columns sum to one" if axis == 2 else ""
        predicted = parts.softmax(axis).flatten(0, 1)
        yield Hypothesis("softmax over another axis", text, predicted, attention, scores.softmax(-1))


def softmax_precision(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side computes its softmax in a narrower dtype."""
    values = case.of_wrong()
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        rounded = values.to(dtype).to(torch.float64)
        is_near = torch.allclose(values, case.of_right(), rtol=0, atol=8 * torch.finfo(dtype).eps)
        if is_near and case.is_same(rounded, values):
            name = str(dtype).removeprefix("torch.")
            text = f"{case.wrong}'s softmax has the precision of {name}"
            yield Hypothesis("softmax in lower precision", text, rounded, values)


def weights_scaled(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side multiplies attention by a number."""
    plain, scaled = case.of_right(), case.of_wrong()
    factor = float((plain * scaled).sum() / (plain * plain).sum())
    if factor and case.is_same(plain.sum(-1), torch.ones_like(plain[..., 0])):
        yield Hypothesis(
            "attention scaled",
            f"{case.wrong} multiplies attention by {factor:.6g}: its rows no longer sum to one",
            plain * factor,
            scaled,
        )


def temperature(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side's softmax is one of scores that are multiplied by another number."""
    both = case.of_right(), case.of_wrong()
    if not all(bool((each > 0).all()) for each in both):
        return
    x, y = (each.log() - each.log().mean(-1, keepdim=True) for each in both)
    factor = float((x * y).sum() / (x * x).sum().clamp_min(1e-300))
    text = f"{case.wrong}'s softmax is one of the scores times {factor:.6g}"
    predicted = (case.of_wrong("scores_masked") * factor).softmax(-1)
    yield Hypothesis("another scale", text, predicted, case.of_wrong())


def dropout(case: Case) -> Iterator[Hypothesis]:
    """Suppose that dropout runs on one side: some weights are zero, and the others larger."""
    dropped, whole = case.of_wrong(), case.of_right()
    visible = whole > 0
    lost = (dropped == 0) & visible
    if not bool(lost.any()) or bool((lost == visible).all()):
        return
    kept = ~lost & visible
    factor = float((dropped[kept] / whole[kept]).median())
    if factor < 1 + EXACT:
        return
    p = 1 - 1 / factor
    which = "the weights" if bool(visible.all()) else "the weights of visible keys"
    share = f"{int(lost.sum()) / int(visible.sum()):.0%} of {which} are zero"
    text = f"{case.wrong} applies dropout (p = {p:.2g}) to attention: {share}"
    yield Hypothesis("dropout active", text, (whole * factor).masked_fill(lost, 0.0), dropped)


def fused_dropout(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side passes `dropout_p` to the fused kernel, which drops in any mode."""
    state = case.state(case.wrong)
    p = dropout_of(state.anatomy.fused)
    if not p:
        return
    weights = state["attention_drop"].double()
    without = weights @ state["V"].double()
    text = (
        f"{case.wrong} passes dropout_p={p:g} to scaled_dot_product_attention, which drops weights in"
        f" evaluation mode, too: dropout_p={p:g} if self.training else 0.0"
    )
    yield Hypothesis("dropout active", text, without, case.of_right())
