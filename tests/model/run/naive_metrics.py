"""The metrics of a head as one would work them out by hand: one query after the other, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log, sqrt

Numbers = dict[str, list[float | None]]
"""For each metric a number for each query; None: the query does not count."""


def naive_metrics(
    rows: Sequence[Sequence[float]],
    queries: Sequence[int],
    keys: Sequence[int],
    sees: Callable[[int, int], bool],
    *,
    cross: bool = False,
    separators: Sequence[int] = (),
    punctuation: Sequence[int] = (),
) -> Numbers:
    """Every metric of one head in one sequence.

    Args:
        rows: the weights, `n_Q n_K`.
        queries, keys: the tokens' numbers.
        sees: whether query i can see key j.
        cross: whether the keys are of another sequence.
        separators, punctuation: the numbers of these tokens.
    """
    found: Numbers = {}

    def note(name: str, number: float | None) -> None:
        found.setdefault(name, []).append(number)

    for i, row in enumerate(rows):
        seen = [j for j in range(len(keys)) if sees(i, j)]

        def note_sum(name: str, wanted: Sequence[int], row=row, seen=seen) -> None:
            wanted = [j for j in wanted if j in seen]
            note(name, sum(row[j] for j in wanted) if wanted else None)

        entropy = -sum(a * log(a) for a in row if a > 0)
        note("entropy", entropy)
        note("effective", exp(entropy))
        total = sum(row)
        alike = -total * log(total / len(seen)) if len(seen) > 1 and total else None
        note("entropy_share", alike and entropy / alike)
        note("largest", max(row))
        note_sum("separator", [j for j, key in enumerate(keys) if key in separators])
        note_sum("punctuation", [j for j, key in enumerate(keys) if key in punctuation])
        copies = [j for j, key in enumerate(keys) if key == queries[i]]
        if cross:
            note_sum("first", [0])
            note_sum("same", copies)
            continue
        note_sum("self", [i])
        note_sum("previous", [i - 1])
        note_sum("next", [i + 1])
        note_sum("first", [0] if i > 0 else [])
        note_sum("same", [j for j in copies if j != i])
        note_sum("induction", [j + 1 for j in copies if j + 1 < i])
        note("distance", sum(a * abs(i - j) for j, a in enumerate(row)))
    return found


def naive_mean(sequences: Sequence[Sequence[float | None]]) -> tuple[float | None, float | None]:
    """The mean over the queries of all sequences that count; and its error, as the textbook has it.

    Source: Cochran 1977, "Sampling Techniques": the ratio estimator, equation 2.47.
    """
    clusters = [[number for number in sequence if number is not None] for sequence in sequences]
    clusters = [cluster for cluster in clusters if cluster]
    n, c = sum(map(len, clusters)), len(clusters)
    if n == 0:
        return None, None
    mean = sum(map(sum, clusters)) / n
    if c < 2:
        return mean, None
    residuals = [sum(cluster) - mean * len(cluster) for cluster in clusters]
    spread = sum(each**2 for each in residuals) / (c - 1)
    return mean, sqrt(spread / c) / (n / c)
