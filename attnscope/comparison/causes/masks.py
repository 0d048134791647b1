"""Other masks: missing, inverted, shifted, aligned otherwise, added as numbers, or filled otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnscope.comparison.causes.case import EACH_WAY, Case, Hypothesis
from attnscope.comparison.divergence.first_difference import HIDDEN, hidden_keys
from attnscope.implementations.rounding import EXACT


def _added_mask(case: Case, of: str) -> torch.Tensor:
    """Compute what a mask adds to scores; -inf where it replaces them by a number that hides."""
    return case.of(of, "scores_masked") - case.of(of, "scores")


def _hides(case: Case, of: str) -> torch.Tensor:
    return hidden_keys(case.state(of))


def _filled(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(hidden, float("-inf"))


def mask_missing(case: Case) -> Iterator[Hypothesis]:
    """Suppose that only one side masks."""
    for one, other in EACH_WAY:
        if bool((_added_mask(case, other) == 0).all()):
            hidden = _hides(case, one)
            if not bool(hidden.any()):
                continue
            words = "" if _causal_offset(hidden) is None else ", as a causal mask does"
            share = f"{hidden.double().mean():.0%} of the keys"
            text = f"{other} has no mask: {one} hides {share}{words}"
            late = _masked_late(case, other, hidden)
            if late is not None:
                text = (
                    f"{other} masks after the softmax{late}, {one} before: {other}'s weights do not sum"
                    f" to one"
                )
            name = "mask missing" if other == "b" else "mask added"
            yield Hypothesis(
                name if late is None else "mask after the softmax",
                text,
                _filled(case.of(other, "scores"), hidden),
                _filled(case.of(one), hidden),
            )


def _masked_late(case: Case, of: str, hidden: torch.Tensor) -> str | None:
    """Return the line where a side sets the weights of hidden keys to 0; None if it does not."""
    state = case.state(of)
    weights = state.tensor("attention_drop")
    if weights is None or weights.shape != hidden.shape or bool(weights[hidden].any()):
        return None
    if bool(((weights.double().sum(-1) - 1).abs() < 1e-6).all()):  # divided by their sum again
        return None
    place = state.role("attention_drop").value.place
    return "" if place is None else f" (line {place.line})"


def mask_inverted(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b hides what a shows."""
    hidden_a, hidden_b = _hides(case, "a"), _hides(case, "b")
    if hidden_b.any() and hidden_a.any() and bool((hidden_b == ~hidden_a).all()):
        text = "b's mask is inverted: it hides the keys that a shows, and shows those that a hides"
        yield Hypothesis("mask inverted", text, *_without_masks(case))


def _causal_offset(hidden: torch.Tensor) -> int | None:
    """Return o if each query i sees exactly the keys up to i + o; None if not."""
    n_Q, n_K = hidden.shape[-2:]
    if not bool((hidden == hidden[:1]).all()):
        return None
    visible = ~hidden[0]
    for offset in range(-n_Q, n_K + 1):
        expected = torch.ones(n_Q, n_K, dtype=torch.bool).tril(offset)
        if bool((visible == expected).all()) and not bool(expected.all()):
            return offset
    return None


def causal_offset(case: Case) -> Iterator[Hypothesis]:
    """Suppose that both masks are causal, and aligned otherwise."""
    hidden_a, hidden_b = _hides(case, "a"), _hides(case, "b")
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
    yield Hypothesis(kind, text, *_without_masks(case))


def _without_masks(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the visible scores of both sides, as they are and with nothing but the masks applied."""
    plain = [_filled(case.of(side, "scores"), _hides(case, side)) for side in "ab"]
    masked = [_filled(case.of(side), _hides(case, side)) for side in "ab"]
    return torch.cat(plain), torch.cat(masked)


def other_mask(case: Case) -> Iterator[Hypothesis]:
    """Suppose that the two hide other keys."""
    hidden_a, hidden_b = _hides(case, "a"), _hides(case, "b")
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
    windows = [_window(each) for each in (hidden_a, hidden_b)]
    if windows[0] != windows[1]:
        one, two = (f"a window of {each} keys" if each else "no window" for each in windows)
        parts.append(f"b has {two}, a {one}")
    yield Hypothesis("another mask", "; ".join(parts), *_without_masks(case))


def _window(hidden: torch.Tensor) -> int | None:
    """Return w if each query sees only the last w keys up to its own; None if not."""
    n_Q, n_K = hidden.shape[-2:]
    distance = torch.arange(n_Q)[:, None] + (n_K - n_Q) - torch.arange(n_K)
    if not bool((hidden == hidden[:1]).all()) or not bool((~hidden[0]).any()):
        return None
    furthest = int(distance[~hidden[0]].max())
    expected = (distance < 0) | (distance > furthest)
    return (
        furthest + 1
        if bool((hidden[0] == expected).all()) and bool((distance > furthest).any())
        else None
    )


def _seen(offset: int, n_K: int) -> str:
    n = max(0, min(offset + 1, n_K))
    return f"{n} key{'s' * (n != 1)}"


def _position(offset: int) -> str:
    return f"i{offset:+d}" if offset else "i"


def mask_shifted(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b's mask is a's, moved by one position along the keys."""
    hidden_a, hidden_b = _hides(case, "a"), _hides(case, "b")
    if bool((hidden_b == hidden_a).all()):
        return
    for step in (1, -1):
        inner = slice(1, None) if step == 1 else slice(None, -1)
        moved, own = hidden_a.roll(step, -1)[..., inner], hidden_b[..., inner]
        if bool(moved.any()) and bool((moved == own).all()):
            text = f"b's mask is a's, moved by {step:+d} along the keys"
            yield Hypothesis("mask shifted", text, *_without_masks(case))


def added_as_numbers(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b adds its boolean mask to the scores, as 0 and 1."""
    scores, b = case.of_b("scores"), case.of_b()
    ones = (b - scores - 1).abs() < EXACT
    if not bool(ones.any()):
        return
    visible = float((ones == ~_hides(case, "a")).double().mean()) >= 0.5  # more than what is hidden
    words = "1 where a key may be seen" if visible else "1 where a key is hidden"
    text = f"b adds its mask as numbers, {words}, and 0 elsewhere: nothing is hidden"
    corrected = _filled(scores, ~ones if visible else ones)
    yield Hypothesis("boolean mask added", text, scores + ones, b, corrected)


def multiplied(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side multiplies its scores by the mask."""
    for one in "ba":
        scores, masked = case.of(one, "scores"), case.of(one)
        zeros = (masked == 0) & (scores != 0)
        if not bool(zeros.any()) or (one == "a" and not torch.equal(zeros, _hides(case, "b"))):
            continue
        text = f"{one} multiplies its scores by the mask: a score of 0 hides nothing"
        corrected = _filled(scores, zeros) if one == "b" else None
        yield Hypothesis("mask multiplied", text, scores.masked_fill(zeros, 0.0), masked, corrected)


def finite_fill(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b gives hidden keys another number, which may not hide them."""
    a, b, scores = case.of_a(), case.of_b(), case.of_b("scores")
    hidden_a = _hides(case, "a")
    changed = b != scores
    if not bool(changed.any()) or not bool(hidden_a.any()):
        return
    values, in_a = b[changed].unique(), a[hidden_a].unique()
    matters = bool((values >= HIDDEN).all()) or bool((changed == hidden_a).all())
    if matters and values.numel() == 1 and in_a.numel() == 1 and values != in_a:
        number = float(values)
        text = f"b gives hidden keys the score {number:g}, a {float(in_a):g}{_blind(hidden_a)}"
        corrected = scores.masked_fill(changed, float(in_a))
        yield Hypothesis("another fill", text, scores.masked_fill(changed, number), b, corrected)
    added = (b - scores)[changed]
    if (
        bool((added < 0).all())
        and bool((added >= HIDDEN).all())
        and bool((added - added[0]).abs().max() < EXACT * added[0].abs())
    ):
        number = float(added[0])
        text = f"b adds {number:g} to the scores of hidden keys, which leaves them visible"
        corrected = scores.masked_fill(changed, float("-inf"))
        yield Hypothesis("another fill", text, scores + number * changed, b, corrected)


def _blind(hidden: torch.Tensor) -> str:
    """Say how many queries see no key, where the number decides the weights."""
    n = int(hidden.all(-1).any(0).sum())
    if not n:
        return ""
    see = "query sees" if n == 1 else "queries see"
    return f"; {n} {see} no key at all, where this decides the weights"


def _added_numbers(case: Case, one: str) -> Iterator[Hypothesis]:
    """Suppose that only one side adds numbers to scores; one sequence does not show of what kind."""
    hidden = _hides(case, one)
    added = _added_mask(case, one).masked_fill(hidden, 0.0)
    other = "b" if one == "a" else "a"
    least, most = float(added.min()), float(added.max())
    text = f"{one} adds numbers from {least:.3g} to {most:.3g} to its scores, and {other} does not"
    predicted = _filled(case.of(other, "scores") + added, hidden)
    yield Hypothesis(_bias_kind(one), text, predicted, _filled(case.of(one), hidden))


def _bias_kind(one: str) -> str:
    return "position bias missing" if one == "a" else "position bias added"


def reversed_bias(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b adds the bias of key j and query i to the score of query j and key i."""
    hidden = _hides(case, "a")
    n_Q, n_K = hidden.shape[-2:]
    if n_Q != n_K or bool((hidden != _hides(case, "b")).any()):
        return
    added_a, added_b = (_added_mask(case, each).masked_fill(hidden, 0.0) for each in "ab")
    if not bool(added_a.any()) or not bool(added_b.any()):
        return
    both = ~(hidden | hidden.mT)  # the scores whose bias is known in both directions
    text = (
        "b's position bias is a's in the opposite direction: what a adds for query i and key j, b adds"
        " for query j and key i"
    )
    yield Hypothesis("position bias reversed", text, (added_a.mT * both), added_b * both)


def added_bias(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side adds a bias that is the same for every sequence."""
    difference = case.of_b() - case.of_a()
    n_head = case.n_head
    hidden = _hides(case, "a")
    if bool((hidden != _hides(case, "b")).any()):
        return
    parts = difference.masked_fill(hidden, 0.0).unflatten(0, (-1, n_head or 1))
    is_known = n_head is not None and case.n_batch > 1
    for one, other in EACH_WAY:
        if bool((_added_mask(case, other) == 0).all()):
            if not is_known:
                yield from _added_numbers(case, one)
                return
            text = f"{one} adds a bias to the scores, the same for every sequence, and {other} does not"
            yield Hypothesis(_bias_kind(one), text, parts[:1].expand_as(parts), parts)
            return
    if is_known:
        text = "the two add different biases to the scores, the same for every sequence"
        yield Hypothesis("another position bias", text, parts[:1].expand_as(parts), parts)
