"""Requirements on sizes, as the user states them, and sizes that fulfil them."""

from itertools import combinations
from math import gcd

import pytest

from attnscope.observe.axes.expressions import parse_expression
from attnscope.observe.axes.requirements import (
    SizePlan,
    fixed,
    multiple_of,
    product_is,
    required_by,
    sum_is,
)


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        (("d_feat", "n_head*d_head"), ["d_feat = n_head·d_head"]),
        (("d_head", "d_feat/n_head"), ["d_feat = d_head·n_head"]),
        (("half", "d/2"), ["d = 2·half"]),
        (("wide", "4*d"), ["wide = 4·d"]),
        (("mid", "2*d/3"), ["mid = 8", "d = 12"]),  # neither: they stay as they are
    ],
)
def test_an_equation_becomes_a_requirement(equation, expected):
    given = {"d": 12, "mid": 8}
    name, text = equation
    assert list(map(str, required_by([(name, parse_expression(text))], given))) == expected


# Plans of sizes.

SIZES = {"n_batch": 128, "n_Q": 32, "n_K": 48, "d_feat": 200, "n_head": 5}


def test_each_turn_has_other_sizes():
    plan = SizePlan(SIZES)
    turns = [plan.sizes(turn) for turn in range(3)]
    assert all(len({sizes[name] for sizes in turns}) > 1 for name in SIZES)
    assert all(list(one.values()) != list(other.values()) for one, other in combinations(turns, 2))


def test_requirements_that_contradict_each_other_have_no_sizes():
    given = {"a": 6, "b": 3}
    assert SizePlan(given, (product_is("a", ("b",)), product_is("b", ("a",)))).sizes(0) is None


@pytest.mark.parametrize(
    ("requirements", "holds"),
    [
        ((multiple_of("d", "n_head"), multiple_of("d", 8)), lambda s: s["d"] % (8 * s["n_head"]) == 0),
        ((product_is("d", ("n_head",), 3),), lambda s: s["d"] == 3 * s["n_head"]),
        ((sum_is("d", ("n", "n_head")), fixed("n", 7)), lambda s: s["d"] == 7 + s["n_head"]),
        ((fixed("d", 24), multiple_of("n", 4)), lambda s: s["d"] == 24 and s["n"] % 4 == 0),
    ],
)  # fmt: skip
def test_several_requirements_hold_at_once(requirements, holds):
    plan = SizePlan({"d": 24, "n_head": 4, "n": 8}, requirements)
    for turn in range(3):
        assert holds(plan.sizes(turn))


def test_of_three_hundred_sizes_each_gets_a_prime_of_its_own():
    given = {f"a{i}": i % 7 + 2 for i in range(300)}
    for turn in range(3):
        sizes = SizePlan(given).sizes(turn)
        assert len(set(sizes.values())) == 300
        assert all(gcd(one, other) == 1 for one, other in combinations(sizes.values(), 2))
