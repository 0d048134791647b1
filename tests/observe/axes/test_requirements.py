"""Requirements on sizes, as the user states them."""

import pytest

from attnscope.observe.axes.expressions import parse_expression
from attnscope.observe.axes.requirements import required_by


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
