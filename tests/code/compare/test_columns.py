"""Functions whose vectors are columns, V·softmax(KᵀQ/√d_K), are compared with --layout columns."""

import pytest

from attnscope import AttnscopeError, compare

NAMED = {"Q": "B:2,d:8,n_Q:5", "K": "B,d,n_K:7", "V": "B,d_V:6,n_K"}


def matrices(Q, K, V):
    return V @ (K.T @ Q / Q.shape[0] ** 0.5).softmax(0)


def with_axes(Q, K, V, mask=None):
    scores = K.mT @ Q / Q.shape[-2] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return V @ scores.softmax(-2)


def other_axis(Q, K, V):
    return V @ (K.mT @ Q / Q.shape[-2] ** 0.5).softmax(-1)


def other_width(Q, K, V):
    return V @ (K.mT @ Q / K.shape[-1] ** 0.5).softmax(-2)


def rows(Q, K, V):
    return (Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-1) @ V


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("function", "options"),
    [
        (matrices, {}),
        (with_axes, {}),
        (with_axes, {"inputs": NAMED}),
        (with_axes, {"inputs": NAMED | {"mask": "n_K,n_Q@bool"}, "seed": 2}),
        (matrices, {"inputs": {"Q": "d:8,n_Q:5", "K": "d,n_K:7", "V": "d_V:6,n_K"}}),
    ],
)
def test_columns_equal_the_reference(function, options):
    result = compare(function, "sdpa", layout="columns", backward=True, **options)
    assert (result.status, result.divergences) == ("equal", [])
    assert [each.status for each in result.gradients] == ["equal"] * 3
    sizes = result.sizes
    assert (sizes["n_Q"], sizes["n_K"], sizes["d_head"], sizes["d_V"]) == (5, 7, 8, 6)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("function", "role", "cause"),
    [
        (other_axis, "attention", "softmax over another axis"),
        (other_width, "scores", "another scale"),
    ],
)
def test_a_mistake_in_columns_is_found(function, role, cause):
    [divergence] = compare(function, "sdpa", layout="columns").divergences
    assert (divergence.role, divergence.cause) == (role, cause)


@pytest.mark.parametrize(("function", "options"), [(matrices, {}), (with_axes, {"inputs": NAMED})])
def test_without_the_option_the_hint_names_it(function, options):
    with pytest.raises(
        AttnscopeError, match="are columns of its inputs, and those of sdpa are rows"
    ) as failure:
        compare(function, "sdpa", **options)
    assert "columns" in failure.value.hint


def test_rows_stay_rows():
    assert compare(rows, "sdpa", layout="rows").is_equal
    assert compare(rows, "sdpa").is_equal
    with pytest.raises(AttnscopeError, match="layout is 'diagonals'"):
        compare(rows, "sdpa", layout="diagonals")
