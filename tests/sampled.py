"""Marks that leave a part of a test's cases to CI, which runs the rest under the mark `sweep`.

@pytest.mark.pairwise    # of a product of parameters: every pair of two parameters' values
@pytest.mark.few(3)      # of a long list: three cases, spread over it
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import pytest


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the mark `sweep` to the cases that do not run by default."""
    groups = defaultdict(list)
    for item in items:
        if item.get_closest_marker("pairwise") or item.get_closest_marker("few"):
            groups[item.nodeid.partition("[")[0]].append(item)
    for cases in groups.values():
        few = cases[0].get_closest_marker("few")
        kept = spread(len(cases), few.args[0]) if few else pairwise([values_of(case) for case in cases])
        for n, case in enumerate(cases):
            if n not in kept:
                case.add_marker("sweep")


def values_of(item: pytest.Item) -> dict[str, int]:
    """Which value each parameter has in a case, as a number."""
    return {name: id(value) for name, value in item.callspec.params.items()}


def spread(n: int, few: int) -> set[int]:
    """`few` of the numbers below `n`, the first and the last among them."""
    return set(range(n)) if few >= n else {round(k * (n - 1) / max(few - 1, 1)) for k in range(few)}


def pairwise(cases: list[dict[str, int]]) -> set[int]:
    """The numbers of cases, one after the other the one with most new pairs, until all pairs are there."""
    pairs = [set(combinations(sorted(case.items()), 2)) or {tuple(case.items())} for case in cases]
    missing, kept = set().union(*pairs), set()
    while missing:
        best = max(range(len(cases)), key=lambda n: len(pairs[n] & missing))
        kept.add(best)
        missing -= pairs[best]
    return kept
