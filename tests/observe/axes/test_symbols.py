"""What a size is called, from how it changes. Python itself says whether the expression is right."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope import trace_script
from attnscope.observe.axes.symbols import AxisOrigin, Symbols, name_by_changes
from attnscope.observe.trace import Step

# What each name stood for in four runs. Nothing in a run is equal to, or a multiple of, anything else by chance.
SIZES = {
    "n_batch": (64, 7, 19, 43),
    "n_Q": (32, 11, 23, 47),
    "n_K": (48, 13, 29, 53),
    "d_feat": (200, 85, 217, 59 * 11),
    "n_head": (5, 17, 31, 59),
}
RUNS = [dict(zip(SIZES, run, strict=True)) for run in zip(*SIZES.values(), strict=True)]


def value_of(text, run):
    """What an expression is, as Python sees it."""
    return eval(text.replace("·", "*"), {}, run)


def runs_of(text):
    return tuple(int(value_of(text, run)) for run in RUNS)


EXPRESSIONS = """\
n_Q n_head 3·d_feat 64·n_head n_batch·n_head n_batch·n_Q·n_K 2·n_batch·n_Q n_Q·n_Q d_feat/n_head 2·d_feat/n_head
n_batch·d_feat/n_head n_Q+1 n_Q-4 2·n_Q-1 n_Q+n_K n_Q+n_K-1 n_batch+n_Q+n_K n_K-n_Q"""


@pytest.mark.parametrize("text", EXPRESSIONS.split())
def test_a_size_is_called_what_it_is(text):
    assert Symbols(SIZES).explain(runs_of(text)) == text


def test_a_half_is_written_as_a_quotient():
    sizes = {"n_Q": SIZES["n_Q"], "d_K": (32, 14, 22, 26)}
    assert Symbols(sizes).explain((16, 7, 11, 13)) == "d_K/2"
    assert Symbols(sizes).explain((48, 21, 33, 39)) == "3·d_K/2"


@given(
    st.lists(st.sampled_from(list(SIZES)), min_size=1, max_size=3),
    st.integers(1, 64),
    st.integers(-4, 4),
)
def test_whatever_it_is_called_it_has_that_value_in_every_run(names, factor, more):
    product = tuple(int(factor * value_of("·".join(names), run)) for run in RUNS)
    for sizes in (product, tuple(size + more for size in product)):
        text = Symbols(SIZES).explain(sizes)
        if text != str(sizes[0]):
            assert tuple(value_of(text, run) for run in RUNS) == sizes
        assert more or sizes != product or text != str(sizes[0])


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((3, 3, 3, 3), "3"),  # a number
        ((1, 1, 1, 1), "1"),
        ((0, 0, 0, 0), "0"),
        ((640, 640, 640, 640), "640"),
        ((32, 12, 23, 47), "32"),  # it changes, and nothing explains how
        ((32, 11, 23, 0), "32"),
        (tuple(65 * n for n in SIZES["n_Q"]), "2080"),  # a factor that explains nothing
        (tuple(n + 5 for n in SIZES["n_Q"]), "37"),
        ((32,), "32"),  # one run alone explains nothing
        ((32, None, None, None), "32"),
        ((32, 11, None, None), "n_Q"),  # not seen in every run
        ((33, None, 24, None), "n_Q+1"),
        ((40, None, 7, None), "d_feat/n_head"),
    ],
)
def test_what_nothing_explains_is_a_number(sizes, text):
    assert Symbols(SIZES).explain(sizes) == text


FIXED = {"n_Q": (32, 11, 23), "n_head": (12, 12, 12), "window": (8, 8, 8), "three": (3, 3, 3)}


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((12, 12, 12), "n_head"),  # as large as a name that may not change
        ((3, 3, 3), "3"),  # too small to mean anything
        ((96, 96, 96), "96"),
        ((12 * 32, 12 * 11, 12 * 23), "n_head·n_Q"),
        ((8 * 32, 8 * 11, 8 * 23), "window·n_Q"),
        ((3 * 32, 3 * 11, 3 * 23), "3·n_Q"),
        ((7 * 32, 7 * 11, 7 * 23), "7·n_Q"),
    ],
)
def test_a_name_that_did_not_change_is_used_with_care(sizes, text):
    assert Symbols(FIXED).explain(sizes) == text


@pytest.mark.parametrize(
    ("names", "sizes", "text"),
    [
        ({"n_Q": (32, 7, 11), "n_K": (32, 7, 11)}, (32, 7, 11), "n_Q"),  # of two, the first
        ({"n_K": (32, 7, 11), "n_Q": (32, 7, 11)}, (32, 7, 11), "n_K"),
        ({"n_Q": (32, 7, 11), "n_K": (32, 13, 17)}, (32, 13, 17), "n_K"),  # other runs tell them apart
        ({"n_head": (8, 8), "window": (8, 8), "n_Q": (32, 11)}, (8, 8), "8"),  # neither
        ({}, (5, 7), "5"),
    ],
)
def test_of_several_names_for_one_size_the_right_one_is_chosen_if_there_is_one(names, sizes, text):
    assert Symbols(names).explain(sizes) == text


def test_the_simplest_of_several_right_names_is_chosen():
    symbols = Symbols(
        {"d_feat": (200, 35, 143), "n_head": (5, 5, 11), "d_head": (40, 7, 13), "n": (6, 17, 19)}
    )
    assert symbols.explain((40, 7, 13)) == "d_head"
    assert symbols.explain((200, 35, 143)) == "d_feat"
    assert symbols.explain((1200, 595, 2717)) in ("n·d_feat", "d_feat·n")


def test_a_sum_of_products_with_a_fixed_size_has_a_name():
    symbols = Symbols({"n_head": (4, 5, 7), "d_plain": (12, 13, 17), "d_rot": (8, 8, 8)})
    assert symbols.explain((4 * 20, 5 * 21, 7 * 25)) == "n_head·d_plain+d_rot·n_head"


def test_small_sizes_that_stayed_for_want_of_others_name_nothing_if_there_are_several():
    sizes = {"n": (25, 25, 25), "h": (4, 4, 4), "w": (6, 6, 6), "d": (5, 7, 11)}
    assert Symbols(sizes).explain((6, 6, 6)) == "w"
    assert Symbols(sizes, {"n", "h", "w"}).explain((6, 6, 6)) == "6"
    assert Symbols(sizes, {"n", "h", "w"}).explain((25, 25, 25)) == "n"


def test_a_size_that_stayed_is_what_the_code_says_where_that_is_known():
    symbols = Symbols(FIXED)
    says_heads = AxisOrigin(whole=frozenset({"n_head"}), within=frozenset({"n_head"}))
    assert symbols.explain((12, 12, 12), AxisOrigin()) == "12"
    assert symbols.explain((12, 12, 12), says_heads) == "n_head"
    assert symbols.explain((8, 8, 8), says_heads) == "8"
    assert symbols.explain((12 * 32, 12 * 11, 12 * 23), AxisOrigin()) == "12·n_Q"
    assert symbols.explain((12 * 32, 12 * 11, 12 * 23), says_heads) == "n_head·n_Q"
    assert symbols.explain((32, 11, 23), AxisOrigin()) == "n_Q"  # it changed as n_Q does


def test_an_exact_sum_is_preferred_to_one_with_a_number():
    """That n+3 is d_rope here is chance; without a number, chance is rarer."""
    sizes = {"n": (7, 11, 19), "d_rope": (10, 14, 22), "d_latent": (34, 38, 58)}
    assert Symbols(sizes).explain((44, 52, 80)) == "d_rope+d_latent"
    assert Symbols(sizes).explain((42, 50, 78)) == "n+d_latent+1"


def test_what_an_axis_consists_of_decides_between_sums():
    sizes = {"a": (7, 11, 19), "b": (3, 5, 7), "c": (6, 10, 18), "d": (4, 6, 8)}
    of_c_and_d = AxisOrigin(within=frozenset({"c", "d"}))
    assert Symbols(sizes).explain((10, 16, 26)) == "a+b"
    assert Symbols(sizes).explain((10, 16, 26), of_c_and_d) == "c+d"


def test_sizes_that_follow_each_other_for_want_of_others_name_only_what_the_code_says():
    sizes = {"n": (16, 11, 23), "nope": (8, 14, 26), "rope": (8, 14, 26), "batch": (4, 7, 13)}
    symbols = Symbols(sizes, tied={"nope", "rope", "batch"})
    says_rope = AxisOrigin(whole=frozenset({"rope"}), within=frozenset({"rope"}))
    assert symbols.explain((8, 14, 26), says_rope) == "rope"
    assert symbols.explain((4, 7, 13), says_rope) == "rope/2"
    assert symbols.explain((8, 14, 26), AxisOrigin()) == "8"
    assert symbols.explain((16, 28, 52), AxisOrigin()) == "16"
    assert symbols.explain((16, 11, 23), AxisOrigin()) == "n"


def test_of_equal_sizes_that_stayed_the_code_says_which_it_is_and_what_a_sum_consists_of():
    symbols = Symbols({"n": (16, 11, 23), "nope": (8, 8, 8), "rope": (8, 8, 8)})
    says_rope = AxisOrigin(whole=frozenset({"rope"}), within=frozenset({"rope"}))
    says_both = AxisOrigin(within=frozenset({"nope", "rope"}), text="nope+rope")
    assert symbols.explain((8, 8, 8), says_rope) == "rope"
    assert symbols.explain((8, 8, 8)) == "8"
    assert symbols.explain((16, 16, 16), says_both) == "nope+rope"


def test_the_ratio_of_two_equal_sizes_is_no_term_of_a_sum():
    symbols = Symbols({"d": (12, 20, 28), "n": (16, 33, 55), "w": (4, 11, 5), "dim": (12, 20, 28)})
    assert symbols.explain((5, 4, 12)) == "n/w+1"


# From call to call: axes that change as those of an argument do.


def step(name, dims, shape, how="…", depth=0):
    return Step(name, tuple(dims.split()), shape, "float32", how, 4, line=3, depth=depth)


def calls(lengths, y_lengths, *, y="5"):
    """Calls of `f(x, y)` with x `B T 8`, y `B 5`, and a result of `B` and of the size of T."""
    return [
        [
            step("x", "B T 8", (2, n, 8), "input"),
            step("y", f"B {m if y.isdigit() else y}", (2, m), "input"),
            step("hidden", f"2 {n}", (2, n)),
            step("fixed", f"{8}", (8,)),
        ]
        for n, m in zip(lengths, y_lengths, strict=True)
    ]


def named(lengths, y_lengths, **options):
    traced = calls(lengths, y_lengths, **options)
    name_by_changes(traced)
    assert len({each[2].dims for each in traced}) == 1 or all(d.isdigit() for d in traced[0][2].dims)
    return " ".join(traced[0][2].dims)


@pytest.mark.parametrize(
    ("lengths", "y_lengths", "options", "dims"),
    [
        ([7, 12], [5, 5], {}, "2 T"),
        ([7, 7], [5, 5], {}, "2 7"),  # it did not change
        ([7], [5], {}, "2 7"),  # one call
        ([7, 12], [7, 12], {}, "2 7"),  # y is as long, and has no name
        ([7, 12], [7, 12], {"y": "S"}, "2 7"),  # it may be S
        ([7, 12], [7, 13], {"y": "S"}, "2 T"),
    ],
)
def test_an_axis_is_named_that_changes_with_one_axis_of_an_argument(lengths, y_lengths, options, dims):
    assert named(lengths, y_lengths, **options) == dims


def test_calls_of_other_shapes_are_compared_as_far_as_they_agree():
    first, other = calls([7, 12], [5, 5])
    other[2] = step("hidden", "2 12 1", (2, 12, 1))
    name_by_changes([first, [*other[:3], step("more", "12", (12,))]])
    assert first[2].dims == ("2", "7")
    name_by_changes([])


def test_a_program_calls_a_function_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hides.py").write_text(
        "import torch\n\n\ndef f(x):\n    B, T, C = x.shape\n    y = torch.linalg.pinv(x)\n    return y\n"
    )
    (tmp_path / "twice.py").write_text(
        "import torch\nfrom hides import f\n\nfor n in (5, 9):\n    f(torch.randn(2, n, 3))\n"
    )
    run = trace_script("twice.py", watch="hides.py:f", calls=2)
    sys.modules.pop("hides", None)
    assert [trace["y"].dims for trace in run.traces] == [("2", "3", "T")] * 2
