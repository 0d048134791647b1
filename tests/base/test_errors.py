import traceback

from attnscope.base.errors import OptionError, heads_do_not_divide


def test_the_nearest_head_counts_on_both_sides_are_suggested():
    error = heads_do_not_divide(200, 7)
    assert error.message == "d_feat is 200, which does not divide into 7 heads: 200 / 7 leaves 4."
    assert error.hint == "heads=5 or heads=8, the divisors of 200 nearest to 7"


def test_a_huge_width_is_answered_at_once():
    assert heads_do_not_divide(10**18 + 9, 7).hint.startswith("heads=1 or heads=")


def test_more_heads_than_features_suggests_one_a_feature():
    assert heads_do_not_divide(200, 300).hint.startswith("heads=200, the divisors")


def test_a_traceback_shows_the_hint_below_the_message():
    error = OptionError("--heads 7 is wrong.", hint="--heads 5")
    shown = "".join(traceback.format_exception(error))
    assert shown == "attnscope.base.errors.OptionError: --heads 7 is wrong.\ntry  --heads 5\n"
    assert str(error) == "--heads 7 is wrong."
