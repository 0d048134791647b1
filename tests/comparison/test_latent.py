"""The absorbed and the expanded form of latent attention have the same scores and outputs."""

import pytest
from comparison.code import latent

from attnscope import AttnscopeError, compare

SIZES = {"width": 24, "h": 3, "d_latent": 10}


def test_what_is_between_the_projections_and_the_scores_has_no_counterpart():
    for pair in ((latent.Expanded, latent.Absorbed), (latent.Absorbed, latent.Expanded)):
        result = compare(*pair, init=SIZES)
        assert result.status == "equal"
        equal = {each.role for each in result.tensors if each.status == "equal"}
        assert equal == {"scores", "attention", "output"}
        assert result.notices[-1].startswith("Q_feat, K_feat, V_feat, ")
        assert result.notices[-1].endswith("have other shapes on both sides, and were not compared")


def test_a_scale_by_the_width_of_the_latent_is_found():
    result = compare(latent.Expanded, latent.ScaledByTheLatent, init=SIZES)
    [found] = result.divergences
    assert (found.role, found.cause, result.explained) == ("scores", "another scale", True)


def test_other_numbers_of_heads_are_still_not_comparable():
    other = {"width": 24, "d_latent": 10}

    class OtherHeads(latent.Expanded):
        def __init__(self, width, d_latent):
            super().__init__(width, 4, d_latent)

    with pytest.raises(AttnscopeError, match="they are not comparable"):
        compare(latent.Expanded, OtherHeads, init=other | {"h": 3})
