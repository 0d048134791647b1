"""Other sizes that the same code runs with. The code is a list of conditions here: it gets as far as they are true."""

from itertools import combinations
from math import gcd, isqrt

import pytest

from attnscope.observe.axes.expressions import parse_expression
from attnscope.observe.axes.requirements import SizePlan, required_by
from attnscope.observe.axes.search import MORE_PATIENCE, PATIENCE, Attempt, Search


class Code:
    """Asks one thing after another of its sizes."""

    def __init__(self, *conditions):
        self.conditions = conditions
        self.tried = []

    def __call__(self, all_sizes):
        for sizes in all_sizes:
            self.tried.append(dict(sizes))
            for reached, condition in enumerate(self.conditions):
                if not condition(**sizes):
                    return Attempt((reached, reached), whole=False, rejected=True, run=dict(sizes))
        return Attempt((len(self.conditions), 0), whole=True, run=dict(sizes))


def found(code, given, **options):
    search = Search(code, given, **options)
    plan = search.plan()
    return plan, search


SIZES = {"n_batch": 128, "n_Q": 32, "n_K": 48, "d_feat": 200, "n_head": 5}

# What the code asks, and what is found out about it.
ASKED = {
    "nothing": ([], SIZES, []),
    "a width that divides into heads": (
        [lambda d_feat, n_head, **_: d_feat % n_head == 0],
        SIZES,
        ["d_feat is a multiple of n_head"],
    ),
    "three sizes, one the product of two": (
        [lambda d_feat, n_head, d_head, **_: d_feat == n_head * d_head],
        {"n": 7, "d_feat": 60, "n_head": 5, "d_head": 12},
        ["d_feat = n_head·d_head"],
    ),
    "heads that share keys": (
        [lambda d, n_head, **_: d % n_head == 0, lambda n_head, n_kv, **_: n_head % n_kv == 0],
        {"n": 5, "d": 96, "n_head": 6, "n_kv": 2},
        ["d is a multiple of n_head", "n_head is a multiple of n_kv"],
    ),
    "as many keys as past and new ones": (
        [lambda n_K, n_past, n_new: n_K == n_past + n_new],
        {"n_K": 23, "n_past": 20, "n_new": 3},
        ["n_K = n_past+n_new"],
    ),
    "equal lengths": ([lambda n, m, **_: n == m], {"n": 9, "m": 9, "d": 10}, ["n = m"]),
    "three equal lengths": (
        [lambda a, b, c: a == b, lambda a, b, c: b == c],
        {"a": 9, "b": 9, "c": 9},
        ["a = b", "b = c"],
    ),
    "a product with itself": (
        [lambda n, side: n == side * side],
        {"n": 49, "side": 7},
        ["n = side·side"],
    ),
    "a fixed size": ([lambda d, **_: d == 24], {"n": 7, "d": 24}, ["d = 24"]),
    "an even size": ([lambda d, **_: d % 2 == 0], {"n": 7, "d": 26}, ["d is a multiple of 2"]),
    "a multiple of eight": ([lambda d, **_: d % 8 == 0], {"n": 7, "d": 40}, ["d is a multiple of 8"]),
    "a power of two": (
        [lambda n_head, **_: n_head & (n_head - 1) == 0],
        {"n": 7, "n_head": 8},
        ["n_head is a power of two"],
    ),
    "a square": (
        [lambda n, **_: isqrt(n) ** 2 == n],
        {"n": 36, "d": 7},
        ["n is a square"],
    ),
    "distances": (
        [lambda n, n_distance, **_: n_distance == 2 * n - 1],
        {"n": 7, "n_distance": 13, "d": 12},
        ["n_distance = 2·n-1"],
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_code_asks_of_its_sizes_is_found_out(case):
    conditions, given, expected = ASKED[case]
    code = Code(*conditions)
    plan, search = found(code, given)
    assert plan is not None
    assert sorted(map(str, plan.requirements)) == sorted(expected)
    assert sorted(str(requirement) for requirement, _ in search.refusals) == sorted(expected)
    assert all(not all(asks(**sizes) for asks in conditions) for _, sizes in search.refusals)
    text = " ".join(expected)
    for turn in range(3):
        sizes = plan.sizes(turn)
        assert all(condition(**sizes) for condition in conditions), turn
        for one, other in combinations(sizes, 2):  # none are equal unless they must be
            if one not in text or other not in text:
                assert sizes[one] != sizes[other]
                assert gcd(sizes[one], sizes[other]) == 1 or "multiple of" in text


def test_sizes_that_are_larger_stay_larger():
    """A length may not exceed a longest length, and nothing has to say so."""
    code = Code(lambda n, max_len, **_: n <= max_len)
    plan, search = found(code, {"max_len": 50, "n": 7, "d": 6})
    assert plan.requirements == ()
    assert search.refusals == []
    assert len(code.tried) == 2
    for turn in range(3):
        assert plan.sizes(turn)["n"] < plan.sizes(turn)["max_len"]


@pytest.mark.parametrize("order", [("n", "max_len"), ("max_len", "n")])
def test_of_equal_sizes_either_may_be_the_larger_one(order):
    plan, _ = found(Code(lambda n, max_len: n <= max_len), dict.fromkeys(order, 12))
    sizes = plan.sizes(0)
    assert sizes["n"] <= sizes["max_len"]


def test_what_the_user_says_is_kept_to():
    known = tuple(required_by([("d_head", parse_expression("d_feat/n_head"))], {}))
    assert list(map(str, known)) == ["d_feat = d_head·n_head"]
    given = {"n": 7, "d_feat": 60, "n_head": 5, "d_head": 12}
    code = Code(lambda d_feat, n_head, **_: d_feat % n_head == 0)
    plan, search = found(code, given, known=known)
    assert plan.requirements == known
    assert search.refusals == []
    assert all(s["d_feat"] == s["n_head"] * s["d_head"] for s in code.tried)


def test_a_split_into_parts_is_tried_first_and_dropped_where_nothing_needs_it():
    given = {"d_feat": 200, "n_head": 5, "n": 7}
    plan, search = found(Code(), given, axes=frozenset({"d_feat", "n"}))
    assert plan.requirements == ()
    assert search.refusals == []

    def attempt(all_sizes):
        sizes = all_sizes[0]
        whole = sizes["d_feat"] % sizes["n_head"] == 0
        return Attempt((1, 0), whole=True, unnamed=0 if whole else 3)

    plan, search = found(attempt, given, axes=frozenset({"d_feat", "n"}))
    assert list(map(str, plan.requirements)) == ["d_feat is a multiple of n_head"]
    assert list(map(str, search.assumed)) == ["d_feat is a multiple of n_head"]
    assert search.refusals == []


@pytest.mark.parametrize(
    "conditions",
    [[lambda **_: False], [lambda n, **_: n < 1]],
    ids=["it never runs", "a size that it had not"],
)
def test_what_cannot_be_found_is_given_up(conditions):
    code = Code(*conditions)
    given = {f"n_{i}": 6 + i for i in range(8)} | {"n": 12}
    plan, _ = found(code, given)
    assert plan is None
    assert len(code.tried) <= PATIENCE + MORE_PATIENCE


def test_what_code_asks_of_too_many_sizes_is_not_searched():
    tried = []

    def attempt(sizes):
        tried.append(sizes)
        return Attempt((0,), whole=False)

    search = Search(attempt, {f"a{i}": 4 for i in range(300)})
    assert search.has_too_many
    assert search.plan() is None
    assert len(tried) == 1


def test_sizes_that_can_vary_do_although_others_cannot():
    """Three widths that only fit together: no condition on a single one gets the code further."""
    given = {"n_batch": 4, "n": 7, "width": 30, "inner": 40, "n_head": 5}
    code = Code(lambda width, inner, n_head, **_: (width, inner, n_head) == (30, 40, 5))
    plan, search = found(code, given, axes=frozenset({"n_batch", "n", "width"}))
    for turn in (0, 1):
        sizes = plan.sizes(turn)
        assert {sizes["width"], sizes["inner"], sizes["n_head"]} == {30, 40, 5}
        assert sizes["n_batch"] != 4
        assert sizes["n"] != 7
    assert search.refusals == []


def test_a_requirement_goes_when_the_one_that_needed_it_has_gone():
    given = {"B": 2, "width": 48, "n_head": 4, "narrower": 2}
    code = Code(
        lambda width, narrower, **_: width > narrower,
        lambda width, n_head, narrower, **_: (width // narrower) % n_head == 0,
    )
    plan, _ = found(code, given, axes=frozenset({"B", "width"}))
    assert sorted(map(str, plan.requirements)) == [
        "width is a multiple of n_head",
        "width is a multiple of narrower",
    ]


def test_a_size_that_a_fixed_one_determines_is_fixed_itself():
    """A literal 8 is no reason to keep 4 heads, although 8 is twice 4."""
    given = {"b": 2, "dim": 48, "n_head": 4, "d_rot": 8}
    code = Code(lambda d_rot, **_: d_rot % 2 == 0, lambda d_rot, **_: d_rot == 8)
    plan, search = found(code, given, axes=frozenset({"b", "dim"}))
    assert list(map(str, plan.requirements)) == ["d_rot = 8"]
    assert list(map(str, search.required)) == ["d_rot = 8"]


def test_a_square_is_no_product_of_twin_primes_and_one():
    """3·5+1 is a square, as 5·7+1 is."""
    given = {"n_batch": 2, "n_head": 4, "n": 9, "dim": 48}
    code = Code(lambda n, **_: isqrt(n) ** 2 == n)
    plan, search = found(code, given, axes=frozenset({"n_batch", "n", "dim"}))
    assert list(map(str, plan.requirements)) == ["n is a square"]
    assert list(map(str, search.required)) == ["n is a square"]


def test_several_sizes_that_must_be_even_at_once_are_found_together():
    """One alone brings the code no further: where rotations view pairs, strides must be even, too."""
    code = Code(lambda a, b, c, **_: not (a % 2 or b % 2 or c % 2))
    given = {"n": 9, "longest": 64, "a": 8, "b": 4, "c": 8}
    plan, _ = found(code, given, axes=frozenset({"n"}))
    wanted = {f"{name} is a multiple of 2" for name in "abc"}
    assert set(map(str, plan.requirements)) == wanted
    assert len(code.tried) < 60


def test_sizes_that_are_seen_where_the_code_fails_are_tried_first():
    """Four equal sizes make twelve pairs to try; the width that must be even is seen where the code fails."""
    given = {"n": 9, **{f"x{i}": 6 for i in range(4)}, "d": 16}
    tried = []

    def attempt(all_sizes):
        sizes = all_sizes[0]
        tried.append({name: sizes[name] for name in given})
        return Attempt((0, 0), whole=sizes["d"] % 2 == 0, rejected=True, names=frozenset({"n", "d"}))

    search = Search(attempt, given, axes=frozenset({"n"}))
    plain = SizePlan(given)
    assert search._step(plain, attempt([plain.sizes(0)]), unlikely=True) is not None
    assert len(tried) == 2
    assert tried[1]["d"] % 2 == 0
    assert tried[1]["x0"] % 2 == 1
