"""PyTorch's references: their inputs, what they cannot express, and the notes about that."""

import math

import pytest
import torch
import torch.nn.functional as F

from attnscope.formula.reference import references
from attnscope.formula.reference.run import VerifiedRun

HALF_BLIND = torch.tensor(
    [[True, False, True, True, False], [False] * 5, [False, True, True, False, True]]
)
"""A mask whose second query sees no key."""


def run_of(ran):
    return VerifiedRun(ran.trace, ran.weights)


def additive(mask, fill=-math.inf, dtype=torch.float64):
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, fill)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d_V", [6, 7])
def test_pytorchs_formula_gives_zeros_to_a_query_that_sees_no_key(dtype, d_V):
    Q, K, V = (torch.randn(2, 4, n, d, dtype=dtype) for n, d in ((3, 6), (5, 6), (5, d_V)))
    for mask in (HALF_BLIND, additive(HALF_BLIND, dtype=dtype)):
        assert (F.scaled_dot_product_attention(Q, K, V, mask)[:, :, 1] == 0).all()


# What cannot be expressed.


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("options", "formula", "module"),
    [
        ({"softcap": 5.0}, "a soft cap, which it does not have", "a soft cap, which it does not have"),
        (
            {"dropout": 0.5},
            "this dropout: it draws its own random values",
            "this dropout: it draws its own random values",
        ),
        (
            {"rope_theta": 1e4},
            None,
            "rotary positions: it projects Q and K itself and does not rotate them",
        ),
        ({"n_past": 2}, None, "a past: it projects all of its keys itself"),
        (
            {"mask": torch.zeros(3, 3, dtype=torch.bool)},
            "rows that see no key: it returns zeros for them",
            "rows that see no key: it returns NaN for them",
        ),
        (
            {"mask": torch.eye(3, dtype=torch.bool), "mask_fill": -2.0},
            "rows where hidden keys have weight: it hides them, but a fill of -2 does not",
            "rows where hidden keys have weight: it hides them, but a fill of -2 does not",
        ),
    ],
)
def test_what_cannot_be_expressed_is_told_and_never_left_out(run_mha, options, formula, module):
    checks = run_mha(**options).checks()
    for name, why in (("F", formula), ("nn", module)):
        if why is not None:
            check = checks[name]
            assert (check.max_abs_diff, check.tolerance, check.ok) == (None, None, None)
            assert check.note == f"cannot express {why}"
    assert checks["naive"].ok
    assert (
        checks["rows"].ok
        or checks["rows"].note == "cannot express rows that see no key: their weights are NaN"
    )


def test_numbers_that_rounding_decides_are_not_compared(run_sdpa):
    blind = additive(torch.zeros(3, 5, dtype=torch.bool), fill=-1e9)
    check = run_sdpa(mask=blind).checks()["naive"]
    assert check.ok is None
    assert check.note == (
        "cannot express rows that see no key: the mask is so large that rounding decides their weights"
    )


# What is compared all the same.


@pytest.mark.few(3)
@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize(
    ("mask", "options", "formula", "module", "naive", "sums"),
    [
        (HALF_BLIND, {}, 8, 8, 0, 8),
        (HALF_BLIND, {"masked_rows": "nan", "mask_fill": -1e4}, 8, 8, 0, 0),
        (HALF_BLIND, {"masked_rows": "uniform"}, 8, 8, 0, 8),
        (HALF_BLIND, {"masked_rows": "zero"}, 0, 8, 0, 8),
        (HALF_BLIND, {"mask_fill": -1e9}, 8, 8, 0, 0),
        (additive(HALF_BLIND), {}, 8, 8, 0, 8),
        (additive(HALF_BLIND), {"masked_rows": "zero"}, 0, 8, 0, 8),
        (additive(HALF_BLIND, -1e9), {}, 8, 8, 8, 0),
        (additive(HALF_BLIND, -1e9), {"masked_rows": "zero"}, 8, 8, 0, 0),
        (torch.randn(3, 5).double(), {}, 0, 0, 0, 0),
        (torch.full((3, 5), -9.0).double(), {}, 0, 0, 0, 0),
    ],
)
def test_rows_that_see_no_key_are_left_out_where_a_reference_makes_something_else_of_them(
    run_sdpa, form, mask, options, formula, module, naive, sums
):
    checks = run_sdpa(form, mask=mask, **options).checks()
    counts = {"F": formula, "nn": module, "naive": naive, "rows": sums}
    for name, count in counts.items():
        assert checks[name].ok, checks[name]
        assert checks[name].note == (f"without {count} rows that see no key" if count else "")


def test_one_row_that_is_left_out_is_one_row(run_sdpa):
    checks = run_sdpa("query", lead="", query=1, mask=HALF_BLIND, masked_rows="zero").checks()
    assert checks["F"].note == ""
    checks = run_sdpa(lead="", mask=HALF_BLIND).checks()
    assert checks["F"].note == "without 1 row that sees no key"


def test_rows_where_a_fill_hides_nothing_are_left_out(run_sdpa):
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 0] = False
    checks = run_sdpa(lead="batch", mask=mask, mask_fill=-1.0).checks()
    assert checks["F"].note == checks["nn"].note == "without 2 rows where hidden keys have weight"
    assert checks["naive"].note == ""
    assert all(check.ok for check in checks.values())


def test_merged_rows_are_left_out_if_one_head_sees_no_key(run_mha):
    mask = torch.ones(2, 4, 3, 3, dtype=torch.bool)
    mask[0, 1, 2] = False
    checks = run_mha(mask=mask).checks()
    assert checks["F"].note.endswith("to x_raw; without 1 row that sees no key")
    assert checks["nn"].note == "without 1 row that sees no key"
    assert all(check.ok for check in checks.values())


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("options", "formula", "module"),
    [
        ({}, "", ""),
        ({"rope_theta": 1e4}, "from Q_rot, K_rot and V to out", "from Q_rot, K_rot and V to out"),
        ({"n_past": 2}, "from Q, K_all and V_all to out", "from Q, K_all and V_all to out"),
        ({"n_kv_head": 2}, "", ""),
        (
            {"lead": "split"},
            "from Q_split, K_split and V_split to out",
            "from Q_split, K_split and V_split to out_merged",
        ),
        ({"lead": "batch", "n_Q": 5, "d_feat": 3}, "from Q, K and V to out", "from Q, K and V to out"),
    ],
)
def test_a_reference_of_a_part_says_of_which(run_sdpa, options, formula, module):
    checks = run_sdpa(**options).checks()
    assert (checks["F"].note, checks["nn"].note) == (formula, module)
    assert checks["naive"].note == checks["rows"].note == ""
    assert all(check.ok for check in checks.values())


# nn.MultiheadAttention does what its weights were set for.


@pytest.mark.few(3)
@pytest.mark.parametrize("scale", [0.3, -2.0, 0.0])
@pytest.mark.parametrize("n_kv_head", [1, 2, 4])
@pytest.mark.parametrize(("d_K", "d_V"), [(6, 6), (6, 3), (2, 7)])
def test_the_module_computes_the_formula_where_its_projections_are_identities(
    run_sdpa, scale, n_kv_head, d_K, d_V
):
    ran = run_sdpa(n_kv_head=n_kv_head, d_K=d_K, d_V=d_V, scale=scale)
    expected = F.scaled_dot_product_attention(
        *(ran.inputs[n] for n in "QKV"), scale=scale, enable_gqa=True
    )
    ours = torch.from_numpy(references.module(run_of(ran)))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.few(3)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n_kv_head", "d_V", "d_context"), [(4, None, None), (2, 3, None), (1, 9, 5)])
def test_the_module_projects_with_the_runs_weights(run_mha, bias, n_kv_head, d_V, d_context):
    ran = run_mha(n_new=5, n_kv_head=n_kv_head, d_V=d_V, d_context=d_context, bias=bias, scale=0.3)

    def linear(x, name):
        return F.linear(x, ran.weights[f"W_{name}.weight"], ran.weights.get(f"W_{name}.bias"))

    heads = {"Q": 4, "K": n_kv_head, "V": n_kv_head}
    Q, K, V = (linear(ran.inputs[n], n).unflatten(-1, (heads[n], -1)).transpose(1, 2) for n in "QKV")
    merged = (
        F.scaled_dot_product_attention(Q, K, V, scale=0.3, enable_gqa=True).transpose(1, 2).flatten(2)
    )
    with torch.no_grad():
        ours = torch.from_numpy(references.module(run_of(ran)))
    torch.testing.assert_close(ours, linear(merged, "O"), rtol=0, atol=1e-12)


def test_many_sequences_are_computed_a_few_at_a_time(run_mha, monkeypatch):
    ran = run_mha(n_batch=5, mask=torch.rand(5, 1, 3, 3) < 0.9)
    with torch.no_grad():
        whole = references.module(run_of(ran))
        monkeypatch.setattr(references, "SCORES", 2 * 4 * 3 * 3)
        assert references.module(run_of(ran)) == pytest.approx(whole, abs=1e-14, nan_ok=True)


@pytest.mark.few(2)
@pytest.mark.parametrize("mask", [None, (2, 1, 9, 5), (1, 1, 1, 5), (2, 4, 9, 5)])
def test_many_queries_are_computed_a_few_at_a_time(run_sdpa, monkeypatch, mask):
    options = {} if mask is None else {"mask": torch.rand(mask) < 0.8, "masked_rows": "zero"}
    ran = run_sdpa(lead="heads", n_kv_head=2, n_Q=9, n_new=5, d_K=2, d_V=2, **options)
    with torch.no_grad():
        fused, module = references.sdpa(run_of(ran)), references.module(run_of(ran))
        monkeypatch.setattr(references, "SCORES", 2 * 5)
        assert references.sdpa(run_of(ran)) == pytest.approx(fused, abs=1e-14, nan_ok=True)
        assert references.module(run_of(ran)) == pytest.approx(module, abs=1e-14, nan_ok=True)


def test_nothing_is_drawn(run_mha):
    ran = run_mha()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    ran.checks()
    assert torch.equal(torch.rand(3), expected)
