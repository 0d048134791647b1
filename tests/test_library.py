"""`import attnscope`, as people use it in Python."""

import functools

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import AttnscopeError, OptionError, SourceError


def test_everything_promised_is_there():
    for name in attnscope.__all__:
        assert getattr(attnscope, name) is not None
        assert name in dir(attnscope)


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="attnscope has no 'nonsense'"):
        attnscope.nonsense  # noqa: B018
    with pytest.raises(AttributeError) as caught:
        attnscope.inspct  # noqa: B018
    assert caught.value.hint == "inspect"
    assert not hasattr(attnscope, "head_table")


def test_a_trace_without_a_call_says_neither_dry_run_nor_where_it_is_in_memory():
    trace = attnscope.trace(attnscope.sdpa)
    assert repr(trace).startswith("attnscope.trace(sdpa), which records calls within `with`")
    with trace as empty:
        pass
    assert repr(empty) == "Trace(sdpa: 0 tensors)"
    assert "dry run" not in empty._repr_html_()
    assert "dry run" in repr(attnscope.dry_run("sdpa"))


def test_arguments_that_a_call_lacks_are_named():
    def attend(q, k, v, scale=1):
        return (q @ k.mT * scale).softmax(-1) @ v

    x = torch.ones(2, 3)
    with pytest.raises(
        OptionError, match=r"attend\(q, k, v, scale=1\) needs v, which this call"
    ) as caught:
        attnscope.inspect(attend, x, x)
    assert caught.value.hint == "v=…"
    assert attnscope.inspect(attend, x, x, x).crash is None


def test_a_decorator_may_give_the_arguments_that_a_call_lacks():
    def attend(q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    x = torch.ones(2, 3)
    with_values = functools.wraps(attend)(lambda q, k: attend(q, k, x))
    assert attnscope.inspect(with_values, x, x).crash is None


def test_tensors_in_the_place_of_the_code_are_not_printed():
    with pytest.raises(SourceError, match=r"cannot trace a Tensor: it is not callable\.") as caught:
        attnscope.inspect(torch.ones(2, 3), torch.nn.Linear(3, 3))
    assert caught.value.hint.startswith("a module or a function first")


def test_a_trace_in_a_context_is_of_the_first_call():
    Q, K, V = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 5)
    with attnscope.trace(attnscope.sdpa, keep=["out"]) as trace:
        first = attnscope.sdpa(Q, K, V)
        attnscope.sdpa(K, K, K)
    assert [step.name for step in trace.steps] == ["Q", "K", "V", "scores", "attention", "out"]
    assert torch.equal(trace["out"].tensor, first)
    assert trace["Q"].tensor is None


def test_a_name_that_was_not_traced_is_a_key_error():
    trace = attnscope.trace_call(attnscope.sdpa, *[torch.ones(2, 2)] * 3)
    with pytest.raises(KeyError, match="nope"):
        trace["nope"]


def test_the_same_tensor_thrice_reads_same_not_view():
    x = torch.ones(3, 4, 8)
    trace = attnscope.trace_call(attnscope.MultiHeadAttention(d_feat=8, n_head=2), x, x, x)
    assert (trace["K"].same_as, trace["K"].view_of) == ("Q", None)
    assert (trace["V"].same_as, trace["V"].view_of) == ("Q", None)


def test_a_traced_call_has_the_findings_that_one_run_allows():
    def attend(Q, K, V):
        scores = Q @ K.mT / 8**0.5
        attention = scores.softmax(-1)
        out = attention @ V
        return out

    Q, K = torch.ones(2, 3, 4), torch.ones(2, 8, 4)
    (finding,) = attnscope.trace_call(attend, Q, K, K).findings
    assert "1/√8" in finding.message
    with attnscope.trace(attend) as trace:
        attend(Q, K, K)
    assert trace.findings == [finding]
    assert attnscope.trace_call(attnscope.sdpa, Q, K, K).findings == []


def test_findings_that_nobody_looked_for_are_none():
    x = torch.ones(2, 3)
    assert attnscope.trace_call(attnscope.sdpa, x, x, x, findings=False).findings is None
    with attnscope.trace(attnscope.sdpa) as trace:
        pass
    assert trace.findings is None
    assert trace.to_dict()["findings"] is None


def formula(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


@pytest.mark.sweep
def test_trace_of_a_module_and_its_inputs_is_what_the_command_does():
    module, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.ones(3, 5, 8)
    assert attnscope.trace(module, x, x, x).to_dict() == attnscope.inspect(module, x, x, x).to_dict()
    described = {"inputs": ["q=B:2,n_Q:3,d:4", "k=B,n_K:5,d", "v=B,n_K,d_V:6"]}
    assert (
        attnscope.trace(formula, **described).to_dict()
        == attnscope.inspect(formula, **described).to_dict()
    )


def test_trace_is_a_context_and_a_decorator_still():
    traced = attnscope.trace(formula)
    assert traced(*torch.ones(3, 2, 4)).shape == (2, 4)
    assert [step.name for step in traced.trace.steps] == ["q", "k", "v", "return"]
    with attnscope.trace(formula, stats=True) as trace:
        formula(*torch.ones(3, 2, 4))
    assert trace["return"].stats.mean == 1


def test_arrays_of_numpy_are_inputs_in_the_dtype_of_the_module():
    arrays = np.random.default_rng(0).normal(size=(3, 2, 5, 8))
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    trace = attnscope.inspect(module, *arrays, keep=True)
    expected, _ = module(*torch.tensor(arrays, dtype=torch.float32))
    torch.testing.assert_close(trace["attn_output"].tensor, expected)
    assert attnscope.inspect(formula, *arrays)["return"].dtype == "float64"


@pytest.mark.parametrize(("name", "hint"), [("stast", "stats=…"), ("zzz", "formula takes q, k, v")])
def test_a_keyword_that_nothing_takes_is_told_with_the_nearest(name, hint):
    with pytest.raises(AttnscopeError, match=f"no argument '{name}' of formula") as caught:
        attnscope.inspect(formula, *torch.ones(2, 3, 4), **{name: torch.ones(3, 4)})
    assert caught.value.hint == hint
