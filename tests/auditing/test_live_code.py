"""`audit` of a module that already exists takes tensors, as `inspect` does, and casts them."""

import pytest
import torch

from attnscope import AttnscopeError, audit
from tests.code.compare.test_live_modules import Attention, Leaky

GIVEN = [
    lambda x: ((x,), {}),
    lambda x: ((), {"inputs": x}),
    lambda x: ((), {"inputs": [x.numpy()]}),
    lambda x: ((), {"inputs": {"x": x}}),
    lambda x: ((), {}),
]


@pytest.mark.few(1)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_is_audited_with_given_tensors(given, dtype):
    args, options = given(torch.randn(2, 7, 12))
    assert audit(Attention(12, 3).to(dtype), *args, causal=True, **options)["causal"].status == "holds"
    assert audit(Leaky(12, 3).to(dtype), *args, causal=True, **options)["causal"].status == "broken"


def test_tensors_given_twice_and_tensors_for_a_model_are_one_clear_line():
    x = torch.randn(2, 7, 12)
    with pytest.raises(AttnscopeError, match="the inputs are given twice"):
        audit(Attention(12, 3), x, inputs=x, causal=True)
    with pytest.raises(AttnscopeError, match="a model reads one text"):
        audit("minilm", x)
