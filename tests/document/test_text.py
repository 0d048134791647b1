import pytest

from attnscope.base.units import number_text, shape_text
from attnscope.document.text import break_expression, shorten

SPLIT = "Q_feat.view(n_batch, n_Q, n_head, d_head).transpose(1, 2)"


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (60, SPLIT),
        (40, "Q_feat.view(…).transpose(1, 2)"),
        (28, "Q_feat.view(…).transpose(…)"),
        (5, "Q_feat.view(…).transpose(…)"),
    ],
)
def test_the_longest_arguments_give_way_first(width, expected):
    assert shorten(SPLIT, width) == expected


def test_an_expression_without_arguments_stays():
    assert shorten("Q @ K.mT * scale", 3) == "Q @ K.mT * scale"


def test_expressions_break_at_spaces_and_before_methods():
    assert break_expression("Q_feat.view(…).transpose(…)", 15) == ["Q_feat.view(…)", ".transpose(…)"]
    assert break_expression("Q_split @ K_split.mT * scale", 20) == ["Q_split @ K_split.mT", "* scale"]
    assert break_expression("short", 20) == ["short"]


def test_expressions_break_outside_of_parentheses_first():
    assert break_expression(SPLIT, 50) == [
        "Q_feat.view(n_batch, n_Q, n_head, d_head)", ".transpose(1, 2)",
    ]  # fmt: skip
    assert break_expression("masked(scores, mask, mask_fill) * 2", 20) == [
        "masked(scores, mask,", "mask_fill) * 2",
    ]  # fmt: skip


def test_nothing_is_lost_in_breaking():
    for width in range(1, 60):
        assert "".join("".join(break_expression(SPLIT, width)).split()) == "".join(SPLIT.split())


def test_numbers_have_four_digits():
    assert [number_text(x) for x in (0.0, 1.0, 0.088388, -123456.0, None)] == [
        "0", "1", "0.08839", "-1.235e+05", "–"]  # fmt: skip


def test_shapes():
    assert (shape_text((3, 30, 128)), shape_text((7,)), shape_text(())) == ("3×30×128", "7", "scalar")
