"""Other projections: a bias missing, a weight transposed, or the weights of another projection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis
from attnscope.code.compare.causes.rotation_angles import paired_otherwise
from attnscope.code.compare.divergence.first_difference import difference, numbers
from attnscope.code.compare.divergence.first_operation import first_between
from attnscope.observe.operators.projections import operand_of, received_by
from attnscope.observe.operators.tape import TorchCall, Value

OTHER_FEATURES = "features split otherwise"
"""The cause that is in the line of the split, not of the projection."""

NAMES = {"Q_feat": "Q", "K_feat": "K", "V_feat": "V", "x": "O"}


def bias_missing(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side adds a bias, and the other does not."""
    name = NAMES[case.role]
    own, without = case.projections(name)
    if own is None or own.bias is None or (without is not None and without.bias is not None):
        return
    predicted = case.of_wrong() + own.bias.tensor.double()[own.features]
    text = f"{case.right} adds a bias ({own.bias_name}) in the projection, and {case.wrong} does not"
    yield Hypothesis(case.named("bias missing", "bias added"), text, predicted, case.of_right())


def other_bias(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side adds the bias of another projection."""
    own, right = NAMES[case.role], case.right
    usual, wrongly = case.projections(own)
    if usual is None or wrongly is None or usual.bias is None or wrongly.bias is None:
        return
    bias = usual.bias.tensor.double()[usual.features]
    for other in "QKVO":
        rival = case.state(right).anatomy.projections.get(other)
        if other == own or rival is None or rival.bias is None:
            continue
        wrong = rival.bias.tensor.double()[rival.features]
        if wrong.shape == bias.shape:
            name = f"{rival.bias_name} in {right}"
            text = f"{case.wrong} adds the bias of {other} ({name}) in the projection of {own}"
            yield Hypothesis("another bias", text, case.of_right() - bias + wrong, case.of_wrong())


def output_projection_missing(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side returns the merged heads, without a projection."""
    projection, without = case.projections("O")
    merged, output = case.state(case.right).tensor("x_merged"), case.state(case.wrong).tensor("output")
    if projection is None or merged is None or output is None or without is not None:
        return
    weight = projection.weight.weight
    text = f"{case.wrong} returns the merged heads: {case.right} multiplies them by {weight}"
    kind = case.named("output projection missing", "output projection added")
    yield Hypothesis(kind, text, numbers(merged), numbers(output))


def weight_transposed(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side uses the transposed weight."""
    name = NAMES[case.role]
    one, other = case.projections(name)
    if one is None or other is None or (other.call.name == "linear" != one.call.name):
        return
    x = next((each.tensor for each in one.call.parents if not each.is_weight), None)
    if name == "O":
        x = case.state(case.wrong).tensor("x_merged")
    if x is None:
        return
    x = x.double().reshape(-1, x.shape[-1])
    weight = other.weight.tensor.double()
    if weight.ndim != 2 or weight.shape[0] != weight.shape[1] or weight.shape[0] != x.shape[-1]:
        return
    bias = 0.0 if other.bias is None else other.bias.tensor.double()
    wrong = case.of_wrong()
    for used, transposed in ((weight, ""), (weight.mT, ".T")):
        if torch.allclose((x @ used + bias)[:, other.features], wrong):
            right = (x @ used.mT + bias)[:, other.features]
            words = f"x @ {other.weight.weight}{transposed}"
            text = f"{case.wrong}'s weight is transposed: it computes {words}"
            yield Hypothesis("weight transposed", text, right, case.of_right())


def other_projection(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side uses the weights of another projection."""
    own = NAMES[case.role]
    usual, wrong = (case.state(each).anatomy for each in (case.right, case.wrong))
    projection, role = wrong.projections.get(own), wrong.roles.get(case.role)
    if projection is None or role is None or role.elements is None:
        return
    tokens = role.elements[:, 0] // projection.out.tensor.shape[-1]
    for other in "QKV":
        rival = usual.projections.get(other)
        if other == own or rival is None or not _is_alike(projection.call, rival.call):
            continue
        if rival.features.shape != projection.features.shape:
            continue
        text = f"{case.wrong}'s {own} is projected with W_{other} of {case.right}"
        is_swapped = {own, other} == {"Q", "K"} and _differs(case, f"{other}_feat")
        kind = "Q and K swapped" if is_swapped else "another projection"
        pairs = zip(projection.call.parents[1:], rival.call.parents[1:], strict=True)
        replaced = {weight: wrong.tensor for weight, wrong in pairs}
        [out] = projection.call.run(lambda value: replaced.get(value, value.tensor))  # noqa: B023
        predicted = out.double().flatten(0, -2)[tokens][:, rival.features]
        yield Hypothesis(kind, text, predicted, case.of_wrong())


def _differs(case: Case, role: str) -> bool:
    """Check whether b's tensor, before any correction, differs from a's."""
    roles = [side.anatomy.roles.get(role) for side in (case.a, case.b)]
    one, two = (None if each is None else each.tensor.double() for each in roles)
    return one is None or two is None or not difference(one, two).is_equal


def other_input(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b projects something else than a, such as its input after a norm."""
    name = NAMES[case.role]
    in_a, in_b = case.a.anatomy.projections.get(name), case.b.anatomy.projections.get(name)
    if name == "O" or in_a is None or in_b is None:
        return
    roles = [each.anatomy.roles[case.role].elements for each in (case.a, case.b)]
    tokens_a, tokens_b = (
        None if each is None else each[:, 0] // projection.out.tensor.shape[-1]
        for each, projection in zip(roles, (in_a, in_b), strict=True)
    )
    own, other = received_by(in_a), received_by(in_b).tensor.flatten(0, -2)
    rows = own.tensor.flatten(0, -2).clone()
    if tokens_a is None or tokens_b is None or rows.shape != other.shape or rows.ndim != 2:
        return
    if tokens_a.shape != tokens_b.shape or torch.equal(rows[tokens_a], other[tokens_b]):
        return
    rows[tokens_a] = other[tokens_b].to(rows.dtype)
    replaced = rows.reshape(own.tensor.shape)
    [out] = in_a.call.run(lambda value: replaced if value is own else value.tensor)
    one, two = (operand_of(each) for each in (in_a, in_b))
    predicted = out.double().flatten(0, -2)[tokens_a][:, in_a.features]
    if torch.equal(one.value.tensor, two.value.tensor):
        yield from _other_order(case, name, predicted, (own, received_by(in_b)))
        return
    text = f"b projects {name} from {two}, a from {one}"
    yield Hypothesis("another input", text, predicted, case.of("b"))


def _other_order(
    case: Case, name: str, predicted: torch.Tensor, inputs: tuple[Value, Value]
) -> Iterator[Hypothesis]:
    """Suppose that b has the tokens of a's projection in another order.

    `predicted` is what a's projection returns for the tokens in b's order. The order changes where the
    inputs of both projections begin to differ.
    """
    n = case.of("a", name).shape[1]
    a, b = (each.unflatten(0, (-1, n)) for each in (case.of("a"), case.of("b")))
    kind, text = "tokens in another order", f"b has the tokens of {name} in another order than a"
    for step in (1, -1):
        if case.is_same(a.roll(step, 1), b):
            kind = f"{name} one position {'late' if step == 1 else 'early'}"
            text = f"position i of b's {name} is position i{-step:+d} of a's, around its ends"
    begin = first_between(case.a, case.b, inputs, case.tolerance)
    where = {} if begin is None else {"a": begin.a, "b": begin.b}
    yield Hypothesis(kind, text, predicted, case.of("b"), where=where)


def one_position_off(case: Case) -> Iterator[Hypothesis]:
    """Suppose that Q, K or V of one side is the other's, one position later, and begins with zeros."""
    name = case.role[0]
    late = case.of_right(name).roll(1, 1)
    if late.shape[1] < 2:
        return
    late[:, :1] = 0.0
    text = f"position i of {case.wrong}'s {name} is position i-1 of {case.right}'s, and the first is 0"
    yield Hypothesis(f"{name} one position late", text, late, case.of_wrong(name))


def other_features(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b takes other features of the output of one and the same projection."""
    name = NAMES[case.role]
    in_a, in_b = case.a.anatomy.projections.get(name), case.b.anatomy.projections.get(name)
    role = case.b.anatomy.roles[case.role]
    if name == "O" or in_a is None or in_b is None or role.elements is None:
        return
    whole_a, whole_b = (each.out.tensor.double() for each in (in_a, in_b))
    if torch.equal(in_a.features, in_b.features) or not case.is_same(whole_a, whole_b):
        return
    width = whole_b.shape[-1]
    of_a, of_b = (_ranges(each.features.tolist()) for each in (in_a, in_b))
    text = f"of the {width} features of one projection, b takes {of_b} for {name}, and a {of_a}"
    predicted = whole_a.flatten(0, -2)[role.elements[:, 0] // width][:, in_b.features]
    yield Hypothesis(OTHER_FEATURES, text, predicted, case.of("b"))


def rows_permuted(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side's rows of W_Q or W_K are the other's, for rotary pairs in another layout.

    transformers' checkpoints have pairs as two halves, the original ones of Llama side by side.
    """
    name, width = NAMES[case.role], case.of("a", "Q").shape[-1]
    right, wrong = case.of_right(), case.of_wrong()
    if name not in "QK" or right.shape != wrong.shape or right.shape[-1] % width or width % 2:
        return
    heads = right.unflatten(-1, (-1, width))
    for predicted, in_wrong, in_right in paired_otherwise(heads):
        text = (
            f"{case.wrong}'s rows of W_{name} are {case.right}'s, permuted within each head: rotary"
            f" pairs {in_wrong}, in {case.right} {in_right}"
        )
        yield Hypothesis("rows permuted", text, predicted.flatten(-2), wrong)


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers in ascending order as text.

    >>> _ranges([0, 1, 2, 6, 8, 9])
    '0–2, 6, 8–9'
    """
    starts = [i for i, each in enumerate(numbers) if i == 0 or each != numbers[i - 1] + 1]
    ends = [*(i - 1 for i in starts[1:]), len(numbers) - 1]
    parts = [
        f"{numbers[i]}–{numbers[j]}" if i < j else str(numbers[i])
        for i, j in zip(starts, ends, strict=True)
    ]
    return ", ".join(parts if len(parts) <= 4 else [*parts[:3], "…"])


def _is_alike(one: TorchCall, other: TorchCall) -> bool:
    """Check whether two calls of `linear` have weights of one shape."""
    if one.name != "linear" or other.name != "linear" or len(one.parents) != len(other.parents):
        return False
    pairs = zip(one.parents[1:], other.parents[1:], strict=True)
    return all(first.tensor.shape == second.tensor.shape for first, second in pairs)


def swapped(case: Case) -> Iterator[Hypothesis]:
    """Suppose that Q and K, or another two, are exchanged after their projections."""
    own = case.role[0]
    for other in "QKV":
        role = other + case.role[1:]
        tensor = case.state(case.right).tensor(role)
        if other != own and tensor is not None and tensor.shape == case.of_wrong().shape:
            kind = "Q and K swapped" if {own, other} == {"Q", "K"} else f"{own} and {other} swapped"
            text = f"{case.wrong}'s {own} is {case.right}'s {other}"
            yield Hypothesis(kind, text, tensor.double(), case.of_wrong())
