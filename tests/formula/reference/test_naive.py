"""The naive loop, compared with PyTorch and transformers, where these support the same."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from attnscope.formula.reference.naive import attended, dropped, final_of, inputs_of, turned
from attnscope.formula.reference.run import VerifiedRun
from tests.profiles import examples

seeds = st.integers(0, 999)
few = examples(3, 25)


def made_of(ran):
    run = VerifiedRun(ran.trace, ran.weights)
    with np.errstate(invalid="ignore"):
        inputs = inputs_of(run)
        lead = inputs.Q.shape[:3]
        made = SimpleNamespace(
            weights=np.empty((*lead, inputs.K.shape[2])), weighted=np.empty((*lead, inputs.V.shape[3]))
        )
        for rows in attended(run, inputs):
            made.weights[rows.place], made.weighted[rows.place] = rows.weights, rows.weighted
        made.final = final_of(run, made.weighted)
    return made


def close(ours, theirs):
    torch.testing.assert_close(torch.from_numpy(ours), theirs, rtol=0, atol=1e-12)


@given(
    lead=st.sampled_from(["", "batch", "heads"]),
    n_kv_head=st.sampled_from([1, 2, 4]),
    form=st.sampled_from(["rows", "columns"]),
    masking=st.sampled_from(["none", "bool", "additive"]),
    scale=st.sampled_from([None, 0.3]),
    seed=seeds,
)
@few
def test_it_equals_pytorchs_formula(run_sdpa, lead, n_kv_head, form, masking, scale, seed):
    options = {} if scale is None else {"scale": scale}
    if masking != "none":
        mask = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed)).double()
        options["mask"] = mask if masking == "additive" else (mask > 0) | (torch.arange(5) == 0)
    ran = run_sdpa(form, lead=lead, n_kv_head=n_kv_head, seed=seed, **options)
    Q, K, V = (ran.inputs[name] for name in "QKV")
    shared = {"enable_gqa": True} if lead == "heads" else {}
    expected = F.scaled_dot_product_attention(Q, K, V, ran.inputs.get("mask"), scale=scale, **shared)
    close(made_of(ran).final.reshape(expected.shape), expected)


@given(query=st.integers(0, 2), seed=seeds)
@few
def test_one_query_is_its_row_of_pytorchs_formula(run_sdpa, query, seed):
    ran = run_sdpa("query", query=query, n_past=3, seed=seed)
    Q, K, V = (ran.inputs[name] for name in "QKV")
    K, V = torch.cat((ran.inputs["K_past"], K), 2), torch.cat((ran.inputs["V_past"], V), 2)
    expected = F.scaled_dot_product_attention(Q, K, V)[:, :, query : query + 1]
    close(made_of(ran).final, expected)


@given(form=st.sampled_from(["rows", "columns"]), seed=seeds)
@few
def test_projections_come_first_where_there_are_any(run_sdpa, form, seed):
    ran = run_sdpa(form, lead="batch", n_Q=5, d_feat=3, seed=seed)
    X = ran.inputs["X"]
    Q, K, V = (F.linear(X, ran.inputs[f"W_{name}"].T) for name in "QKV")
    close(made_of(ran).final[:, 0], F.scaled_dot_product_attention(Q, K, V))


@given(
    bias=st.booleans(),
    n_new=st.none() | st.integers(1, 6),
    masked=st.booleans(),
    seed=seeds,
)
@few
def test_it_equals_pytorchs_multi_head_attention(run_mha, bias, n_new, masked, seed):
    n_K = n_new or 3
    mask = torch.rand(3, n_K, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[:, 0] = True
    ran = run_mha(bias=bias, n_new=n_new, mask=mask if masked else None, seed=seed)
    twin = nn.MultiheadAttention(24, 4, bias=bias, batch_first=True, dtype=torch.float64)
    state = {"in_proj_weight": torch.cat([ran.weights[f"W_{name}.weight"] for name in "QKV"])}
    state["out_proj.weight"] = ran.weights["W_O.weight"]
    if bias:
        state["in_proj_bias"] = torch.cat([ran.weights[f"W_{name}.bias"] for name in "QKV"])
        state["out_proj.bias"] = ran.weights["W_O.bias"]
    twin.load_state_dict(state)
    Q, K, V = (ran.inputs[name] for name in "QKV")
    expected, _ = twin(Q, K, V, attn_mask=~mask if masked else None)
    close(made_of(ran).final, expected.detach())


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_vectors_are_turned_as_llama_turns_them(theta):
    config = LlamaConfig(
        hidden_size=16,
        num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    x = torch.randn(3, 2, 5, 8)
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(3, 8)[None])
    expected, _ = apply_rotary_pos_emb(x, x, cos, sin)
    ours = torch.from_numpy(turned(x.double().numpy(), [3], theta)).float()
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-6)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("n_Q", "n_past", "align", "query_at"),
    [
        (3, 0, None, 0),
        (3, 0, "bottom-right", 2),
        (3, 4, None, 6),
        (3, 4, "top-left", 0),
        (5, 0, None, 0),
        (9, 2, None, -2),
        (3, 4, "after-past", 4),
        (7, 4, "after-past", 4),
    ],
)
def test_turned_queries_and_keys_stand_where_the_alignment_says(run_sdpa, n_Q, n_past, align, query_at):
    aligned = {} if align is None else {"align": align}
    ran = run_sdpa(n_Q=n_Q, n_past=n_past, rope_theta=100.0, **aligned)
    Q, K, V = (ran.inputs[name] for name in "QKV")
    Q, K = (torch.from_numpy(turned(x.numpy(), [at], 100.0)) for x, at in ((Q, query_at), (K, n_past)))
    if n_past:
        K, V = torch.cat((ran.inputs["K_past"], K), 2), torch.cat((ran.inputs["V_past"], V), 2)
    close(made_of(ran).final, F.scaled_dot_product_attention(Q, K, V))


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["rows", "query"])
@pytest.mark.parametrize("n_past", [0, 4])
def test_turned_queries_stand_at_the_end_of_each_sequences_own_keys(run_sdpa, form, n_past):
    told = {"align": "lengths", "lengths": [n_past + 3, n_past + 5]}
    told |= {"query": 1} if form == "query" else {}
    words = [f"lengths:{n_past + 4},{n_past + 5}", f"lengths:{n_past + 3},{n_past + 5}"]
    ran = run_sdpa(form, n_past=n_past, rope_theta=100.0, claims={"mask": words}, **told)
    Q, K, V = (ran.inputs[name] for name in "QKV")
    Q = torch.from_numpy(turned(Q.numpy(), [n_past, n_past + 2], 100.0))
    K = torch.from_numpy(turned(K.numpy(), [n_past, n_past], 100.0))
    if n_past:
        K, V = torch.cat((ran.inputs["K_past"], K), 2), torch.cat((ran.inputs["V_past"], V), 2)
    expected = F.scaled_dot_product_attention(Q, K, V)
    close(made_of(ran).final, expected[:, :, 1:2] if form == "query" else expected)


def test_scores_are_capped_before_they_are_masked(run_sdpa):
    mask = torch.tensor([[True, True, False]])
    ran = run_sdpa(lead="", n_Q=1, n_new=3, d_K=2, d_V=1, scale=1.0, softcap=2.0, mask=mask)
    for name, values in {
        "Q": [[3.0, 0]],
        "K": [[1.0, 0], [-1, 5], [9, 9]],
        "V": [[1.0], [10], [100]],
    }.items():
        ran.trace[name].tensor = torch.tensor(values, dtype=torch.float64)
    left, right = math.exp(2 * math.tanh(1.5)), math.exp(-2 * math.tanh(1.5))
    expected = (left * 1 + right * 10) / (left + right)
    assert made_of(ran).final.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({}, math.nan),
        ({"masked_rows": "nan", "mask_fill": -1e4}, math.nan),
        ({"masked_rows": "zero"}, 0.0),
        ({"masked_rows": "uniform"}, 0.2),
        ({"mask_fill": -1e9}, 0.2),
    ],
)
def test_queries_that_see_no_key_get_what_is_asked_for(run_sdpa, options, row):
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    weights = made_of(run_sdpa(mask=mask, **options)).weights
    assert weights[0, 0, 1].tolist() == pytest.approx([row] * 5, nan_ok=True)
    assert weights[0, 0, 0].sum() == pytest.approx(1)


def test_a_fill_that_the_softmax_cannot_hold_is_minus_infinity(run_sdpa):
    mask = torch.zeros(3, 5, dtype=torch.bool)
    ran = run_sdpa(mask=mask, mask_fill=-1e9, dtype=torch.float32, softmax_dtype=torch.float16)
    assert ran.trace["attention"].tensor.isnan().all()
    assert ran.checks()["naive"].ok


def test_weights_are_dropped_that_the_run_dropped(run_mha):
    ran = run_mha(dropout=0.5)
    names = ("attention", "attention_drop", "V_split")
    attention, drop, V = (ran.trace[name].tensor.detach() for name in names)
    assert (drop == 0).any()
    assert (drop != 0).any()
    expected = torch.where(drop == 0, 0, attention * 2) @ V
    close(made_of(ran).weighted, expected)


def test_nothing_is_left_where_all_is_dropped(run_mha):
    assert (made_of(run_mha(dropout=1.0)).weighted == 0).all()
    assert dropped(torch.ones(2).numpy(), torch.tensor([False, False]).numpy(), 1.0).tolist() == [0, 0]
