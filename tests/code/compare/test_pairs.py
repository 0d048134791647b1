"""A mistake beside the correct code: its cause and line are named in both orders, and nothing else is."""

import pytest

from attnscope import compare, trace
from tests.code.compare.code.pairs import OTHER_WAYS, PAIRS

QUICK = ("queries rotated from position 0", "slopes that favour the far", "gate of the output")
QUICK += ("messages of those that receive", "groups merged the other way", "a window of both sides")


def compared(pair, folder, *sides):
    a, b = (pair.written(folder, side) for side in sides)
    return compare(a, b, init=list(pair.init), inputs=list(pair.inputs))


def assert_found(name, folder, *sides):
    pair = PAIRS[name]
    result = compared(pair, folder, *sides)
    assert result.status == "different"
    causes = pair.causes if sides[0] == "right" else pair.reversed_causes or pair.causes
    assert {each.role: each.cause for each in result.divergences} == causes
    first = result.divergences[0]
    sites = first.a or result[first.role].a, first.b or result[first.role].b
    assert sites[sides.index(pair.line_of)].line == pair.line(pair.line_of)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_and_its_line_are_found_in_both_orders(name, tmp_path):
    assert_found(name, tmp_path, "right", "wrong")
    assert_found(name, tmp_path, "wrong", "right")


@pytest.mark.sweep
@pytest.mark.parametrize("name", [each for each in PAIRS if each not in QUICK])
def test_every_mistake_and_its_line_are_found_in_both_orders(name, tmp_path):
    assert_found(name, tmp_path, "right", "wrong")
    assert_found(name, tmp_path, "wrong", "right")


@pytest.mark.parametrize("sides", [("right", "wrong"), ("wrong", "right")])
def test_each_projection_of_tokens_in_another_order_shows_the_line_that_orders_them(sides, tmp_path):
    pair = PAIRS["windows that mix rows"]
    result = compared(pair, tmp_path, *sides)
    line = pair.line("wrong")
    lines = {each.role: (each.a.line, each.b.line) for each in result.divergences}
    assert lines == dict.fromkeys(("Q_feat", "K_feat", "V_feat"), (line, line))


@pytest.mark.sweep
@pytest.mark.parametrize("name", OTHER_WAYS)
def test_what_is_computed_in_another_way_is_equal(name, tmp_path):
    for sides in (("right", "wrong"), ("wrong", "right")):
        result = compared(OTHER_WAYS[name], tmp_path, *sides)
        assert (result.status, result.divergences) == ("equal", [])


@pytest.mark.sweep
@pytest.mark.parametrize("name", {pair.source: name for name, pair in PAIRS.items()}.values())
def test_the_correct_code_has_no_finding(name, tmp_path):
    pair = PAIRS[name]
    result = trace(pair.written(tmp_path, "right"), init=list(pair.init), inputs=list(pair.inputs))
    assert result.findings == []
