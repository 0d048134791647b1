"""Other heads: split in another order, shared in another order, or merged without moving them back."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis


def heads_split(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side splits the features into heads in another order."""
    name, right, wrong = case.role[0], case.right, case.wrong
    feat = case.state(right).tensor(f"{name}_feat")
    split = case.of_wrong()
    n_head = case.n_head
    if feat is None or not n_head:
        return
    n_batch, n, d = case.n_batch, split.shape[-2], split.shape[-1]
    if feat.numel() != split.numel() or split.shape[0] % n_batch:
        return
    n_head = split.shape[0] // n_batch
    features = feat.double().reshape(n_batch, n, -1)
    if not case.is_same(
        features.unflatten(-1, (n_head, d)).transpose(1, 2).flatten(0, 1), case.of_right()
    ):
        return
    yield Hypothesis(
        "heads split as (d_head, n_head)",
        f"{wrong} splits the {n_head * d} features of {name} into (d_head, n_head) = ({d}, {n_head}): a"
        f" head gets every {n_head}th feature; {right} splits them into (n_head, d_head)",
        features.unflatten(-1, (d, n_head)).permute(0, 3, 1, 2).flatten(0, 1),
        split,
    )
    yield Hypothesis(
        "heads split without moving the axis",
        f"{wrong} reshapes {name} directly to (n_batch, n_head, n, d_head): positions and features are"
        f" mixed; {right} splits the features, then moves the heads",
        features.reshape(n_batch * n_head, n, d),
        split,
    )


def groups(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side shares keys and values among query heads in another order."""
    right, wrong = case.of_right(), case.of_wrong()
    n_head = case.n_head
    if not n_head or right.shape != wrong.shape or right.shape[0] % n_head:
        return
    heads = right.unflatten(0, (-1, n_head))[0]
    distinct = [i for i in range(n_head) if not any(torch.equal(heads[i], heads[j]) for j in range(i))]
    n_kv = len(distinct)
    if n_kv in (1, n_head):
        return
    kinds = {
        "blockwise": [distinct[i * n_kv // n_head] for i in range(n_head)],
        "interleaved": [distinct[i % n_kv] for i in range(n_head)],
    }
    for words, order in kinds.items():
        name, other = case.role[0], "interleaved" if words == "blockwise" else "blockwise"
        shared = right.unflatten(0, (-1, n_head))[:, order].flatten(0, 1)
        numbers = ", ".join(str(distinct.index(each)) for each in order)
        text = (
            f"{case.wrong} shares its {n_kv} {'keys' if name == 'K' else 'values'} {words} among"
            f" {n_head} heads ({numbers}), {case.right} {other}"
        )
        yield Hypothesis("shared heads in another order", text, shared, wrong)


def merged(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side merges the heads in another order."""
    raw, merged = case.of_right("x_raw"), case.of_wrong()
    n_head = case.n_head
    if not n_head or raw.numel() != merged.numel():
        return
    heads = raw.unflatten(0, (-1, n_head))  # n_batch n_head n_Q d_V
    if not case.is_same(heads.transpose(1, 2).reshape(merged.shape), case.of_right()):
        return
    yield Hypothesis(
        "heads merged without moving them back",
        f"{case.wrong} reshapes (n_batch, n_head, n_Q, d_V) directly: a row of its result holds several"
        f" queries of one head; {case.right} moves the heads behind the queries first",
        heads.reshape(merged.shape),
        merged,
    )
    yield Hypothesis(
        "heads merged as (d_V, n_head)",
        f"{case.wrong} merges the heads as (d_V, n_head), {case.right} as (n_head, d_V)",
        heads.permute(0, 2, 3, 1).reshape(merged.shape),
        merged,
    )


def vectors_elsewhere(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side has the vectors of single heads and positions in other places.

    Heads, positions and sequences may be mixed by a view without a transpose, or by a transpose of axes
    that are not those that it is meant for.
    """
    if case.wrong == "a" or not case.n_head:  # the same hypothesis
        return
    a, b = (_vectors(case, side) for side in "ab")
    if a is None or b is None or a.shape != b.shape:
        return
    found = _places_of(b.flatten(0, -2), a.flatten(0, -2))
    if found is None:
        return
    places, known = found
    axes = ("sequence", "head", "position")
    of_b, of_a = (
        torch.stack(torch.unravel_index(each[known], a.shape[:-1]), -1)
        for each in (torch.arange(len(places)), places)
    )
    moved = (of_a != of_b).any(0).tolist()
    first = int((of_a != of_b).any(1).nonzero()[0])
    in_b, in_a = (
        ", ".join(
            f"{axis} {int(n)}" for axis, n, each in zip(axes, at[first], moved, strict=True) if each
        )
        for at in (of_b, of_a)
    )
    what = " and ".join(f"{axis}s" for axis, each in zip(axes, moved, strict=True) if each)
    text = f"b has a's vectors at other {what}: at {in_b}, b has what a has at {in_a}"
    yield Hypothesis(f"{what} mixed", text, a.flatten(0, -2)[places], b.flatten(0, -2))


def _vectors(case: Case, side: str) -> torch.Tensor | None:
    """Return the vector of each head at each position: `n_batch n_head n d`; None if unknown."""
    tensor, n_head = case.of(side), case.n_head or 1
    if case.role == "x_merged":
        if tensor.shape[0] % case.n_batch or tensor.shape[-1] % n_head:
            return None
        return tensor.reshape(case.n_batch, -1, n_head, tensor.shape[-1] // n_head).transpose(1, 2)
    return tensor.unflatten(0, (-1, n_head)) if tensor.shape[0] % n_head == 0 else None


def _places_of(rows: torch.Tensor, among: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Find for each row the nearest among others, and for which there is only one.

    Return None if these are not as many of each kind as there are rows, or none is in another place.
    """
    exact = "donot_use_mm_for_euclid_dist"
    places, own = (torch.cdist(each, among, compute_mode=exact).argmin(1) for each in (rows, among))
    counts = own.bincount(minlength=len(among))
    known = counts[places] == 1
    is_moved = bool((places != own)[known].any())
    is_same = torch.equal(places.bincount(minlength=len(among)), counts)
    return (places, known) if is_same and is_moved else None
