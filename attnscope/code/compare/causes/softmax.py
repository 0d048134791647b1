"""Other softmaxes: over another axis, in another precision, with a sink, followed by dropout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis
from attnscope.code.compare.causes.terms import words_of
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


NO_SINK = "no sink"

AXES = ("sequences (n_batch)", "heads (n_head)", "queries (n_Q)", "keys (n_K)")


def several_axes(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side divides by a sum over keys and another axis, such as that of heads."""
    if not case.n_head:
        return
    scores = case.of_wrong("scores_masked").unflatten(0, (-1, case.n_head))
    exponentials = (scores - scores.max()).exp()
    sizes = exponentials.shape
    for n in (2, 3, 4):
        for axes in combinations(range(4), n):
            if 3 not in axes or any(sizes[axis] == 1 for axis in axes):
                continue
            others = " and ".join(AXES[axis] for axis in axes[:-1])
            text = (
                f"{case.wrong} divides by a sum over keys and {others}: its weights sum to one only over"
                f" all of these; {case.right} divides by a sum over keys"
            )
            predicted = (exponentials / exponentials.sum(axes, keepdim=True)).flatten(0, 1)
            yield Hypothesis("normalised over several axes", text, predicted, case.of_wrong())


def other_groups(case: Case) -> Iterator[Hypothesis]:
    """Suppose that the softmax of one side's edges runs over other groups of edges than the other's."""
    if case.wrong == "a":  # the same hypothesis
        return
    predicted = torch.cat([_over_groups(case, side) for side in "ab"])
    in_a, in_b = (words_of(case.state(side).anatomy.roles["groups"].value) for side in "ab")
    if in_a != in_b:
        text = f"b's softmax runs over the edges of one {in_b}, a's over those of one {in_a}"
        observed = torch.cat([case.of("a"), case.of("b")])
        yield Hypothesis("softmax over other groups", text, predicted, observed)


def _over_groups(case: Case, side: str) -> torch.Tensor:
    """Compute the softmax of a side's scores over the edges of each of its groups."""
    scores = case.of(side, "edge_scores")
    groups = case.state(side).anatomy.roles["groups"].value.tensor
    groups = groups if len(groups) == len(scores) else groups.movedim(-1, 0)  # heads may come first
    index = groups.reshape(len(scores), -1)[:, :1].expand_as(scores)
    exponentials = (scores - scores.max()).exp()
    totals = torch.zeros(int(index.max()) + 1, scores.shape[1]).to(scores)
    return exponentials / totals.scatter_add(0, index, exponentials).gather(0, index)


def summed_over_heads(case: Case) -> Iterator[Hypothesis]:
    """Suppose that the normaliser of one side's linear attention is the sum over all heads."""
    if case.n_head:
        sums = case.of_right().unflatten(0, (-1, case.n_head)).sum(1, keepdim=True)
        text = f"{case.wrong} divides each head by the sum of all heads, {case.right} by its own"
        predicted = sums.expand(-1, case.n_head, -1).flatten(0, 1)
        yield Hypothesis("normaliser summed over heads", text, predicted, case.of_wrong())


def sink(case: Case) -> Iterator[Hypothesis]:
    """Suppose that the two treat a sink otherwise: none, one in the softmax, or one outside of it.

    A sink of logit z in the softmax leaves Z / (Z + exp(z)) of the weight, where Z is the sum of the
    exponentials; outside of it, a part that no score changes.
    Source: OpenAI 2025, gpt-oss; Xiao et al. 2024, "Efficient Streaming Language Models with Attention
    Sinks".
    """
    right, wrong = (_share_of_sink(case, side) for side in (case.right, case.wrong))
    if right is None or wrong is None or right[0] == wrong[0] == NO_SINK:
        return
    (in_right, share_right), (in_wrong, share_wrong) = right, wrong
    name, text = "sink in another place", f"{case.wrong} has {in_wrong}, {case.right} {in_right}"
    if NO_SINK in (in_right, in_wrong):
        one, other = (
            ("sink missing", "sink added") if in_wrong == NO_SINK else ("sink added", "sink missing")
        )
        name = case.named(one, other)
    elif in_right == in_wrong:
        name, text = "another sink", f"both have {in_right}, with other numbers"
    plain = case.of_wrong("scores_masked").softmax(-1)
    of_right, of_wrong = (_final(case, side) for side in (case.right, case.wrong))
    predicted = torch.cat([plain * share for share in (share_right, share_wrong)])
    own = case.of_wrong()
    corrected = torch.where(of_wrong == 0, own, of_right * own / of_wrong)  # before its later factors
    where = {side: case.state(side).role("attention_drop").value for side in "ab"}
    yield Hypothesis(name, text, predicted, torch.cat([of_right, of_wrong]), corrected, where=where)


def _final(case: Case, side: str) -> torch.Tensor:
    """Return a side's weights as they are multiplied by V."""
    return case.state(side)["attention_drop"].double()


def _share_of_sink(case: Case, side: str) -> tuple[str, torch.Tensor] | None:
    """Find what leaves a side's rows a part of the weight: in words, with that part, `lead n_Q 1`.

    Return None if its weights are not those of the softmax times such a part.
    """
    scores, weights = case.of(side, "scores_masked"), _final(case, side)
    sums = weights.sum(-1, keepdim=True)
    if not case.is_same(scores.softmax(-1) * sums, weights) or not bool((sums > 0).all()):
        return None
    if case.is_same(sums, torch.ones_like(sums)):
        return NO_SINK, torch.ones_like(sums)
    if bool((sums >= 1).any()):
        return None
    found = _sink_of(case, scores, sums)
    if found is not None:
        return found
    # The sink's logit may have been subtracted from the scores; those of the other side are tried.
    others = case.of("b" if side == "a" else "a", "scores_masked")
    if not case.is_same(others.softmax(-1) * sums, weights):
        return None
    return _sink_of(case, others, sums)


def _sink_of(case: Case, scores: torch.Tensor, sums: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """Find the sink that leaves rows of scores such sums of weights, if it is one number a head."""
    least = scores.max(-1, keepdim=True).values
    kinds = {  # with Z, as it counts there
        "a sink in its softmax": scores.exp().sum(-1, keepdim=True),
        "a sink outside of its softmax, which takes the same part of every query": torch.ones_like(sums),
        "a sink whose logit is not reduced by the largest score, as the scores are": (
            (scores - least).exp().sum(-1, keepdim=True)
        ),
    }
    for words, total in kinds.items():
        extra = ((1 / sums - 1) * total).unflatten(0, (-1, case.n_head or len(sums)))  # exp(z)
        of_head = extra[:1, :, :1]
        if bool(((extra - of_head).abs() <= EXACT * of_head).all()):
            return words, total / (total + of_head.expand_as(extra).flatten(0, 1))
    return None
