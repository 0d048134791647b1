import json

import numpy as np
import pytest

from attnscope.base.errors import OptionError
from attnscope.document.values import (
    check_index,
    check_name,
    parse_selection,
    select,
    shown_record,
    shown_text,
)

ARRAY = np.arange(24.0).reshape(2, 3, 4)
DIMS = ("n_batch", "n_Q", "n_K")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("attention", ("attention", ())),
        ("attention[0]", ("attention", (0,))),
        ("attention[0, -1]", ("attention", (0, -1))),
        ("x[0,:2,1:]", ("x", (0, slice(None, 2, None), slice(1, None, None)))),
        ("x[..., 0]", ("x", (..., 0))),
        ("x[::-2]", ("x", (slice(None, None, -2),))),
    ],
)
def test_names_and_indices_are_parsed(text, expected):
    assert parse_selection(text) == expected


@pytest.mark.parametrize(
    "text", ["x[", "x[]", "x[a]", "x[1.5]", "x['k']", "x[None]", "x[0](1)", "x[::0]", "x[:'a']"]
)
def test_what_is_no_index_is_refused(text):
    with pytest.raises(OptionError, match="is not a name with an index"):
        parse_selection(text)


@pytest.mark.parametrize(
    "text", ["x", "x[1]", "x[0,2]", "x[:,1]", "x[...,3]", "x[0,...]", "x[-1,-3]", "x[1:,::2]"]
)
def test_selections_are_numpys(text):
    _, index = parse_selection(text)
    check_index(text, index, ARRAY.shape, DIMS)
    shown = select(text, index, ARRAY, "float64", DIMS)
    assert np.array_equal(shown.array, ARRAY[index])
    assert len(shown.dims) == shown.array.ndim


def test_dims_follow_the_axes_that_are_left():
    assert select("x", (0, ..., 1), ARRAY, "float64", DIMS).dims == ("n_Q",)
    assert select("x", (slice(1), 1), ARRAY, "float64", DIMS).dims == ("n_batch", "n_K")
    assert select("x", (), ARRAY, "float64", None).dims is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x[0,0,0,0]", "'x[0,0,0,0]' has 4 indices, but 2×3×4 has 3 axes (n_batch n_Q n_K)."),
        ("x[0,3]", "'x[0,3]': index 3 of n_Q is out of range: it has 3, 0 to 2."),
        ("x[...,-5]", "'x[...,-5]': index -5 of n_K is out of range: it has 4, 0 to 3."),
    ],
)
def test_an_index_that_does_not_fit_is_refused(text, message):
    _, index = parse_selection(text)
    with pytest.raises(OptionError) as caught:
        check_index(text, index, ARRAY.shape, DIMS)
    assert caught.value.message == message


def test_two_ellipses_are_refused():
    with pytest.raises(OptionError, match="has more than one"):
        check_index("x[..., ...]", (..., ...), ARRAY.shape, DIMS)


def test_blanks_around_a_name_do_not_matter():
    assert parse_selection(" x [0]") == ("x", (0,))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(OptionError, match="there is no 'score' in sdpa") as caught:
        check_name("score", ["Q", "scores"], "sdpa")
    assert caught.value.hint == 'show="scores"'
    with pytest.raises(OptionError, match="there is no 'mask' in sdpa") as caught:
        check_name("mask", ["Q", "scores"], "sdpa")
    assert caught.value.hint == "one of Q, scores"


def test_values_are_printed_below_what_they_are():
    shown = select("x[0]", (0,), ARRAY, "float32", DIMS)
    assert shown_text(shown) == (
        "x[0]  n_Q n_K  3×4  float32\n[[ 0.  1.  2.  3.]\n [ 4.  5.  6.  7.]\n [ 8.  9. 10. 11.]]"
    )


def test_many_values_are_shown_by_their_corners():
    text = shown_text(select("x", (), np.zeros((1000, 1000)), "float32", None))
    assert "..." in text
    assert len(text.splitlines()) < 12


def test_the_record_holds_all_values_and_is_valid_json():
    values = np.array([[1.5, np.nan], [np.inf, -np.inf]])
    document = json.loads(
        json.dumps(shown_record(select("x", (), values, "float64", None)), allow_nan=False)
    )
    assert document["values"] == [[1.5, "NaN"], ["Infinity", "-Infinity"]]
    assert shown_record(select("x[0,0]", (0, 0), values, "float64", None))["values"] == 1.5
