"""Circuits, compared with the singular values of the whole product, which attnscope never computes."""

import subprocess
import sys
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import attnscope
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.layouts import choose_stack, find_stacks
from attnscope.model.weights.head_weights import circuit, circuits, effective_rank, read_head
from tests.model.run.families import build, save


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 12), st.integers(0, 99))
def test_singular_values_are_those_of_the_whole_product(d_out, d_head, d_in, seed):
    left, right = drawn(seed, d_out, d_head), drawn(seed + 1, d_head, d_in)
    found = circuit("QK", left, right)
    whole = np.linalg.svd(left @ right, compute_uv=False)
    n = min(d_out, d_head, d_in)
    assert_allclose(found.singular_values, whole[:n], atol=1e-10)
    assert_allclose(whole[n:], 0, atol=1e-10)
    assert found.norm == pytest.approx(np.linalg.norm(left @ right))
    assert found.spectral_norm == pytest.approx(np.linalg.norm(left @ right, ord=2))


@pytest.mark.parametrize(
    ("family", "stack"), [("gpt2", None), ("llama", None), ("t5", "cross"), ("phi3", None)]
)
def test_a_heads_circuits_are_products_of_its_models_parameters(tmp_path, family, stack):
    save(family, tmp_path)
    model = build(family)
    head = read_head(Checkpoint(family, tmp_path), layer=1, head=2, stack=stack)
    theirs = choose_stack(find_stacks(model.state_dict(), model.config.to_dict(), family), stack, family)

    def of_head(part):
        """Return the head's rows of the left factor."""
        (piece,) = [piece for piece in head.weights if piece.name == f"W_{part}"]
        whole = model.get_parameter(theirs.tensor(part, 1, "weight")).detach()
        own = whole.narrow(piece.axis, piece.start, head.d_head)
        return (own.mT if piece.transposed else own).numpy()

    qk, ov = circuits(head)
    assert (qk.name, ov.name) == ("QK", "OV")
    products = (of_head("Q").T @ of_head("K"), of_head("O") @ of_head("V"))
    for found, product in zip((qk, ov), products, strict=True):
        assert_allclose(
            found.singular_values, np.linalg.svd(product, compute_uv=False)[: head.d_head], rtol=1e-9
        )


def test_cross_attention_takes_keys_of_another_width():
    found = circuit("QK", drawn(0, 20, 4), drawn(1, 4, 13))
    assert len(found.singular_values) == 4


def test_the_effective_rank_counts_what_is_alike():
    assert effective_rank(np.ones(5)) == pytest.approx(5)
    assert effective_rank(np.array([3.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_rank(np.array([2.0, 2.0, 0.0])) == pytest.approx(2)
    shares = np.array([0.5, 0.25, 0.25])
    assert effective_rank(7 * shares) == pytest.approx(2**1.5)  # an entropy of 1.5 bits


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_the_effective_rank_lies_between_none_and_all(sigma):
    rank = effective_rank(np.array(sigma))
    assert rank == 0 if sum(sigma) == 0 else 1 - 1e-9 <= rank <= len(sigma) + 1e-9


def test_weights_that_are_zero_have_rank_0_and_no_nan():
    found = circuit("OV", np.zeros((6, 3)), np.zeros((3, 5)))
    assert (found.effective_rank, found.norm, found.spectral_norm) == (0, 0, 0)
    assert found.singular_values == [0, 0, 0]


def test_weights_that_are_nan_or_infinite_have_circuits_that_are_nan():
    for value in (np.nan, np.inf):
        left = drawn(0, 6, 3)
        left[2, 1] = value
        found = circuit("QK", left, drawn(1, 3, 5))
        assert isnan(found.effective_rank)
        assert isnan(found.norm)
        assert all(map(isnan, found.singular_values))


def test_the_bundled_models_circuits_are_found_without_torch(minilm):
    code = (
        "import sys; from attnscope.model.weights.head_weights import read_head; from attnscope.model.weights.head_weights import circuits;"
        f"qk, ov = circuits(read_head({str(minilm)!r}, layer=2, head=7));"
        "assert len(qk.singular_values) == 32 and 1 < ov.effective_rank < 32;"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("family", "said"), [("llama", True), ("gptj", True), ("gpt2", False), ("bert", False)]
)
def test_circuits_say_that_qk_leaves_out_rotary_positions(tmp_path, family, said):
    save(family, tmp_path)
    head = attnscope.head_weights(tmp_path, layer=0, head=1, circuits=True)
    assert [each.startswith("QK leaves out rotary positions") for each in head.notices] == [True] * said
    assert attnscope.head_weights(tmp_path, layer=0, head=1).notices == []
    assert (
        "QK leaves out rotary positions" in attnscope.load(_saved(head, tmp_path))._repr_html_()
    ) == said


def _saved(head, folder):
    head.save(folder / "head.json")
    return folder / "head.json"
