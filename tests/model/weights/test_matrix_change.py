"""The change of matrices and of their products, compared with dense products and with exact ranks."""

import numpy as np
import pytest

from attnscope.document.result import UNMEASURED
from attnscope.model.files.result import WeightSlice
from attnscope.model.weights.matrix_change import MatrixChange, _triangle, circuit_change

D_FEAT, D_OTHER, D_HEAD = 60, 50, 7


def piece(array: np.ndarray, dtype: str = "float64", dims=("d_head", "d_feat")) -> WeightSlice:
    """Return a slice of W_Q, W_K or W_V; of W_O with the other dims."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
        array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    else:
        array = array.astype(dtype)
    return WeightSlice(
        "W", "w", array.shape, 0, 0, 1, array.shape, dtype, UNMEASURED, array=array, dims=dims
    )


def exact(each: WeightSlice) -> np.ndarray:
    if each.dtype == "bfloat16":
        return (each.array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return each.array.astype(np.float64)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def low_rank(seed: int, rows: int, columns: int, rank: int) -> np.ndarray:
    return drawn(seed, rows, rank) @ drawn(seed + 1, rank, columns)


@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_a_triangle_has_the_products_of_the_rows(precise, rank):
    rows = np.concatenate(
        [1e-3 * low_rank(0, 8, D_FEAT, rank), drawn(2, 8, D_FEAT), np.zeros((1, D_FEAT))]
    )
    R = _triangle(rows, precise)
    assert pytest.approx(rows @ rows.T, abs=1e-10) == R.T @ R
    assert R.shape == (17, 17)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_circuit_changes_as_the_dense_product_does(dtype):
    Q, K = drawn(0, D_HEAD, D_FEAT), drawn(1, D_HEAD, D_OTHER)
    pairs = [
        (piece(each, dtype), piece(each + 0.3 * drawn(i + 10, *each.shape), dtype))
        for i, each in enumerate((Q, K))
    ]
    (Q_a, Q_b), (K_a, K_b) = [[exact(each) for each in pair] for pair in pairs]
    before, after = Q_a.T @ K_a, Q_b.T @ K_b
    measured = circuit_change(*(MatrixChange(*pair) for pair in pairs))
    assert measured.relative == pytest.approx(
        np.linalg.norm(after - before) / np.linalg.norm(before), rel=1e-6
    )
    assert measured.rank == 2 * D_HEAD


def test_the_output_matrix_is_contracted_over_its_second_axis():
    W_O, W_V = drawn(0, D_FEAT, D_HEAD), drawn(1, D_HEAD, D_OTHER)
    change = np.zeros_like(W_O)
    change[:, 3] = drawn(2, D_FEAT)
    output = MatrixChange(
        piece(W_O, dims=("d_feat", "d_head")), piece(W_O + change, dims=("d_feat", "d_head"))
    )
    measured = circuit_change(output, MatrixChange(piece(W_V), piece(W_V)))
    dense = np.linalg.norm(change @ W_V) / np.linalg.norm(W_O @ W_V)
    assert (measured.relative, measured.rank) == (pytest.approx(dense), 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_the_rank_is_that_of_the_change_before_it_was_rounded(dtype, rank):
    for seed in range(20):
        W = drawn(seed, 32, 300)
        change = low_rank(seed, 32, 300, rank) if rank else np.zeros_like(W)
        rounded = MatrixChange(piece(exact(piece(W, "float32")), dtype), piece(W + change, dtype))
        assert rounded.measured.rank == rank


def test_rounding_of_the_second_alone_is_less():
    """A float32 weight plus a tiny change, rounded to float32: its rank shows if the first is exact."""
    W = drawn(0, 32, 300).astype(np.float32)
    bfloat = piece(W, "bfloat16")
    change = 1e-3 * low_rank(0, 32, 300, 2)
    after = piece(exact(bfloat) + change, "float32")
    assert MatrixChange(bfloat, after).measured.rank == 0  # could be rounding of the first to bfloat16
    assert MatrixChange(bfloat, after, exact=True).measured.rank == 2


def test_a_zero_is_equal_to_a_negative_zero_and_not_bit_for_bit():
    change = MatrixChange(piece(np.zeros((3, 5))), piece(-np.zeros((3, 5))))
    assert not change.equal
    assert (change.measured.relative, change.measured.rank) == (0, 0)
