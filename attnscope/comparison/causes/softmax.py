"""Other softmaxes: over another axis, in another precision, without a sink, followed by dropout."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnscope.comparison.causes.case import EACH_WAY, Case, Hypothesis
from attnscope.comparison.divergence.first_difference import require_tensor
from attnscope.implementations.rounding import EXACT
from attnscope.observe.operators.fused import dropout_of


def softmax_axis(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b's softmax runs over another axis than the keys."""
    scores, b = case.of_b("scores_masked"), case.of_b()
    yield Hypothesis(
        "softmax over another axis",
        "b's softmax runs over the queries (n_Q), not over the keys (n_K): its columns sum to one",
        scores.softmax(-2),
        b,
    )
    if case.n_head:
        parts = scores.unflatten(0, (-1, case.n_head))
        for axis, name in ((0, "sequences (n_batch)"), (1, "heads (n_head)")):
            yield Hypothesis(
                "softmax over another axis",
                f"b's softmax runs over the {name}, not over the keys (n_K)",
                parts.softmax(axis).flatten(0, 1),
                b,
            )


def softmax_precision(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side computes its softmax in a narrower dtype."""
    for other, one in EACH_WAY:
        values = case.of(one)
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            if torch.allclose(values, case.of(other), rtol=0, atol=8 * torch.finfo(dtype).eps):
                name = str(dtype).removeprefix("torch.")
                text = f"{one}'s softmax has the precision of {name}"
                rounded = values.to(dtype).to(torch.float64)
                yield Hypothesis("softmax in lower precision", text, rounded, values)


def sink(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side's softmax has a sink, which takes part of the weight."""
    for one, other in EACH_WAY:
        with_sink = case.of(one)
        sums = with_sink.sum(-1, keepdim=True)
        if bool((sums < 1 - EXACT).all()):
            text = (
                f"{one}'s rows sum to {float(sums.min()):.3g} to {float(sums.max()):.3g}: a sink takes"
                f" the rest of the weight, and {other} has none"
            )
            kind = "sink missing" if one == "a" else "sink added"
            yield Hypothesis(kind, text, with_sink / sums, case.of(other))


def weights_scaled(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b multiplies attention by a number."""
    a, b = case.of_a(), case.of_b()
    factor = float((a * b).sum() / (a * a).sum())
    if factor:
        yield Hypothesis(
            "attention scaled",
            f"b multiplies attention by {factor:.6g}: its rows no longer sum to one",
            a * factor,
            b,
        )


def temperature(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b's softmax is one of scores that are multiplied by another number."""
    a, b = case.of_a().clamp_min(1e-300).log(), case.of_b().clamp_min(1e-300).log()
    visible = (case.of_a() > 0) & (case.of_b() > 0)
    if not bool(visible.all()):
        return
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    factor = float((a * b).sum() / (a * a).sum().clamp_min(1e-300))
    text = f"b's softmax is one of the scores times {factor:.6g}"
    yield Hypothesis(
        "another scale", text, (case.of_b("scores_masked") * factor).softmax(-1), case.of_b()
    )


def dropout(case: Case) -> Iterator[Hypothesis]:
    """Suppose that dropout runs on one side: some weights are zero, and the others larger."""
    for other, one in EACH_WAY:
        dropped, whole = case.of(one), case.of(other)
        lost = (dropped == 0) & (whole > 0)
        if not bool(lost.any()) or bool(lost.all()):
            continue
        kept = ~lost & (whole > 0)
        factor = float((dropped[kept] / whole[kept]).median())
        if factor < 1 + EXACT:
            continue
        p = 1 - 1 / factor
        share = f"{lost.double().mean():.0%} of the weights are zero"
        text = f"{one} applies dropout (p = {p:.2g}) to attention: {share}"
        yield Hypothesis("dropout active", text, (whole * factor).masked_fill(lost, 0.0), dropped)


def fused_dropout(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side passes `dropout_p` to the fused kernel, which drops in any mode."""
    for other, one in EACH_WAY:
        state = case.state(one)
        p = dropout_of(state.anatomy.fused)
        if not p:
            continue
        weights = require_tensor(state, "attention_drop").double()
        without = weights @ require_tensor(state, "V").double()
        text = (
            f"{one} passes dropout_p={p:g} to scaled_dot_product_attention, which drops weights in"
            f" evaluation mode, too: dropout_p={p:g} if self.training else 0.0"
        )
        yield Hypothesis("dropout active", text, without, case.of(other))
