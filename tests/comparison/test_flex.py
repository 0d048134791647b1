"""FlexAttention is a kernel whose inside is known, like that of scaled dot-product attention."""

import pytest
from comparison.code import flex

from attnscope import AttnscopeError, audit, compare, inspect

GROUPED = {"Q": "2,4,5,16", "K": "2,2,7,16", "V": "2,2,7,16"}
MODULE = {"init": {"width": 16}, "inputs": {"x": "B:2,T:7,width"}}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("right", "wrong", "other", "options", "cause"),
    [
        ("plain", "scaled", "sdpa", {}, "another scale"),
        ("compiled", "scaled", "sdpa", {}, "another scale"),
        ("causal", "shifted", "sdpa", {"causal": True}, "causal mask shifted"),
        ("biased", "steeper", flex.written_out, {}, "another position bias"),
        ("grouped", "scaled", flex.shared, {"inputs": GROUPED}, None),
    ],
)
def test_what_flex_attention_computes_is_compared(right, wrong, other, options, cause):
    right, wrong = getattr(flex, right), getattr(flex, wrong)
    pair = (other, right) if other == "sdpa" else (right, other)
    result = compare(*pair, **options)
    assert result.status == "equal"
    assert {each.status for each in result.tensors} == {"equal"}
    if cause is not None:
        [found] = compare(wrong, other, **options).divergences
        assert found.cause == cause


def test_a_module_with_flex_attention_equals_mha_and_has_no_gradients_on_the_cpu():
    assert compare(flex.Module, "mha", causal=True, **MODULE).status == "equal"
    with pytest.raises(AttnscopeError, match="FlexAttention does not support backward on CPU"):
        compare(flex.Module, "mha", causal=True, backward=True, **MODULE)


def test_a_module_with_flex_attention_is_traced_without_gradients():
    trace = inspect(flex.Module, **MODULE)
    assert trace.crash is None
    assert trace["return"].dims == ("B", "T", "width")
    assert any("run without gradients" in each for each in trace.notices)


def test_a_leak_through_flex_attention_is_found_with_its_line():
    options = MODULE | {"init": {"width": 16, "shift": 1}}
    assert audit(flex.Module, causal=True, **MODULE)["causal"].status == "holds"
    leak = audit(flex.Module, causal=True, **options)["causal"]
    assert leak.status == "broken"
    assert "flex_attention(Q, K, V, block_mask=mask)" in leak.evidence.line.expression
