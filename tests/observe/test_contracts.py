"""The contract and a real run produce the same rows for all options."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope import trace_call
from attnscope.attention.columns import sdpa_columns
from attnscope.attention.mha import MultiHeadAttention
from attnscope.attention.one_query import sdpa_query
from attnscope.attention.sdpa import sdpa
from attnscope.base.dtypes import FLOATS
from attnscope.base.errors import OptionError, SizeError
from attnscope.observe import contracts
from tests.profiles import examples

size = st.integers(1, 6)
dtypes = st.sampled_from(list(FLOATS))
devices = st.sampled_from(["cpu", "meta"])
FORMS = {
    "rows": (sdpa, contracts.sdpa),
    "columns": (sdpa_columns, contracts.sdpa_columns),
    "query": (sdpa_query, contracts.sdpa_query),
}


@st.composite
def variants(draw, sizes, dims):
    """Draw a contract's variant, and the same as arguments of the code: all of its, and those of a call."""
    mask = draw(st.none() | st.sampled_from(dims))
    softcap = draw(st.none() | st.just(2.0))
    rows = draw(st.none() | st.sampled_from(["nan", "uniform", "zero"]))
    rope = draw(st.none() | st.just(10000.0))
    dtype = draw(st.sampled_from(["bool", ""]))
    variant = contracts.Variant(
        mask=mask, mask_dtype=dtype, softcap=softcap, masked_rows=rows, rope_theta=rope
    )
    align = draw(st.sampled_from([None, "top-left", "bottom-right", "after-past", "lengths"]))
    n_batch, of_call = sizes.get("n_batch", 1), {}
    if align == "lengths":
        length = st.integers(1, sizes["n_K"])
        lengths = draw(st.lists(length, min_size=n_batch, max_size=n_batch), label="lengths")
        of_call["lengths"] = lengths
        variant = replace(variant, shortest=min(lengths))
    variant = replace(variant, after_past=align == "after-past")
    options = {"softcap": softcap, "masked_rows": rows, "rope_theta": rope, "align": align}
    return variant, options, of_call


def drawn(plan, dtype, device):
    """Return tensors of ones with the shape of each input."""
    return {
        step.name: torch.ones(step.shape, dtype=getattr(torch, step.dtype), device=device)
        for step in plan.steps
        if step.how == "input"
    }


@given(data=st.data(), dtype=dtypes, device=devices, form=st.sampled_from(list(FORMS)))
@examples(8, 300)
def test_sdpa_runs_as_its_contract_says(data, dtype, device, form):
    code, contract = FORMS[form]
    lead = data.draw(st.sampled_from([(), ("n_batch",), ("n_batch", "n_head")]), label="lead")
    axes = (*lead, "n_Q", "n_K", "d_K", "d_V")
    sizes = {axis: data.draw(size, label=axis) for axis in axes}
    if "n_head" in sizes:
        sizes["n_kv_head"] = sizes["n_head"]
        sizes["n_head"] *= data.draw(st.integers(1, 3), label="group")
    n_past = data.draw(st.integers(0, 3), label="n_past")
    if n_past:
        sizes |= {"n_past": n_past, "n_K": sizes["n_K"] + n_past}
    masks = ["n_Q n_K", "1 n_K", " ".join([*lead[:1], *("1" for _ in lead[1:]), "n_Q n_K"])]
    masks += ["n_K"] if form != "columns" else []
    variant, options, of_call = data.draw(variants(sizes, masks), label="variant")
    options |= of_call
    split = "n_head" in sizes and form != "columns" and data.draw(st.booleans(), label="split")
    variant = replace(variant, split=split)
    if form == "columns":
        variant = replace(variant, rope_theta=None)
        options = {name: options[name] for name in ("softcap", "masked_rows")}
    if variant.rope_theta:
        sizes["d_K"] += sizes["d_K"] % 2
    plan = contract(sizes, dtype=dtype, variant=variant)
    if split:
        options |= {"n_head": sizes["n_head"], "n_kv_head": sizes["n_kv_head"]}
    if form == "query":
        options["query"] = data.draw(st.integers(0, sizes["n_Q"] - 1), label="query")
    trace = trace_call(code, **drawn(plan, dtype, device), **options)
    contracts.check(trace, plan)
    assert trace.sizes == plan.sizes


@given(
    data=st.data(),
    bias=st.booleans(),
    train=st.booleans(),
    dropout=st.sampled_from([0.0, 0.5, 1.0]),
    cross=st.booleans(),
    dtype=dtypes,
    device=devices,
)
@examples(8, 200)
def test_mha_runs_as_its_contract_says(data, bias, train, dropout, cross, dtype, device):
    sizes = {axis: data.draw(size, label=axis) for axis in ("n_batch", "n_Q", "n_kv_head")}
    sizes["n_head"] = sizes["n_kv_head"] * data.draw(st.integers(1, 3), label="group")
    n_past = data.draw(st.integers(0, 3), label="n_past")
    sizes["n_K"] = n_past + (data.draw(size, label="n_K") if cross else sizes["n_Q"])
    if n_past:
        sizes["n_past"] = n_past
    d_head = data.draw(size, label="d_head")
    masks = ["n_K", "n_Q n_K", "n_batch 1 1 n_K", "n_batch n_head n_Q n_K"]
    variant, options, of_call = data.draw(variants(sizes, masks), label="variant")
    d_head += d_head % 2 if variant.rope_theta else 0
    sizes["d_feat"] = sizes["n_head"] * d_head
    if data.draw(st.booleans(), label="d_head apart from d_feat"):
        sizes |= {"d_head": d_head, "d_feat": data.draw(size, label="d_feat")}
    sizes["d_V"] = data.draw(st.just(d_head) | size, label="d_V")
    if cross:
        sizes["d_context"] = data.draw(size, label="d_context")
    variant = replace(variant, dropout=dropout if train else 0.0)
    plan = contracts.mha(sizes, dtype=dtype, self_attention=not cross, variant=variant)
    places = {"dtype": getattr(torch, dtype), "device": device}
    names = ("d_feat", "n_head", "n_kv_head", "d_head", "d_V", "d_context")
    widths = {name: sizes.get(name) for name in names}
    mha = MultiHeadAttention(**widths, **options, bias=bias, dropout=dropout, **places).train(train)
    inputs = drawn(plan, dtype, device)
    inputs["V"] = inputs["K"] = inputs["K"] if cross else inputs["Q"]
    contracts.check(trace_call(mha, **inputs, **of_call), plan)


def test_a_run_that_differs_from_its_contract_is_noticed():
    trace = trace_call(sdpa, torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 5))
    plan = contracts.sdpa({"n_Q": 2, "n_K": 4, "d_K": 3, "d_V": 5})
    contracts.check(trace, plan)
    plan["scores"].how = "Q @ K.mT"
    with pytest.raises(AssertionError, match=r"ran .*Q @ K.mT \* scale"):
        contracts.check(trace, plan)


def test_a_mask_that_broadcasts_has_axes_of_one():
    shapes = (2, 3, 4), (2, 5, 4), (2, 5, 6)
    trace = trace_call(sdpa, *map(torch.ones, shapes), torch.ones(2, 1, 5, dtype=torch.bool))
    assert trace["mask"].dims == ("n_batch", "1", "n_K")
    assert trace["scores_masked"].how == "masked(scores, mask, mask_fill)"
    assert trace["attention"].how == "softmax(scores_masked, softmax_dtype)"


def test_positions_behind_the_last_key_and_before_the_first_are_counted():
    sizes = {"n_Q": 6, "n_K": 7, "n_past": 3, "d_K": 4, "d_V": 5}
    variant = contracts.Variant(rope_theta=10000.0, after_past=True)
    assert contracts.sdpa(sizes, variant=variant)["cos"].shape == (9, 4)
    assert contracts.sdpa(sizes, variant=replace(variant, after_past=False))["cos"].shape == (7, 4)
    sizes, variant = {"n_Q": 30, "n_K": 6, "d_K": 4, "d_V": 5}, replace(variant, shortest=4)
    assert contracts.sdpa(sizes, variant=variant)["cos"].shape == (30 - 4 + 6, 4)
    assert contracts.sdpa(sizes | {"n_Q": 3}, variant=variant)["cos"].shape == (6, 4)


def test_a_mask_by_columns_without_an_axis_of_keys_is_traced_without_dims():
    x = torch.ones(4, 3)
    trace = trace_call(sdpa_columns, x, x, x, torch.ones(3, dtype=torch.bool))
    assert trace["out"].shape == (4, 3)
    assert trace["mask"].dims is None


def test_stages_that_do_nothing_have_no_row_and_no_name():
    trace = trace_call(sdpa, torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 5))
    assert [step.name for step in trace.steps] == ["Q", "K", "V", "scores", "attention", "out"]
    assert trace["attention"].how == "softmax(scores, softmax_dtype)"


def test_inputs_that_broadcast_against_each_other_are_traced_without_dims():
    trace = trace_call(sdpa, torch.ones(2, 3, 4), torch.ones(1, 5, 4), torch.ones(1, 5, 6))
    assert trace["scores"].shape == (2, 3, 5)
    assert trace["scores"].dims is None


def test_a_plan_of_any_size_is_exact():
    n = 10**6
    sizes = {"n_batch": 128, "n_Q": n, "n_K": n, "d_feat": 8192, "n_head": 64}
    plan = contracts.mha(sizes)
    assert plan["scores"].bytes == 128 * 64 * n * n * 4
    assert plan["scores"].flops == 2 * 128 * 64 * n * n * 128
    assert max(plan.steps, key=lambda step: step.bytes).name == "scores"


def test_memory_is_counted_once_where_it_is_shared():
    sizes = {"n_batch": 2, "n_Q": 3, "n_K": 3, "d_feat": 4, "n_head": 2}
    # Q, Q_feat, K_feat, V_feat, x_raw, x_rsh1, x: 24 numbers each; scores and attention: 36.
    needed = contracts.bytes_needed(contracts.mha(sizes)) - contracts.memory.FIXED
    assert needed == 4 * (7 * 24 + 2 * 36)


@pytest.mark.parametrize(
    ("n_K", "dtype", "kind", "message"),
    [
        (0, "float32", SizeError, "n_K is 0, but a size is a whole number from 1 up"),
        (-3, "float32", SizeError, "n_K is -3, but a size is a whole number from 1 up"),
        (10**399, "float32", SizeError, "n_K has 400 digits, but a size fits into 64 bits"),
        (4, "int8", OptionError, "'int8' is not a dtype that attention runs in"),
    ],
)
def test_impossible_sizes_and_dtypes_are_refused(n_K, dtype, kind, message):
    with pytest.raises(kind, match=message):
        contracts.sdpa({"n_Q": 2, "n_K": n_K, "d_K": 3, "d_V": 5}, dtype=dtype)


def test_an_error_in_the_traced_call_is_the_error_that_is_seen():
    x = torch.ones(2, 2)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'size'"):
        trace_call(sdpa, x, None, x)


@pytest.mark.parametrize(
    "inputs",
    [
        [torch.ones(4, 4)] * 3 + [torch.ones(4, 4, 4, 4, 4)],
        [torch.ones(0, 4), torch.ones(4, 4), torch.ones(4, 4)],
        [torch.ones(2, 2, 2, 2, 2)] * 3,
    ],
    ids=["a mask wider than the scores", "no queries", "five axes"],
)
def test_what_the_contract_does_not_know_is_traced_without_dims(inputs):
    trace = trace_call(sdpa, *inputs)
    assert trace["out"].shape == sdpa(*inputs).shape
    assert trace["out"].dims is None
