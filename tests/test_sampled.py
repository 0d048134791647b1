"""The selection of cases that run by default."""

from itertools import combinations, product

import pytest

from tests.sampled import pairwise, spread


@pytest.mark.parametrize("sizes", [(2,), (3, 4), (2, 3, 4), (5, 2, 2, 3)])
def test_every_pair_of_values_is_in_some_case(sizes):
    cases = [dict(zip("abcd", each, strict=False)) for each in product(*map(range, sizes))]
    kept = [cases[n] for n in pairwise(cases)]
    for one, other in combinations(range(len(sizes)), 2):
        names = "abcd"[one], "abcd"[other]
        assert {tuple(case[name] for name in names) for case in kept} == {
            *product(range(sizes[one]), range(sizes[other]))
        }
    assert len(kept) < len(cases) or len(sizes) < 3


def test_few_cases_are_spread_from_the_first_to_the_last():
    assert spread(10, 4) == {0, 3, 6, 9}
    assert spread(5, 1) == {0}
    assert spread(2, 3) == {0, 1}
