"""Sizes: all sources of a size must agree."""

from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.base.sizes import Sizes, one_dtype
from attnscope.base.tensor_files import TensorFile

NAMES = {"n_Q": "nq", "n_K": "nk", "n_head": "heads"}


def file(name, *shape, dtype="float32"):
    return TensorFile(name, Path(f"{name.lower()}.npy"), None, shape, dtype)


def test_a_size_is_what_an_option_or_a_file_says_or_else_the_default():
    sizes = Sizes({"n_Q": 3, "n_K": None}, NAMES)
    sizes.take(file("K", 5, 4), "n_K d_K")
    assert (sizes["n_Q"], sizes["n_K"], sizes["d_K"], sizes.get("d_V", 9)) == (3, 5, 4, 9)
    assert "d_V" not in sizes


def test_the_unknown_factor_of_a_merged_axis_is_learnt_from_the_known_one():
    sizes = Sizes({"n_head": 4}, NAMES)
    sizes.take(file("Q", 24), "n_head·d_K")
    assert sizes["d_K"] == 6
    sizes.take(file("K", 12), "n_kv_head·d_K")
    assert sizes["n_kv_head"] == 2


def test_equal_axes_learn_from_each_other():
    sizes = Sizes({"n_Q": 3}, NAMES)
    sizes.equate("n_K", "n_Q")
    assert sizes["n_K"] == 3
    with pytest.raises(AttnscopeError, match=r"K in k.npy has n_K 5 .*, but nq says that n_Q is 3"):
        sizes.take(file("K", 5), "n_K")


def test_what_is_supposed_gives_way_to_what_is_said():
    sizes = Sizes({"n_Q": 3}, NAMES)
    sizes.suppose("n_Q", 7)
    assert sizes["n_Q"] == 3


@pytest.mark.parametrize(
    ("shape", "dims", "message"),
    [
        ((5, 4), "n_Q d_K", "X in x.npy has n_Q 5 (axis 0 of 5×4), but nq says that n_Q is 3."),
        ((3,), "n_Q d_K", "X in x.npy is 3, but needs 2 axes: n_Q d_K."),
        ((), "n_Q d_K", "X in x.npy is a scalar, but needs 2 axes: n_Q d_K."),
        ((3, 0), "n_Q d_K", "X in x.npy is 3×0: it has no elements."),
        ((3, 7), "n_Q n_head·d_K", "X in x.npy is 7 wide (axis 1 of 3×7), but heads says that n_head is 2: 7 / 2 leaves 1."),
    ],
)  # fmt: skip
def test_who_disagrees_with_whom_is_said(shape, dims, message):
    sizes = Sizes({"n_Q": 3, "n_head": 2}, NAMES)
    with pytest.raises(AttnscopeError) as caught:
        sizes.take(file("X", *shape), dims)
    assert caught.value.message == message


def test_the_dtype_is_the_files_unless_one_is_asked_for():
    both = {"Q": file("Q", 2, dtype="float64"), "K": file("K", 2, dtype="float64")}
    assert one_dtype(both, None) == "float64"
    assert one_dtype(both, "float16") == "float16"
    assert one_dtype({}, None) == "float32"
    with pytest.raises(AttnscopeError, match=r"Q in q.npy is float64, but K in k.npy is float32"):
        one_dtype({**both, "K": file("K", 2)}, None)
    with pytest.raises(AttnscopeError, match=r"Q in q.npy is bool, and attention runs in float64"):
        one_dtype({"Q": file("Q", 2, dtype="bool")}, None)
