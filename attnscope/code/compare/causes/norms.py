"""Norms of queries and keys: missing, after their rotation, or over other features."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis
from attnscope.code.compare.causes.rotation_angles import rotation_between
from attnscope.observe.operators.anatomy import Role


def norm_missing(case: Case) -> Iterator[Hypothesis]:
    """Suppose that only one side normalises queries or keys, before their rotation."""
    name = case.role[0]
    if not case.has_unrotated(name):
        return
    rotation = rotation_between(case.unrotated(case.wrong, name), case.of_wrong())
    if rotation is None:
        return
    before, stages = case.unrotated(case.right, name), case.state(case.right).stages(name)
    found = [(kind, each) for each in stages if (kind := norm_between(before, each)) is not None]
    if found:
        kind, stage = found[-1]  # with its weight
        text = f"{case.right} normalises {name} ({kind}), and {case.wrong} does not"
        words = case.named("norm missing", "norm added")
        yield Hypothesis(words, text, rotation.apply(stage.double()), case.of_right())


def norm_order(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side normalises queries or keys after their rotation, and the other before."""
    name = case.role[0]
    if not case.has_unrotated(name):
        return
    before, after = case.unrotated(case.right, name), case.of_right()
    for stage, exchanged in case.state(case.right).exchanged(name):
        stage, exchanged = stage.double(), exchanged.double()
        if norm_between(before, stage) and rotation_between(stage, after) is not None:
            order = ["after", "before"]
        elif rotation_between(before, stage) is not None and norm_between(stage, after):
            order = ["before", "after"]
        else:
            continue
        if not case.is_same(stage, before) and not case.is_same(stage, after):
            in_b, in_a = order if case.wrong == "b" else reversed(order)
            text = f"b normalises {name} {in_b} its rotary positions, a {in_a} them"
            yield Hypothesis(f"norm {in_b} the rotary positions", text, exchanged, case.of_wrong())


def norm_width(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side normalises each head, and the other side all heads together.

    Sources: Qwen team 2025, "Qwen3 Technical Report", for each head; OLMo team 2024, "2 OLMo 2 Furious",
    for all heads together.
    """
    name = case.role[0]
    if not case.n_head or not case.has_unrotated(name):
        return
    found = [_norm_of(case, side, name) for side in (case.right, case.wrong)]
    if found[0] is None or found[1] is None or found[0][:2] == found[1][:2]:
        return
    (kind, width, right), (kind_of_wrong, width_of_wrong, wrong) = found[0], found[1]
    state = case.state(case.wrong)
    tensor = case.state(case.right).arranged(right)
    values = {wrong.value: wrong.replaced(state.own_order(tensor))}
    predicted = state.corrected(values, case.role)
    if predicted is None or width == width_of_wrong:
        return
    text = (
        f"{case.wrong} normalises {name} over {width_of_wrong} ({kind_of_wrong}),"
        f" {case.right} over {width} ({kind})"
    )
    where = {case.right: right.value, case.wrong: wrong.value}
    yield Hypothesis("norm over other features", text, predicted.double(), case.of_right(), where=where)


def _norm_of(case: Case, side: str, name: str) -> tuple[str, str, Role] | None:
    """Find the norm of a side: its kind, over which features it runs, and its result; None if none."""
    state = case.state(side)
    before = case.unrotated(side, name)
    width = before.shape[-1]

    stages = [(each, state.arranged(each).double()) for each in state.stage_roles(name)]
    for _, after in reversed(stages):  # with its weight
        if case.is_same(before, after):
            continue
        stage = next(each for each, tensor in stages if case.is_same(tensor, after))
        if (kind := norm_between(before, after)) is not None:
            return kind, f"the {width} features of each head", stage
        if (kind := norm_between(case.whole(before), case.whole(after))) is not None:
            return kind, "the features of all heads together", stage
    return None


def norm_between(before: torch.Tensor, after: torch.Tensor) -> str | None:
    """Find the norm that turns one tensor into another, up to its weight and bias; None if none does."""
    before, after = before.double(), after.double()
    centred = before - before.mean(-1, keepdim=True)
    for name, tensor in (("RMSNorm", before), ("LayerNorm", centred)):
        scaled = tensor / tensor.pow(2).mean(-1, keepdim=True).sqrt()
        mean, mean_after = scaled.mean((0, 1)), after.mean((0, 1))
        if name == "RMSNorm":  # has no bias
            mean, mean_after = torch.zeros_like(mean), torch.zeros_like(mean)
        weight = ((after - mean_after) * (scaled - mean)).mean((0, 1))
        weight = weight / (scaled - mean).square().mean((0, 1))
        rest = after - mean_after - (scaled - mean) * weight
        if float(rest.abs().max()) <= 1e-3 * float(after.abs().max()):
            return name
    return None
