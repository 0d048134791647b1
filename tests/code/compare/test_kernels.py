"""Kernels: FlexAttention's inside is known; what cannot be seen into is tried with several numbers of keys."""

import pytest
import torch
from torch.nn import functional as F

from attnscope import AttnscopeError, audit, compare, inspect
from tests.code.compare.code import flex

GROUPED = {"Q": "2,4,5,16", "K": "2,2,7,16", "V": "2,2,7,16"}
MODULE = {"init": {"width": 16}, "inputs": {"x": "B:2,T:7,width"}}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("right", "wrong", "other", "options", "cause"),
    [
        ("plain", "scaled", "sdpa", {}, "another scale"),
        ("compiled", "scaled", "sdpa", {}, "another scale"),
        ("causal", "shifted", "sdpa", {"causal": True}, "causal mask shifted"),
        ("biased", "steeper", flex.written_out, {}, "position bias scaled"),
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


@pytest.mark.sweep
def test_a_module_with_flex_attention_equals_mha_and_has_no_gradients_on_the_cpu():
    assert compare(flex.Module, "mha", causal=True, **MODULE).status == "equal"
    with pytest.raises(AttnscopeError, match="FlexAttention does not support backward on CPU"):
        compare(flex.Module, "mha", causal=True, backward=True, **MODULE)


@pytest.mark.sweep
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


@torch.library.custom_op("attnscope_tests::tiled", mutates_args=())
def tiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, drops: bool) -> torch.Tensor:
    """Attend to keys in tiles of 16; drop the last partial tile, if there is a whole one."""
    n = k.shape[-2]
    n = n - n % 16 if drops and n > 16 else n
    return F.scaled_dot_product_attention(q, k[..., :n, :], v[..., :n, :])


def right(q, k, v):
    return tiled(q, k, v, False)


def wrong(q, k, v):
    return tiled(q, k, v, True)


def numpy(q, k, v):
    return torch.from_numpy(F.scaled_dot_product_attention(q, k, v).numpy().copy())


def written_out(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


INPUTS = {"q": "B:2,h:3,n:5,d:8", "k": "B,h,m:7,d", "v": "B,h,m,e:6"}
SIDES = [("sdpa", None), (written_out, INPUTS)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("other", "inputs"), SIDES)
def test_a_kernel_that_drops_its_last_tile_is_different_with_17_keys(other, inputs):
    for sides in ((wrong, other), (other, wrong))[: 1 if other == "sdpa" else 2]:
        result = compare(*sides, inputs=inputs)
        assert result.status == "different"
        assert result.notices[0].endswith(
            "1, 7, 15, 16, and different with m 17".replace("m", "m" if inputs else "n_K")
        )


@pytest.mark.few(1)
@pytest.mark.parametrize(("other", "inputs"), SIDES)
@pytest.mark.parametrize(
    ("code", "name"), [(right, "attnscope_tests::tiled"), (numpy, "code outside of torch")]
)
def test_a_verdict_names_the_numbers_of_keys(code, name, other, inputs):
    result = compare(code, other, inputs=inputs)
    assert result.verdict == "equal up to rounding in float32, with 1, 7, 15, 16, 17, 33, 129 keys"
    assert result.opaque == [name]
    assert f"{name} cannot be seen into: only what it returns was compared" in result.notices


def test_inputs_whose_axes_have_no_names_are_compared_at_these_sizes_alone():
    numbers = {"q": "2,3,5,8", "k": "2,3,7,8", "v": "2,3,7,6"}
    result = compare(right, "sdpa", inputs=numbers)
    assert result.verdict == "equal up to rounding in float32, at these sizes alone"
    assert compare(written_out, "sdpa", inputs=numbers).opaque == []
