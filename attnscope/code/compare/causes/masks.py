"""Other masks: missing, inverted, shifted, aligned otherwise, added as numbers, or filled otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis
from attnscope.code.compare.divergence.first_difference import HIDDEN, hidden_keys
from attnscope.code.pairs.rounding import EXACT


def _added_mask(case: Case, of: str) -> torch.Tensor:
    """Compute what a mask adds to scores; -inf where it replaces them by a number that hides."""
    return case.of(of, "scores_masked") - case.of(of, "scores")


def _bias(case: Case, of: str) -> torch.Tensor:
    """Compute what a side adds to the scores of the keys that it shows."""
    return _added_mask(case, of).masked_fill(hides(case, of), 0.0)


def hides(case: Case, of: str) -> torch.Tensor:
    return hidden_keys(case.state(of))


def pattern(hidden: torch.Tensor) -> torch.Tensor | None:
    """Return which keys each query sees, `n_Q n_K`; None if that differs between heads or sequences."""
    return ~hidden[0] if bool((hidden == hidden[:1]).all()) else None


def _filled(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(hidden, float("-inf"))


def mask_missing(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side does not mask, and the other does."""
    right, wrong = case.right, case.wrong
    hidden = hides(case, right)
    if not bool((_added_mask(case, wrong) == 0).all()) or not bool(hidden.any()):
        return
    words = "" if _causal_offset(hidden) is None else ", as a causal mask does"
    name = case.named("mask missing", "mask added")
    text = f"{wrong} has no mask: {right} hides {hidden.double().mean():.0%} of the keys{words}"
    late = _masked_late(case, wrong, hidden)
    if late is not None:
        name = "mask after the softmax"
        text = (
            f"{wrong} masks after the softmax{late}, {right} before: {wrong}'s weights do not sum to one"
        )
    predicted = _filled(case.of_wrong("scores"), hidden)
    yield Hypothesis(name, text, predicted, _filled(case.of_right(), hidden))


def _masked_late(case: Case, of: str, hidden: torch.Tensor) -> str | None:
    """Return the line where a side sets the weights of hidden keys to 0; None if it does not."""
    state = case.state(of)
    if "attention_drop" not in state.anatomy.roles:
        return None
    weights = state["attention_drop"]
    if weights.shape != hidden.shape or bool(weights[hidden].any()):
        return None
    if bool(((weights.double().sum(-1) - 1).abs() < 1e-6).all()):  # divided by their sum again
        return None
    place = state.role("attention_drop").value.place
    return "" if place is None else f" (line {place.line})"


def mask_inverted(case: Case) -> Iterator[Hypothesis]:
    """Suppose that each side hides what the other shows.

    The mask that leaves some query no key is the wrong one.
    """
    if bool(hides(case, case.right).all(-1).any()) and not bool(hides(case, case.wrong).all(-1).any()):
        return
    hidden_a, hidden_b = hides(case, "a"), hides(case, "b")
    if hidden_b.any() and hidden_a.any() and bool((hidden_b == ~hidden_a).all()):
        text = "b's mask is inverted: it hides the keys that a shows, and shows those that a hides"
        yield Hypothesis("mask inverted", text, *without_masks(case))


def _causal_offset(hidden: torch.Tensor) -> int | None:
    """Return o if each query i sees exactly the keys up to i + o; None if not."""
    visible = pattern(hidden)
    if visible is None:
        return None
    n_Q, n_K = visible.shape
    for offset in range(-n_Q, n_K + 1):
        expected = torch.ones(n_Q, n_K, dtype=torch.bool).tril(offset)
        if bool((visible == expected).all()) and not bool(expected.all()):
            return offset
    return None


def causal_offset(case: Case) -> Iterator[Hypothesis]:
    """Suppose that both masks are causal, and aligned otherwise."""
    hidden_a, hidden_b = hides(case, "a"), hides(case, "b")
    in_a, in_b = _causal_offset(hidden_a), _causal_offset(hidden_b)
    if in_a is None or in_b is None or in_a == in_b:
        return
    n_Q, n_K = hidden_a.shape[-2:]
    names = {0: "top-left", n_K - n_Q: "bottom-right"}
    kind = "causal mask shifted"
    if n_Q != n_K and in_a in names and in_b in names:
        kind = "causal mask aligned otherwise"
        text = (
            f"b aligns its causal mask {names[in_b]}, a {names[in_a]}: with {n_Q} queries and {n_K}"
            f" keys, query 0 sees {_seen(in_b, n_K)} in b and {_seen(in_a, n_K)} in a"
        )
    else:
        n = in_b - in_a
        text = (
            f"b's causal mask is shifted by {n:+d}: query i sees keys up to {_position(in_b)} in b,"
            f" and up to {_position(in_a)} in a"
        )
    yield Hypothesis(kind, text, *without_masks(case))


def without_masks(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the visible scores of both sides, as they would be if only their masks differed, and are.

    The scores of keys that both show are then equal, whatever else both do to them. If there are none,
    each side's are its own scores with nothing but its mask applied.
    """
    hidden = hides(case, "a") | hides(case, "b")
    if not bool(hidden.all()):
        return _filled(case.of("a"), hidden), _filled(case.of("b"), hidden)
    plain = [_filled(case.of(side, "scores"), hides(case, side)) for side in "ab"]
    masked = [_filled(case.of(side), hides(case, side)) for side in "ab"]
    return torch.cat(plain), torch.cat(masked)


def other_mask(case: Case) -> Iterator[Hypothesis]:
    """Suppose that the two hide other keys."""
    hidden_a, hidden_b = hides(case, "a"), hides(case, "b")
    more, fewer = hidden_b & ~hidden_a, hidden_a & ~hidden_b
    parts = []
    for which, of, words in (
        (more, ~hidden_a, "b hides {} of the keys that a shows"),
        (fewer, hidden_a, "b shows {} of the keys that a hides"),
    ):
        if bool(which.any()):
            _, query, key = (int(each) for each in which.nonzero()[0])
            share = f"{int(which.sum()) / int(of.sum()):.0%}"
            parts.append(words.format(share) + f" (first key {key} of query {query})")
    if not parts:
        return
    one, two = (_window(each) for each in (hidden_a, hidden_b))
    if one != two and (one or two):
        parts.append(f"b has {two or 'no window'}, a {one or 'no window'}")
    yield Hypothesis("another mask", "; ".join(parts), *without_masks(case))


def _window(hidden: torch.Tensor) -> str | None:
    """Describe a mask in which each query sees only the keys next to its own; None for another mask."""
    n_Q, n_K = hidden.shape[-2:]
    distance = torch.arange(n_Q)[:, None] + (n_K - n_Q) - torch.arange(n_K)
    visible = pattern(hidden)
    if visible is None or not bool(visible.any()):
        return None
    nearest, furthest = (int(each) for each in distance[visible].aminmax())
    expected = (distance < nearest) | (distance > furthest)
    if not bool((hidden[0] == expected).all()) or not bool((distance > furthest).any()):
        return None
    if nearest == 0:
        return f"a window of {furthest + 1} keys"
    return f"a window from {furthest} keys before a query to {-nearest} after it"


def _seen(offset: int, n_K: int) -> str:
    n = max(0, min(offset + 1, n_K))
    return f"{n} key{'s' * (n != 1)}"


def _position(offset: int) -> str:
    return f"i{offset:+d}" if offset else "i"


def mask_shifted(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side's mask is the other's, moved by one position along the keys."""
    right, wrong = hides(case, case.right), hides(case, case.wrong)
    if bool((right == wrong).all()):
        return
    for step in (1, -1):
        inner = slice(1, None) if step == 1 else slice(None, -1)
        moved, own = right.roll(step, -1)[..., inner], wrong[..., inner]
        if bool(moved.any()) and bool((moved == own).all()):
            text = f"{case.wrong}'s mask is {case.right}'s, moved by {step:+d} along the keys"
            yield Hypothesis("mask shifted", text, *without_masks(case))


def added_as_numbers(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side adds its boolean mask to the scores, as 0 and 1."""
    scores, masked = case.of_wrong("scores"), case.of_wrong()
    ones = (masked - scores - 1).abs() < EXACT
    if not bool(ones.any()):
        return
    visible = float((ones == ~hides(case, case.right)).double().mean()) >= 0.5  # more than is hidden
    words = "1 where a key may be seen" if visible else "1 where a key is hidden"
    text = f"{case.wrong} adds its mask as numbers, {words}, and 0 elsewhere: nothing is hidden"
    corrected = _filled(scores, ~ones if visible else ones)
    yield Hypothesis("boolean mask added", text, scores + ones, masked, corrected)


def multiplied(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side multiplies its scores by the mask."""
    scores, masked = case.of_wrong("scores"), case.of_wrong()
    zeros = (masked == 0) & (scores != 0)
    if bool(zeros.any()):
        text = f"{case.wrong} multiplies its scores by the mask: a score of 0 hides nothing"
        corrected = _filled(scores, zeros)
        yield Hypothesis("mask multiplied", text, scores.masked_fill(zeros, 0.0), masked, corrected)


def finite_fill(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side gives hidden keys another number, which may not hide them."""
    wrong, masked, scores = case.wrong, case.of_wrong(), case.of_wrong("scores")
    hidden = hides(case, case.right)
    changed = masked != scores
    if not bool(changed.any()) or not bool(hidden.any()):
        return
    values, usual = masked[changed].unique(), case.of_right()[hidden].unique()
    matters = bool((values >= HIDDEN).all()) or bool((changed == hidden).all())
    if matters and values.numel() == 1 and usual.numel() == 1 and values != usual:
        number = float(values)
        numbers = f"{number:g}, {case.right} {float(usual):g}"
        text = f"{wrong} gives hidden keys the score {numbers}{_blind(hidden)}"
        corrected = scores.masked_fill(changed, float(usual))
        yield Hypothesis("another fill", text, scores.masked_fill(changed, number), masked, corrected)
    added = (masked - scores)[changed]
    if (
        bool((added < 0).all())
        and bool((added >= HIDDEN).all())
        and bool((added - added[0]).abs().max() < EXACT * added[0].abs())
    ):
        number = float(added[0])
        text = f"{wrong} adds {number:g} to the scores of hidden keys, which leaves them visible"
        corrected = scores.masked_fill(changed, float("-inf"))
        yield Hypothesis("another fill", text, scores + number * changed, masked, corrected)


def _blind(hidden: torch.Tensor) -> str:
    """Say how many queries see no key, where the number decides the weights."""
    n = int(hidden.all(-1).any(0).sum())
    if not n:
        return ""
    see = "query sees" if n == 1 else "queries see"
    return f"; {n} {see} no key at all, where this decides the weights"


def reversed_bias(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b adds the bias of key j and query i to the score of query j and key i."""
    hidden = hides(case, "a")
    n_Q, n_K = hidden.shape[-2:]
    if n_Q != n_K or bool((hidden != hides(case, "b")).any()):
        return
    added_a, added_b = (_bias(case, side) for side in "ab")
    if not bool(added_a.any()) or not bool(added_b.any()):
        return
    both = ~(hidden | hidden.mT)  # the scores whose bias is known in both directions
    differs = (added_a - added_b).abs() > EXACT
    if not bool((differs & both).any()) or 2 * int(both.sum()) < int((~hidden).sum()):
        return
    text = (
        "b's position bias is a's in the opposite direction: what a adds for query i and key j, b adds"
        " for query j and key i"
    )
    yield Hypothesis("position bias reversed", text, (added_a.mT * both), added_b * both)


def scaled_bias(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side adds the other's bias times one number, or one for each head.

    What differs between sequences is not a bias of positions: scores that are scaled, say.
    """
    hidden = hides(case, "a")
    if case.wrong == "a" or bool((hidden != hides(case, "b")).any()):  # for a, the same hypothesis
        return
    added_a, added_b = (_bias(case, side) for side in "ab")
    sequences = added_a.unflatten(0, (-1, case.n_head or 1))
    is_known = case.n_head is not None and case.n_batch > 1
    if not is_known or not case.is_same(sequences, sequences[:1].expand_as(sequences)):
        return
    squares = added_a.square().sum((-2, -1))
    if not bool((squares > 0).all()) or not bool(added_b.any()):
        return
    factors = (added_a * added_b).sum((-2, -1)) / squares
    of_heads = factors.unflatten(0, (-1, case.n_head or 1))
    if bool(((of_heads - of_heads[:1]).abs() > EXACT * factors.abs().max()).any()):
        return
    numbers = [f"{float(each):.4g}" for each in of_heads[0]]
    times = numbers[0] if len(set(numbers)) == 1 else f"{', '.join(numbers)} in its heads"
    text = f"what b adds to its scores is what a adds, times {times}"
    predicted = added_a * factors[:, None, None]
    yield Hypothesis("position bias scaled", text, predicted, added_b)


def added_bias(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side adds a bias that is the same for every sequence."""
    right, wrong = case.right, case.wrong
    n_head = case.n_head
    hidden = hides(case, right)
    if bool((hidden != hides(case, wrong)).any()):
        return
    parts = (case.of_wrong() - case.of_right()).masked_fill(hidden, 0.0).unflatten(0, (-1, n_head or 1))
    is_known = n_head is not None and case.n_batch > 1
    added = [_bias(case, side) for side in (right, wrong)]
    adds = [bool(each.any()) for each in added]
    kind = case.named("position bias added", "position bias missing")
    if adds == [False, True] and not is_known:  # one sequence does not show of what kind it is
        numbers = f"from {float(added[1].min()):.3g} to {float(added[1].max()):.3g}"
        text = f"{wrong} adds numbers {numbers} to its scores, and {right} does not"
        predicted = _filled(case.of_right("scores") + added[1], hidden)
        yield Hypothesis(kind, text, predicted, _filled(case.of_wrong(), hidden))
    elif adds == [False, True]:
        text = f"{wrong} adds a bias to the scores, the same for every sequence, and {right} does not"
        yield Hypothesis(kind, text, parts[:1].expand_as(parts), parts)
    elif all(adds) and is_known:
        text = "the two add different biases to the scores, the same for every sequence"
        yield Hypothesis("another position bias", text, parts[:1].expand_as(parts), parts)


def block_mask(case: Case) -> Iterator[Hypothesis]:
    """Suppose that the masks of both sides are of blocks, or one is, and that they are others.

    Sources: Yuan et al. 2025, "Native Sparse Attention", section 3.3.1, for summaries of blocks; Arriola
    et al. 2025, "Block Diffusion", section 3, for blocks.
    """
    right, wrong = (hides(case, side) for side in (case.right, case.wrong))
    words = [_summaries(each) or _blocks(each) for each in (right, wrong)]
    if None in words or words[0] == words[1] or not any("block" in str(each) for each in words):
        return
    text = f"in {case.wrong}, {words[1]}; in {case.right}, {words[0]}"
    yield Hypothesis("another mask of blocks", text, *without_masks(case))


def _summaries(hidden: torch.Tensor) -> str | None:
    """Say from which query on each of few keys is seen, if these are summaries of blocks of one size."""
    visible = pattern(hidden)
    if visible is None:
        return None
    n_Q, n_K = visible.shape
    first = (~visible).sum(0)  # of the queries that see a key
    expected = torch.arange(n_Q)[:, None] >= first
    reached = first[first < n_Q]  # the last blocks may never be seen
    steps = reached.diff()
    if n_K < 2 or n_K * 2 > n_Q or not bool((visible == expected).all()) or reached.numel() < 2:
        return None
    size = int(steps[-1])
    if size < 2 or not bool((steps[1:] == size).all()):
        return None
    offset = int(reached[-1]) - size * (reached.numel() - 1)
    ends = {0: "its first position", size - 1: "its last position", size: "the position after its last"}
    place = ends.get(offset, f"its position {offset}")
    return f"a query sees the summary of a block of {size} keys from {place} on"


def _blocks(hidden: torch.Tensor) -> str | None:
    """Say which blocks of keys a query sees, if the mask is one of blocks; or that it is causal."""
    visible = pattern(hidden)
    if visible is None or visible.shape[0] != visible.shape[1]:
        return None
    n = visible.shape[0]
    if bool(visible.all()):
        return "a query sees all keys"
    size = int(visible[0].sum())  # query 0 is in the first block
    if not size:
        return None
    block = torch.arange(n) // size
    own, earlier = block[:, None] == block, block[:, None] > block
    if bool((visible == (own | earlier)).all()):
        if size == 1:
            return "a query sees the keys up to its own"
        return f"a query sees its own block of {size} keys, and those before it"
    return f"a query sees its own block of {size} keys alone" if bool((visible == own).all()) else None
