"""Other heads: split in another order, shared in another order, or merged without moving them back."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnscope.comparison.causes.case import Case, Hypothesis


def heads_split(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b splits the features into heads in another order."""
    name = case.role[0]
    feat = case.a.tensor(f"{name}_feat")
    b = case.of_b()
    n_head = case.n_head
    if feat is None or not n_head:
        return
    n_batch, n, d = case.n_batch, b.shape[-2], b.shape[-1]
    if feat.numel() != b.numel() or b.shape[0] % n_batch:
        return
    n_head = b.shape[0] // n_batch
    features = feat.double().reshape(n_batch, n, -1)
    yield Hypothesis(
        "heads split as (d_head, n_head)",
        f"b splits the {n_head * d} features of {name} into (d_head, n_head) = ({d}, {n_head}): a head"
        f" gets every {n_head}th feature; a splits them into (n_head, d_head)",
        features.unflatten(-1, (d, n_head)).permute(0, 3, 1, 2).flatten(0, 1),
        b,
    )
    yield Hypothesis(
        "heads split without moving the axis",
        f"b reshapes {name} directly to (n_batch, n_head, n, d_head): positions and features are mixed;"
        " a splits the features, then moves the heads",
        features.reshape(n_batch * n_head, n, d),
        b,
    )


def groups(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b shares keys and values among query heads in another order."""
    a, b = case.of_a(), case.of_b()
    n_head = case.n_head
    if not n_head or a.shape != b.shape or a.shape[0] % n_head:
        return
    heads = a.unflatten(0, (-1, n_head))[0]
    distinct = [i for i in range(n_head) if not any(torch.equal(heads[i], heads[j]) for j in range(i))]
    n_kv = len(distinct)
    if n_kv in (1, n_head):
        return
    kinds = {
        "blockwise": [distinct[i * n_kv // n_head] for i in range(n_head)],
        "interleaved": [distinct[i % n_kv] for i in range(n_head)],
    }
    for words, order in kinds.items():
        name = case.role[0]
        shared = a.unflatten(0, (-1, n_head))[:, order].flatten(0, 1)
        numbers = ", ".join(str(distinct.index(each)) for each in order)
        text = (
            f"b shares its {n_kv} {'keys' if name == 'K' else 'values'} {words} among {n_head} heads"
            f" ({numbers}), a {'interleaved' if words == 'blockwise' else 'blockwise'}"
        )
        yield Hypothesis("shared heads in another order", text, shared, b)


def merged(case: Case) -> Iterator[Hypothesis]:
    """Suppose that b merges the heads in another order."""
    raw, b = case.of_a("x_raw"), case.of_b()
    n_head = case.n_head
    if not n_head or raw.numel() != b.numel():
        return
    heads = raw.unflatten(0, (-1, n_head))  # n_batch n_head n_Q d_V
    yield Hypothesis(
        "heads merged without moving them back",
        "b reshapes (n_batch, n_head, n_Q, d_V) directly: a row of its result holds several queries"
        " of one head; a moves the heads behind the queries first",
        heads.reshape(b.shape),
        b,
    )
    yield Hypothesis(
        "heads merged as (d_V, n_head)",
        "b merges the heads as (d_V, n_head), a as (n_head, d_V)",
        heads.permute(0, 2, 3, 1).reshape(b.shape),
        b,
    )
