"""Sinks, sums over other axes, norms of other features and masks of blocks: named in both orders."""

import pytest
import torch

from tests.code.compare.both_orders import compared
from tests.code.compare.code import normalisers

X = torch.randn(2, 9, 40)


@pytest.mark.sweep
def test_where_a_sink_stands_is_said_of_both_sides():
    for a, b in (
        (normalisers.Sink, normalisers.SinkOutside),
        (normalisers.SinkOutside, normalisers.Sink),
    ):
        [each] = compared(a, b, X).divergences
        inside, outside = ("a", "b") if a is normalisers.Sink else ("b", "a")
        assert f"{outside} " in each.explanation.split("outside")[0]
        assert f"{inside} a sink in its softmax" in each.explanation.replace("has a", "a")
        assert {each.a.expression, each.b.expression} == {
            "torch.cat([scores, sink], -1).softmax(-1)[..., :-1]",
            "scores.softmax(-1) / (1 + self.sink.exp())",
        }


@pytest.mark.sweep
def test_the_features_of_a_norm_are_said_with_its_line():
    [each, _] = compared(normalisers.NormOfHeads, normalisers.NormOfAll, X).divergences
    assert each.explanation == (
        "b normalises Q over the features of all heads together (RMSNorm), a over the 6 features of each"
        " head (RMSNorm)"
    )
    assert (each.a.expression, each.b.expression) == (
        "self.q_norm(self.split(self.q(x)))",
        "self.q_norm(self.q(x))",
    )


def test_from_which_position_on_a_block_is_seen_is_said():
    [each] = compared(normalisers.Summaries, normalisers.SummariesFromTheirStart, X).divergences
    seen = "a query sees the summary of a block of 3 keys from its"
    assert f"in b, {seen} first position on" in each.explanation
    assert f"in a, {seen} last position on" in each.explanation
