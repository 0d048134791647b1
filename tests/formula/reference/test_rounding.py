"""Tolerances: as wide as rounding errors, and no wider."""

import pytest
import torch

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SIZES = {"lead": "batch", "n_Q": 30, "n_new": 50, "d_K": 128, "d_V": 64}


def tolerance(ran, name="naive"):
    check = ran.checks()[name]
    assert check.ok
    return check.tolerance


@pytest.mark.sweep
def test_each_dtype_has_the_tolerance_of_its_precision(run_sdpa, run_mha):
    for run in (run_sdpa, run_mha):
        checks = {dtype: run(dtype=dtype).checks() for dtype in DTYPES}
        for name in ("F", "nn", "naive", "rows"):
            assert all(of_dtype[name].ok for of_dtype in checks.values())
            of_each = [checks[dtype][name].tolerance / torch.finfo(dtype).eps for dtype in DTYPES]
            assert max(of_each) < 50 * min(of_each)
            assert max(of_each) < 200


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_proportional_to_the_values(run_sdpa, dtype):
    ran = run_sdpa(**SIZES, dtype=dtype)
    before = tolerance(ran)
    for name in ("V", "out"):
        ran.trace[name].tensor = ran.trace[name].tensor * 4
    assert tolerance(ran) == pytest.approx(4 * before, rel=1e-3)


def test_it_grows_with_the_scores_and_never_beyond_the_values(run_sdpa):
    of_sizes = []
    for scale in (0.01, 1.0, 10.0, 100.0, 1e5):
        ran = run_sdpa(**SIZES, scale=scale, dtype=torch.bfloat16)
        of_sizes.append(tolerance(ran))
    assert of_sizes[:3] == sorted(of_sizes[:3])
    assert max(of_sizes) <= 2.1 * float(ran.inputs["V"].abs().max())


@pytest.mark.few(1)
@pytest.mark.parametrize("softmax", [torch.float16, torch.bfloat16])
def test_a_coarse_softmax_widens_it(run_sdpa, softmax):
    fine = tolerance(run_sdpa(**SIZES, dtype=torch.float32))
    coarse = tolerance(run_sdpa(**SIZES, dtype=torch.float32, softmax_dtype=softmax))
    whole = tolerance(run_sdpa(**SIZES, dtype=softmax))
    assert 50 * fine < coarse < 2 * whole


def test_a_fine_softmax_does_not_narrow_it(run_sdpa):
    narrow = run_sdpa(**SIZES, dtype=torch.bfloat16, softmax_dtype=torch.float32)
    assert tolerance(narrow) == pytest.approx(
        tolerance(run_sdpa(**SIZES, dtype=torch.bfloat16)), rel=0.1
    )


def test_pytorchs_formula_rounds_too_and_references_in_float64_do_not(run_sdpa):
    ran = run_sdpa(**SIZES, dtype=torch.float32)
    assert tolerance(ran, "F") == 2 * tolerance(ran, "nn") == 2 * tolerance(ran, "naive")


def test_in_float64_all_references_round_as_the_run_does(run_sdpa):
    ran = run_sdpa(**SIZES)
    assert tolerance(ran, "F") == tolerance(ran, "nn") == tolerance(ran, "naive")


def test_rows_that_are_left_out_do_not_widen_it(run_sdpa):
    mask = torch.ones(30, 50, dtype=torch.bool)
    mask[3] = False
    ran = run_sdpa(**SIZES, mask=mask, masked_rows="uniform", dtype=torch.float32)
    ran.trace["Q"].tensor[:, 3] *= 1000
    assert tolerance(ran, "F") == pytest.approx(
        tolerance(run_sdpa(**SIZES, dtype=torch.float32), "F"), rel=0.5
    )


def test_a_long_head_is_looked_at_in_parts(run_sdpa, monkeypatch):
    ran = run_sdpa(**SIZES, dtype=torch.float32)
    whole = tolerance(ran)
    monkeypatch.setattr("attnscope.formula.reference.naive.BLOCK", 7 * 50)
    assert tolerance(ran) == pytest.approx(whole)


@pytest.mark.few(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize("kind", ["normal", "positive", "repeated", "alike", "sparse", "one large axis"])
def test_it_is_wide_enough_for_values_of_every_kind(run_sdpa, dtype, size, kind):
    ran = run_sdpa(lead="batch", n_Q=40, n_new=60, d_K=32, d_V=32, dtype=dtype, claims={"scale": 0.01})
    torch.manual_seed(0)
    for name in ("Q", "K", "V"):
        x = torch.randn(ran.trace[name].tensor.shape)
        if kind == "positive":
            x = x.abs()
        elif kind == "repeated":
            x = x[:, torch.randint(3, (x.size(1),))]
        elif kind == "alike":
            x = x * 0.01 + 1
        elif kind == "sparse":
            x = x * (torch.rand_like(x) < 0.1)
        elif kind == "one large axis":
            x[..., 0] *= 20
        ran.trace[name].tensor = (x * size).to(dtype)
    Q, K, V = (ran.trace[name].tensor for name in "QKV")
    attention = (Q @ K.mT * 0.01).softmax(-1)
    ran.trace["attention"].tensor, ran.trace["out"].tensor = attention, attention @ V
    if not attention.isnan().any():
        assert not ran.failed()
