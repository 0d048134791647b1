"""One truth for shapes: the contract and a real run make the same rows, whatever the options."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope import contracts, trace_call
from attnscope.attention.mha import MultiHeadAttention
from attnscope.attention.sdpa import sdpa
from attnscope.errors import OptionError, SizeError

sizes = st.integers(1, 7)
dtypes = st.sampled_from(list(contracts.DTYPES))
devices = st.sampled_from(["cpu", "meta"])


@given(
    lead=st.sampled_from([(), ("n_batch",), ("n_batch", "n_head")]),
    n_batch=sizes,
    n_head=sizes,
    n_Q=sizes,
    n_K=sizes,
    d_K=sizes,
    d_V=sizes,
    dtype=dtypes,
    device=devices,
    mask=st.booleans(),
)
def test_sdpa_runs_as_its_contract_says(lead, n_batch, n_head, n_Q, n_K, d_K, d_V, dtype, device, mask):
    given_sizes = {"n_batch": n_batch, "n_head": n_head}
    named = {axis: given_sizes[axis] for axis in lead} | {"n_Q": n_Q, "n_K": n_K, "d_K": d_K, "d_V": d_V}
    plan = contracts.sdpa(named, dtype=dtype, mask="n_Q n_K" if mask else None)
    inputs = [torch.ones(plan[x].shape, dtype=getattr(torch, dtype), device=device) for x in "QKV"]
    inputs += [torch.ones(n_Q, n_K, dtype=torch.bool, device=device)] if mask else []
    trace = trace_call(sdpa, *inputs)
    contracts.check(trace, plan)
    assert trace.sizes == plan.sizes


@given(
    n_batch=sizes,
    n_Q=sizes,
    n_K=st.none() | sizes,
    n_head=sizes,
    d_head=sizes,
    bias=st.booleans(),
    train=st.booleans(),
    dropout=st.sampled_from([0.0, 0.5, 1.0]),
    mask=st.booleans(),
    dtype=dtypes,
    device=devices,
)
def test_mha_runs_as_its_contract_says(
    n_batch, n_Q, n_K, n_head, d_head, bias, train, dropout, mask, dtype, device
):
    named = {"n_batch": n_batch, "n_Q": n_Q, "n_K": n_Q if n_K is None else n_K}
    named |= {"d_feat": n_head * d_head, "n_head": n_head, "d_head": d_head}
    dropping = train and dropout > 0
    plan = contracts.mha(
        named,
        dtype=dtype,
        self_attention=n_K is None,
        dropout=dropping,
        mask="n_batch n_head n_Q n_K" if mask else None,
    )
    options = {"dtype": getattr(torch, dtype), "device": device}
    mha = MultiHeadAttention(
        d_feat=named["d_feat"], n_head=n_head, bias=bias, dropout=dropout, **options
    ).train(train)
    Q = torch.ones(plan["Q"].shape, **options)
    K = Q if n_K is None else torch.ones(plan["K"].shape, **options)
    shape = (n_batch, n_head, n_Q, named["n_K"])
    masks = [torch.ones(shape, dtype=torch.bool, device=device)] if mask else []
    contracts.check(trace_call(mha, Q, K, K, *masks), plan)


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
    assert trace["scores_masked"].how == "masked(scores, mask)"
    assert trace["attention"].how == "scores_masked.softmax(dim=-1)"


def test_stages_that_do_nothing_have_no_row_and_no_name():
    trace = trace_call(sdpa, torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 5))
    assert [step.name for step in trace.steps] == ["Q", "K", "V", "scores", "attention", "out"]
    assert trace["attention"].how == "scores.softmax(dim=-1)"


def test_inputs_that_broadcast_against_each_other_are_traced_without_dims():
    trace = trace_call(sdpa, torch.ones(2, 3, 4), torch.ones(1, 5, 4), torch.ones(1, 5, 6))
    assert trace["scores"].shape == (2, 3, 5)
    assert trace["scores"].dims is None


def test_a_plan_of_any_size_is_exact():
    n = 10**6
    sizes = {"n_batch": 128, "n_Q": n, "n_K": n, "d_feat": 8192, "n_head": 64, "d_head": 128}
    plan = contracts.mha(sizes)
    assert plan["scores"].bytes == 128 * 64 * n * n * 4
    assert plan["scores"].flops == 2 * 128 * 64 * n * n * 128
    assert max(plan.steps, key=lambda step: step.bytes).name == "scores"


def test_memory_is_counted_once_where_it_is_shared():
    sizes = {"n_batch": 2, "n_Q": 3, "n_K": 3, "d_feat": 4, "n_head": 2, "d_head": 2}
    # Q, Q_feat, K_feat, V_feat, x_raw, x_rsh1, x: 24 numbers each; scores (twice) and attention: 36.
    assert contracts.bytes_needed(contracts.mha(sizes)) == 4 * (7 * 24 + 3 * 36)


@pytest.mark.parametrize("size", [0, -3])
def test_sizes_below_one_are_refused(size):
    with pytest.raises(SizeError, match=f"n_K is {size}, but a size is a whole number from 1 up"):
        contracts.sdpa({"n_Q": 2, "n_K": size, "d_K": 3, "d_V": 5})


def test_an_unknown_dtype_is_refused():
    with pytest.raises(OptionError, match="'int8' is not a dtype that attention runs in"):
        contracts.sdpa({"n_Q": 2, "n_K": 4, "d_K": 3, "d_V": 5}, dtype="int8")


def test_an_error_in_the_traced_call_is_the_error_that_is_seen():
    x = torch.ones(2, 2)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'mT'"):
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
