"""`import attnscope`, as people use it in Python."""

import pytest
import torch

import attnscope


def test_everything_promised_is_there():
    for name in attnscope.__all__:
        assert getattr(attnscope, name) is not None
        assert name in dir(attnscope)


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        attnscope.nonsense  # noqa: B018


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
