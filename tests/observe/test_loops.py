"""A loop's turns that made the same are shown once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.observe.trace import MAX_STEPS, Step, fold_loops


def step(name, shape=(2, 3), **more):
    return Step(name, None, shape, "float32", "…", 4, line=ord(name[0]), **more)


def steps(text):
    """A step for each letter; blanks are for reading."""
    return [step(letter) for letter in text.replace(" ", "")]


def short(result):
    """`a2 b` for two times a and one time b."""
    return " ".join(f"{each.name}{each.times if each.times > 1 else ''}" for each in result)


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        ("", ""),
        ("x", "x"),
        ("x y z", "x y z"),  # nothing to fold
        ("x y x", "x y x"),
        ("aaaa", "a4"),
        ("x ab ab ab y", "x a3 b3 y"),
        ("x ab ab a y", "x a2 b2 a y"),
        ("ab ab cd cd cd", "a2 b2 c3 d3"),  # two loops
        ("aab aab", "a4 b2"),  # a loop in a loop: two turns of two turns
        ("x abbb abbb y", "x a2 b6 y"),
        ("x aabb aabb aabb y", "x a6 b6 y"),
        ("ab cd ab cd", "a2 b2 c2 d2"),
        ("abac abac abac", "a3 b3 a3 c3"),  # a name twice in a body
        ("p ab ac ab ac ab ac q", "p a3 b3 a3 c3 q"),  # bodies that alternate
        ("abb abbb", "a b2 a b3"),  # an inner loop ran twice at first and then three times
    ],
)
def test_turns_that_made_the_same_are_one(made, shown):
    assert short(fold_loops(steps(made))) == shown


def test_two_kinds_of_layers_in_turn():
    """As in models whose every other layer has a window."""
    made = [step("a"), step("b", (2, 9)), step("a"), step("b", (5, 9))] * 3
    result = fold_loops(made)
    assert [(each.shape, each.times) for each in result] == [
        ((2, 3), 3), ((2, 9), 3), ((2, 3), 3), ((5, 9), 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (2, 4)}, {"dtype": "float16"}, {"dims": ("n", "d")}, {"bytes": 8}, {"flops": 5}, {"fresh_bytes": 7},
        {"depth": 2}, {"strides": (1, 2)}, {"line": 5}, {"file": "other.py"}, {"name": "b"},
    ],
    ids=lambda other: next(iter(other)),
)  # fmt: skip
def test_steps_that_differ_in_anything_that_is_shown_are_not_one(other):
    plain = step("a")
    different = Step(**{**{f: getattr(plain, f) for f in plain.__dataclass_fields__}, **other})
    assert fold_loops([plain, different]) == [plain, different]
    assert [each.times for each in fold_loops([plain, plain, different, different])] == [2, 2]


def test_a_body_that_is_too_long_is_left_as_it_is():
    body = [step("a", (i + 1,)) for i in range(MAX_STEPS + 1)]
    assert fold_loops([*body, *body]) == [*body, *body]
    body.pop()
    assert [each.times for each in fold_loops([*body, *body])] == [2] * MAX_STEPS


def test_the_steps_that_were_given_stay_as_they_are():
    made = steps("ab ab")
    fold_loops(made)
    assert [each.times for each in made] == [1, 1, 1, 1]


@given(st.text("ab", max_size=14))
def test_no_step_is_lost(text):
    result = fold_loops(steps(text))
    for letter in "ab":
        assert sum(each.times for each in result if each.name == letter) == text.count(letter)


@given(st.permutations("abcde"), st.integers(1, 5), st.integers(2, 5))
def test_whatever_is_repeated_is_shown_once(letters, length, turns):
    body = "".join(letters[:length])
    assert short(fold_loops(steps(body * turns))) == " ".join(f"{letter}{turns}" for letter in body)


@pytest.mark.xfail(strict=True, reason="the last step of a turn is folded with the first of the next")
def test_a_body_that_begins_and_ends_with_the_same_step():
    """As where a layer calls one function before and after."""
    assert short(fold_loops(steps("aba aba aba"))) == "a3 b3 a3"
