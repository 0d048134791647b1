"""Code that asks torch whether its functions are overridden gets the answers of a plain run."""

import inspect
import sys

import pytest
import torch
import torch.overrides
from torch import nn
from torch.nn import functional as F
from torch.overrides import (
    TorchFunctionMode,
    handle_torch_function,
    has_torch_function_unary,
    has_torch_function_variadic,
)
from torch.overrides import has_torch_function as overridden

import attnscope
from attnscope import AttnscopeError, compare
from attnscope.observe.operators.tape import Tape

QUESTIONS = {
    "all": lambda q, k: overridden((q, k)),
    "one": lambda q, k: has_torch_function_unary(q),
    "several": lambda q, k: has_torch_function_variadic(q, k),
    "by the module": lambda q, k: torch.overrides.has_torch_function((q, k)),
    "inside": lambda q, k: torch._C._is_torch_function_mode_enabled(),
    "the number of modes": lambda q, k: torch._C._len_torch_function_stack(),
    "the modes": lambda q, k: torch.overrides._get_current_function_mode_stack(),
    "the last mode": lambda q, k: torch.overrides._get_current_function_mode(),
    "the class": lambda q, k: type(q) is not torch.Tensor or type(k) is not torch.Tensor,
    "the compiler": lambda q, k: torch.compiler.is_compiling(),
    "the caller": lambda q, k: sys._getframe(1).f_code.co_name not in ("attention", "plain"),
    "the stack": lambda q, k: inspect.stack()[1].function not in ("attention", "plain"),
    "hooks": lambda q, k: nn.modules.module._global_forward_hooks,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_comparison_of_code_that_asks_is_that_of_a_plain_run(name):
    def attention(q, k, v):
        scale = 3.0 if QUESTIONS[name](q, k) else 1.0
        return (scale * q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    inputs = {"q": "2,3,5,8", "k": "2,3,7,8", "v": "2,3,7,6"}
    assert compare(attention, "sdpa", inputs=inputs).status == "equal"


def copied(q, k, v, out_dim=None):
    """Copy of a function of torch that passes on to overrides, and forgets an argument."""
    if overridden((q, k, v)):
        return handle_torch_function(copied, (q, k, v), q, k, v)
    scores = F.softmax(q @ k.mT / out_dim**0.5, -1)
    return scores @ v


class Copied(nn.Module):
    def forward(self, q, k, v):
        return copied(q, k, v, out_dim=q.shape[-1])


@pytest.mark.sweep
def test_a_branch_for_overrides_is_not_taken_in_a_comparison_a_trace_and_an_audit():
    inputs = {"q": "2,3,5,8", "k": "2,3,7,8", "v": "2,3,7,6"}
    result = compare(Copied, "sdpa", inputs=inputs)
    assert (result.status, result.notices) == ("equal", [])
    assert result["scores"].b.line is not None
    trace = attnscope.inspect(Copied(), *(torch.randn(2, 3, n, 8) for n in (5, 7, 7)))
    assert "scores" in [each.name for each in trace.steps]
    square = dict.fromkeys("qkv", "2,3,7,8")
    audit = attnscope.audit(Copied, inputs=square, causal=True)
    assert {each.name: each.status for each in audit.properties}["causal"] == "broken"


def test_modes_and_subclasses_of_the_code_itself_are_still_noticed():
    class Own(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Sub(torch.Tensor):
        pass

    x = torch.ones(2)
    with Tape() as tape:
        assert not overridden((x,))
        assert overridden((x.as_subclass(Sub),))
        assert torch.overrides._get_current_function_mode_stack() == []
        with Own() as own:
            assert overridden((x,))
            assert torch.overrides._get_current_function_mode_stack() == [own]
        F.softmax(x, 0)
    assert [each.name for each in tape.calls][-1] == "softmax"
    assert not overridden((x,))
    assert overridden is torch._C._has_torch_function
    assert overridden is torch.overrides.has_torch_function


def test_code_that_still_notices_is_not_compared():
    question = staticmethod(overridden)  # where no search finds it

    def other(q, k, v):
        return (q @ k.mT * (3.0 if question((q,)) else 1.0)).softmax(-1) @ v

    def fails(q, k, v):
        if question((q,)):
            raise TypeError("overridden")
        return (q @ k.mT).softmax(-1) @ v

    inputs = dict.fromkeys("qkv", "2,3,7,8")
    with pytest.raises(AttnscopeError, match="returns other numbers while a tape records"):
        compare(other, other, inputs=inputs)
    with pytest.raises(AttnscopeError, match="without attnscope's tape of torch's functions, it runs"):
        compare(fails, fails, inputs=inputs)


def test_torch_s_own_layers_are_recorded_step_by_step_without_gradients():
    layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=True).eval()
    with torch.no_grad(), Tape() as tape:
        layer(torch.randn(2, 5, 24))
    names = [each.name for each in tape.calls]
    assert {"linear", "scaled_dot_product_attention", "layer_norm"} <= set(names)
    assert torch.backends.mha.get_fastpath_enabled()
