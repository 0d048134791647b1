"""Correct runs of all variants are verified, and wrong ones are not."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnscope.attention.mha
import attnscope.attention.sdpa
from tests.profiles import examples

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
dtypes = st.sampled_from(DTYPES)
size = st.integers(1, 6)


@st.composite
def variants(draw, axes, dtype, *, turns):
    """Draw options of the textbook for scores with these axes."""
    options = {
        "dtype": dtype,
        "seed": draw(st.integers(0, 999)),
        "size": draw(st.sampled_from([0.01, 1, 4])),
    }
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([2.0, 50.0]))
    if draw(st.booleans()):
        options["softmax_dtype"] = draw(dtypes)
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.1, 1.0]))
    if turns and draw(st.booleans()):
        options["rope_theta"] = draw(st.sampled_from([10000.0, 7.0]))
        options["align"] = draw(st.sampled_from(["top-left", "bottom-right", "after-past"]))
    style = draw(st.sampled_from(["none", "bool", "additive", "bias"]))
    if style == "none":
        return options
    first = draw(st.integers(0, len(axes) - 2))
    shape = [size if i >= len(axes) - 1 or draw(st.booleans()) else 1 for i, size in enumerate(axes)][
        first:
    ]
    generator = torch.Generator().manual_seed(options["seed"])
    if style == "bias":
        return options | {"mask": torch.randn(shape, generator=generator).to(dtype)}
    allowed = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.2, 0.8]))
    fill = draw(st.sampled_from([-math.inf, -1e4, -65504.0]))
    rows = draw(st.sampled_from([None, "nan", "uniform", "zero"]))
    options |= {} if rows is None else {"masked_rows": rows}
    if style == "bool":
        return options | {"mask": allowed, "mask_fill": fill}
    return options | {"mask": torch.zeros(shape, dtype=dtype).masked_fill(~allowed, fill)}


def assert_right(ran):
    for check in ran.checks().values():
        if check.ok is None:
            assert (check.max_abs_diff, check.tolerance) == (None, None)
            assert check.note.startswith("cannot express ")
        else:
            assert check.ok, check


@pytest.mark.sweep
@given(
    data=st.data(),
    form=st.sampled_from(["rows", "columns", "query"]),
    lead=st.sampled_from(["", "batch", "heads", "split"]),
    dtype=dtypes,
)
@examples(8, 150)
def test_a_right_run_of_sdpa_holds(run_sdpa, data, form, lead, dtype):
    if lead == "split" and form == "columns":
        lead = "heads"
    n_Q, n_new, n_past = data.draw(size), data.draw(size), data.draw(st.integers(0, 3))
    axes = [*{"": [], "batch": [2]}.get(lead, [2, 4]), n_Q, n_past + n_new]
    options = data.draw(variants(axes, dtype, turns=form != "columns"))
    projected = {"d_feat": data.draw(size)} if n_Q == n_new and lead != "heads" else {}
    d_K = data.draw(size) * (2 if "rope_theta" in options else 1)
    if form == "query":
        options["query"] = data.draw(st.integers(0, n_Q - 1))
    widths = {"n_Q": n_Q, "n_new": n_new, "n_past": n_past, "d_K": d_K, "d_V": data.draw(size)}
    n_kv_head = data.draw(st.sampled_from([1, 2, 4]))
    assert_right(run_sdpa(form, lead=lead, n_kv_head=n_kv_head, **widths, **projected, **options))


@pytest.mark.sweep
@given(data=st.data(), dtype=dtypes, cross=st.booleans(), bias=st.booleans())
@examples(8, 150)
def test_a_right_run_of_mha_holds(run_mha, data, dtype, cross, bias):
    n_batch, n_kv_head, n_Q = data.draw(size), data.draw(st.integers(1, 3)), data.draw(size)
    n_head = n_kv_head * data.draw(st.integers(1, 3))
    n_past = data.draw(st.integers(0, 3))
    widths = {"n_batch": n_batch, "n_head": n_head, "n_kv_head": n_kv_head, "n_Q": n_Q, "n_past": n_past}
    n_new = n_Q
    if cross:
        n_new = data.draw(size)
        widths |= {"n_new": n_new, "d_context": data.draw(size)}
    options = data.draw(variants([n_batch, n_head, n_Q, n_past + n_new], dtype, turns=True))
    widths["d_head"] = data.draw(size) * (2 if "rope_theta" in options else 1)
    widths["d_V"] = data.draw(st.none() | size)
    dropout = data.draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
    assert_right(run_mha(**widths, **options, bias=bias, dropout=dropout))


def test_a_run_of_default_sizes_is_compared_with_all_references(run_sdpa, run_mha):
    ran = run_sdpa(lead="batch", n_Q=30, n_new=50, d_K=128, d_V=256, dtype=torch.float32)
    assert all(check.ok and check.note == "" for check in ran.checks().values())
    ran = run_mha(n_head=5, n_kv_head=5, n_Q=32, d_head=40, dtype=torch.float32)
    checks = ran.checks()
    assert all(check.ok for check in checks.values())
    assert [check.note for check in checks.values()] == [
        "from Q_split, K_split and V_split to x_raw", "", "", ""
    ]  # fmt: skip


# Wrong runs: the code is broken, or the trace says otherwise.

SDPA = {"lead": "batch", "n_Q": 30, "n_new": 50, "d_K": 128, "d_V": 256}
MHA = {"n_batch": 32, "n_head": 5, "n_kv_head": 5, "n_Q": 32, "d_head": 40}
ALL = {"F", "nn", "naive"}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.mark.few(1)
@each_dtype
@pytest.mark.parametrize("share", [0.9, 1.1])
def test_a_scale_that_is_a_tenth_off_is_found(run_sdpa, run_mha, dtype, share):
    wrong = {"scale": share * 128**-0.5, "claims": {"scale": 128**-0.5}}
    assert run_sdpa(**SDPA, **wrong, dtype=dtype).failed() == ALL
    wrong = {"scale": share * 40**-0.5, "claims": {"scale": 40**-0.5}}
    assert run_mha(**MHA, **wrong, dtype=dtype).failed() >= {"nn", "naive"}


@pytest.mark.few(3)
@each_dtype
@pytest.mark.parametrize("style", ["bool", "additive"])
def test_a_mask_that_is_one_key_off_is_found(run_sdpa, dtype, style):
    causal = torch.ones(30, 50, dtype=torch.bool).tril()
    shifted = torch.ones(30, 50, dtype=torch.bool).tril(1)
    if style == "additive":
        causal, shifted = (
            torch.zeros(30, 50, dtype=dtype).masked_fill(~m, -1e4) for m in (causal, shifted)
        )
    ran = run_sdpa(**SDPA, mask=shifted, dtype=dtype)
    ran.trace["mask"].tensor = causal
    assert ran.failed() == ALL


@pytest.mark.few(1)
@each_dtype
def test_keys_that_are_shared_in_the_wrong_order_are_found(run_sdpa, run_mha, dtype, monkeypatch):
    def in_turn(K, Q):
        return K.repeat(1, Q.size(1) // K.size(1), 1, 1)

    monkeypatch.setattr(attnscope.attention.sdpa, "shared", in_turn)
    monkeypatch.setattr(attnscope.attention.mha, "shared", in_turn)
    assert run_sdpa(n_kv_head=2, dtype=dtype).failed() == ALL
    assert run_mha(**MHA | {"n_head": 10, "d_head": 20}, dtype=dtype).failed() == ALL


@pytest.mark.few(1)
@each_dtype
def test_keys_that_are_not_turned_are_found(run_mha, dtype, monkeypatch):
    turn = attnscope.attention.mha.rotated
    vectors = []

    def queries_alone(x, *angles):
        vectors.append(x)
        return turn(x, *angles) if len(vectors) == 1 else x.clone()

    monkeypatch.setattr(attnscope.attention.mha, "rotated", queries_alone)
    ran = run_mha(**MHA, rope_theta=10000.0, dtype=dtype)
    assert len(vectors) == 2
    assert ran.failed() == {"naive"}  # the two others start with what is turned, or do not turn


@pytest.mark.few(1)
@each_dtype
@pytest.mark.parametrize("part", ["V", "O"])
def test_a_bias_that_is_not_added_is_found(run_mha, dtype, part):
    ran = run_mha(**MHA, dtype=dtype)
    ran.weights[f"W_{part}.bias"] += 0.05
    assert ran.failed() == {"nn", "naive"}


@pytest.mark.few(2)
@each_dtype
def test_a_past_that_comes_after_the_new_keys_is_found(run_sdpa, dtype, monkeypatch):
    def after(past, new, dim=-2):
        return torch.cat((new, past), dim=dim)

    monkeypatch.setattr(attnscope.attention.sdpa, "with_past", after)
    causal = torch.ones(3, 8, dtype=torch.bool).tril(5)
    assert run_sdpa(n_past=3, mask=causal, dtype=dtype).failed() == {"naive"}


def test_scores_that_are_not_capped_are_found(run_sdpa):
    assert run_sdpa(size=4.0, claims={"softcap": 2.0}).failed() == {"naive"}


def test_a_softmax_over_the_queries_is_found(run_sdpa, monkeypatch):
    monkeypatch.setattr(attnscope.attention.sdpa, "softmax", lambda scores, dtype: scores.softmax(-2))
    assert run_sdpa().failed() == ALL | {"rows"}


def test_dropped_weights_that_do_not_grow_are_found(run_mha):
    ran = run_mha(dropout=0.5, claims={"dropout": 0.4})
    assert ran.failed() == {"naive"}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("run", "options", "name", "failed"),
    [
        ("sdpa", {}, "out", ALL),
        ("sdpa", {"form": "columns"}, "out", ALL),
        ("sdpa", {"form": "query", "query": 1}, "out", ALL),
        ("sdpa", {"lead": "split"}, "out", {"F"}),
        ("sdpa", {"lead": "split"}, "out_merged", {"nn", "naive"}),
        ("sdpa", {"n_past": 2}, "K_past", {"naive"}),
        ("sdpa", {"n_past": 2}, "V_all", {"F", "nn"}),
        ("sdpa", {"lead": "batch", "n_Q": 5, "d_feat": 3}, "X", {"naive"}),
        ("sdpa", {}, "Q", ALL),
        ("mha", {}, "x_raw", {"F"}),
        ("mha", {}, "x", {"nn", "naive"}),
        ("mha", {}, "K_split", {"F"}),
        ("sdpa", {}, "attention", {"rows"}),
        ("mha", {}, "attention", {"rows"}),
    ],
)
def test_a_tensor_that_is_not_what_was_computed_fails_the_checks_that_depend_on_it(
    run_sdpa, run_mha, run, options, name, failed
):
    ran = (run_sdpa if run == "sdpa" else run_mha)(**options)
    assert ran.failed() == set()
    tensor = ran.trace[name].tensor.clone()
    tensor[(0,) * tensor.dim()] += 1e-3
    ran.trace[name].tensor = tensor
    assert ran.failed() == failed


def test_nan_in_the_place_of_a_number_is_infinitely_far_off(run_sdpa):
    ran = run_sdpa()
    ran.trace["out"].tensor = ran.trace["out"].tensor.clone()
    ran.trace["out"].tensor[0, 0, 0, :2] = torch.nan
    for name in ALL:
        check = ran.checks()[name]
        assert (check.max_abs_diff, check.ok) == (math.inf, False)
        assert math.isfinite(check.tolerance)
        assert check.note == "2 of 168 numbers are NaN or infinite, but should not be"


def test_a_number_in_the_place_of_nan_is_infinitely_far_off(run_sdpa):
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    ran = run_sdpa(mask=mask)
    ran.trace["out"].tensor = ran.trace["out"].tensor.nan_to_num(0.0)
    check = ran.checks()["naive"]
    assert (check.max_abs_diff, check.ok) == (math.inf, False)
    assert check.note == "56 of 168 numbers should be NaN or infinite, but are not"


def test_nan_in_the_inputs_is_nan_in_the_references(run_sdpa):
    ran = run_sdpa(seed=1)
    hole = ran.trace["K"].tensor.clone()
    hole[0, 0, 0, 0] = torch.nan
    broken = run_sdpa(seed=1)
    for name in ("Q", "K", "V"):
        broken.trace[name].tensor = hole if name == "K" else ran.trace[name].tensor
    out = attnscope.attention.sdpa.sdpa(broken.trace["Q"].tensor, hole, broken.trace["V"].tensor)
    broken.trace["out"].tensor = out
    assert out.isnan().any()
    assert not broken.failed()
    spread = "cannot express NaN or infinity in its inputs, which its projections spread"
    assert broken.checks()["nn"].note == spread


def test_an_overflow_that_leaves_no_nan_is_told_too(run_sdpa):
    ran = run_sdpa(lead="", n_Q=1, n_new=2, d_K=2, d_V=1, dtype=torch.float16, claims={"scale": 1e-4})
    Q, K, V = (
        torch.tensor([[300.0, 0]]),
        torch.tensor([[-300.0, 0], [-200, 0]]),
        torch.tensor([[0.0], [8]]),
    )
    Q, K, V = (x.half() for x in (Q, K, V))
    scores = Q @ K.mT * 1e-4
    assert scores.tolist() == [[-math.inf, -6.0]]
    attention = scores.softmax(-1)
    made = {"Q": Q, "K": K, "V": V, "scores": scores, "attention": attention, "out": attention @ V}
    for name, tensor in made.items():
        ran.trace[name].tensor = tensor
    check = ran.checks()["naive"]
    assert check.ok is False
    assert check.max_abs_diff == pytest.approx(8 / (1 + math.exp(3)), abs=0.01)
    assert check.note == "float16 overflows above 65504"


def test_products_beyond_the_range_of_float16_are_told(run_sdpa):
    ran = run_sdpa(size=200.0, d_K=128, scale=1e-4, dtype=torch.float16)
    assert ran.trace["scores"].tensor.isinf().any()
    check = ran.checks()["naive"]
    assert (check.max_abs_diff, check.ok) == (math.inf, False)
    assert check.note.endswith(
        "numbers are NaN or infinite, but should not be; float16 overflows above 65504"
    )
