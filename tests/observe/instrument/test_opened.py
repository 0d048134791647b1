"""torch's own attention, opened: its steps are those that torch's own results come from."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import attnscope
from attnscope import inspect, trace_call
from attnscope.document.blocks import Sentence


def text(trace):
    return "\n".join(block.text for block in trace.document() if isinstance(block, Sentence))


STEPS = ["Q_feat", "K_feat", "V_feat", "Q_split", "K_split", "V_split", "scores", "attention", "x_raw"]
STEPS += ["x_rsh1", "x_rsh2", "x"]
B, Q, K, D, H = 2, 5, 7, 24, 4


def inputs(batch_first=True, *, kdim=D, vdim=D, batched=True):
    torch.manual_seed(1)
    shapes = [(B, Q, D), (B, K, kdim), (B, K, vdim)]
    tensors = [torch.randn(shape if batched else shape[1:]) for shape in shapes]
    return [each if batch_first or not batched else each.transpose(0, 1) for each in tensors]


def names_inside(trace, function):
    return [step.name for step in trace.steps if step.inside == function]


def traced(module, *args, **kwargs):
    """Call a module untraced, and then traced; assert that it returns the same, bit for bit."""
    torch.manual_seed(3)
    expected = module(*args, **kwargs)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    returned = []

    def call(*args, **kwargs):
        returned.append(module(*args, **kwargs))
        return returned[0]

    trace = trace_call(call, *args, keep=True, **kwargs)
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(flat(expected), flat(returned[0]), strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad
    return trace, expected


def flat(value):
    return [each for each in (value if isinstance(value, tuple) else (value,)) if each is not None]


def boolean_mask():
    return torch.ones(Q, K, dtype=torch.bool).triu(2)


def masks(kind):
    padding = torch.zeros(B, K, dtype=torch.bool)
    padding[1, -2:] = True
    added = torch.randn(Q, K, generator=torch.Generator().manual_seed(5))
    return {
        "none": {},
        "boolean": {"attn_mask": boolean_mask()},
        "added": {"attn_mask": added},
        "of heads": {"attn_mask": added.repeat(B * H, 1, 1) * torch.arange(B * H)[:, None, None]},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": boolean_mask(), "key_padding_mask": padding},
    }[kind]


@pytest.mark.few(2)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["none", "boolean", "added", "of heads", "padding", "both"])
def test_the_steps_of_multi_head_attention_lead_to_its_output(kind, need_weights):
    module = nn.MultiheadAttention(D, H, batch_first=True)
    options = masks(kind) | {"need_weights": need_weights, "average_attn_weights": False}
    trace, (out, weights) = traced(module, *inputs(), **options)
    steps = names_inside(trace, "multi_head_attention_forward")
    assert [name for name in steps if name != "scores_masked"] == STEPS
    assert ("scores_masked" in steps) == (kind != "none")
    torch.testing.assert_close(trace["x"].tensor, out.detach())
    if need_weights:
        torch.testing.assert_close(trace["attention"].tensor, weights.detach())
    assert trace.notices == []


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": False},
        {"kdim": 9, "vdim": 11},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
        {"dropout": 0.3},
    ],
    ids=str,
)
@pytest.mark.parametrize("need_weights", [True, False])
def test_the_options_of_multi_head_attention_change_its_steps(options, need_weights):
    module = nn.MultiheadAttention(D, H, **{"batch_first": True, **options})
    tensors = inputs(module.batch_first, kdim=module.kdim, vdim=module.vdim)
    trace, (out, weights) = traced(
        module, *tensors, need_weights=need_weights, average_attn_weights=False, **masks("both")
    )
    assert trace.notices == []
    out = out if module.batch_first else out.transpose(0, 1)
    torch.testing.assert_close(trace["x"].tensor, out.detach())
    last = "attention_drop" if "dropout" in options else "attention"
    if need_weights:
        torch.testing.assert_close(trace[last].tensor, weights.detach())
    assert (trace[last].tensor == 0).any() if "dropout" in options else True
    torch.testing.assert_close(trace["x_raw"].tensor, trace[last].tensor @ trace["V_split"].tensor)


def test_inputs_without_a_batch_have_steps_without_one():
    module = nn.MultiheadAttention(D, H)
    trace, (out, _) = traced(module, *inputs(batched=False), attn_mask=boolean_mask())
    assert trace["scores"].shape == (H, Q, K)
    torch.testing.assert_close(trace["x"].tensor, out.detach())


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["none", "boolean", "padding", "both"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_the_fast_path_is_opened(kind, need_weights):
    module = nn.MultiheadAttention(D, H, batch_first=True).eval()
    x = inputs()[1]
    options = masks(kind)
    if "attn_mask" in options:
        options["attn_mask"] = torch.ones(K, K, dtype=torch.bool).triu(2)
    with torch.no_grad():
        trace, (out, weights) = traced(module, x, x, x, need_weights=need_weights, **options)
    assert set(names_inside(trace, "native_multi_head_attention")) - {"scores_masked"} == {*STEPS}
    torch.testing.assert_close(trace["x"].tensor, out)
    if need_weights:
        torch.testing.assert_close(trace["attention"].tensor.mean(1), weights)
    assert trace.notices == []
    assert trace.saw_softmax


@pytest.mark.few(1)
@pytest.mark.parametrize(("norm_first", "activation"), [*product([True, False], ["relu", "gelu"])])
def test_the_fast_path_of_an_encoder_layer_is_opened(norm_first, activation):
    layer = nn.TransformerEncoderLayer(
        D, H, 10, 0.0, activation, norm_first=norm_first, batch_first=True
    )
    x = inputs()[1]
    slow, _ = traced(layer, x)  # with gradients
    with torch.no_grad():
        fast, _ = traced(layer.eval(), x)
    assert names_inside(fast, "transformer_encoder_layer_fwd") == STEPS
    assert names_inside(slow, "multi_head_attention_forward") == STEPS
    for name in STEPS:
        torch.testing.assert_close(fast[name].tensor, slow[name].tensor)
    assert fast.notices == slow.notices == []


def test_each_attention_of_a_decoder_layer_is_opened():
    layer = nn.TransformerDecoderLayer(D, H, 10, batch_first=True)
    trace, _ = traced(layer, *inputs()[:2])
    names = names_inside(trace, "multi_head_attention_forward")
    assert [each for each in names if each != "attention_drop"] == STEPS * 2
    assert [step.shape[-1] for step in trace.steps if step.name == "scores"] == [Q, K]


def test_nested_tensors_are_not_opened_and_that_is_said():
    layer = nn.TransformerEncoderLayer(D, H, 10, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    padding = masks("padding")["key_padding_mask"]
    with torch.no_grad():
        trace = trace_call(encoder, inputs()[1], src_key_padding_mask=padding)
    assert [each for each in trace.notices if "nested" in each] == [
        "the steps inside transformer_encoder_layer_fwd are not shown: its tensors are nested;"
        " nn.TransformerEncoder nests none with enable_nested_tensor=False"
    ]
    assert not trace.saw_softmax


def attend(q, k, v, **options):
    y = F.scaled_dot_product_attention(q, k, v, **options)
    return y


SDPA = [
    {},
    {"is_causal": True},
    {"attn_mask": ~boolean_mask()},
    {"attn_mask": torch.where(torch.arange(Q)[:, None] == 1, float("-inf"), torch.ones(Q, K))},
    {"scale": 0.7, "dropout_p": 0.4},
    {"enable_gqa": True},
]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", SDPA, ids=lambda each: " ".join(each) or "plain")
def test_the_steps_of_sdpa_are_shown_if_it_is_followed(options):
    torch.manual_seed(1)
    n_kv = 2 if "enable_gqa" in options else H
    q, k, v = torch.randn(B, H, Q, 6), torch.randn(B, n_kv, K, 6), torch.randn(B, n_kv, K, 3)
    torch.manual_seed(3)
    out = attend(q, k, v, **options)
    torch.manual_seed(3)
    follow = ["torch.nn.functional.scaled_dot_product_attention"]
    with attnscope.trace(attend, follow=follow, keep=True) as trace:
        assert torch.equal(attend(q, k, v, **options), out)
    assert trace.notices == []
    assert {"scores", "attention", "out"} <= set(names_inside(trace, "scaled_dot_product_attention"))
    assert torch.equal(trace["out"].tensor, out)
    weights = trace["attention_drop" if "dropout_p" in options else "attention"].tensor
    torch.testing.assert_close(weights @ v.repeat_interleave(H // n_kv, 1), out)


@pytest.mark.sweep
def test_a_call_of_sdpa_is_one_row_with_what_it_got():
    q, k, v = torch.randn(B, H, Q, 6), torch.randn(B, H, K, 6), torch.randn(B, H, K, 3)
    trace = inspect(attend, q, k, v, attn_mask=torch.ones(Q, K, dtype=torch.bool))
    [row] = [step for step in trace.steps if step.name == "y"]
    assert row.how.endswith(": Q 2×4×5×6, K 2×4×7×6, V 2×4×7×3, mask 5×7, scale 1/√6")
    assert row.dims == ("n_batch", "n_head", "n_Q", "d_V")

    def within(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5).sum()

    trace = trace_call(within, q, k, v)
    [row] = [step for step in trace.steps if step.inside]
    assert (row.name, row.shape, row.depth) == ("out", (B, H, Q, 3), 1)
    assert (
        row.how == "scaled_dot_product_attention of Q 2×4×5×6, K 2×4×7×6, V 2×4×7×3, causal, scale 0.5"
    )


@pytest.mark.sweep
def test_steps_without_values_have_the_same_shapes_and_the_costs_of_torchs_products():
    module = nn.MultiheadAttention(D, H, batch_first=True)
    q, k, v = inputs()
    with FlopCounterMode(display=False) as counter:
        module(q, k, v)
    trace = trace_call(module, q, k, v)
    kept = trace_call(module, q, k, v, keep=True)
    assert sum(step.flops for step in trace.steps) == counter.get_total_flops()
    assert [step.shape for step in trace.steps] == [step.shape for step in kept.steps]
    assert trace["scores"].tensor is None


def test_calls_within_steps_that_are_too_deep_have_no_rows():
    block = nn.TransformerEncoderLayer(D, H, 10, batch_first=True)
    with attnscope.trace(block, depth=0) as trace:
        block(inputs()[0])
    assert not any(step.inside for step in trace.steps)
    with torch.no_grad(), attnscope.trace(block.eval(), depth=0) as trace:
        block(inputs()[0])
    assert not any(step.inside for step in trace.steps)
    assert trace.saw_softmax


def test_the_code_of_torch_is_as_before():
    code = F.multi_head_attention_forward.__code__
    trace_call(nn.MultiheadAttention(D, H), *inputs(batch_first=False))
    assert F.multi_head_attention_forward.__code__ is code
    with pytest.raises(AssertionError):
        nn.MultiheadAttention(D, H)(*inputs()[:2], inputs(kdim=9)[1])
    assert F.multi_head_attention_forward.__code__ is code


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("batch_first", "mask", "expected"),
    [
        (False, (Q, Q), "attn_mask is 5×5, but n_Q×n_K is 2×2: axis 0 of the inputs was read as the length (n_Q 2, n_K 2), and axis 1 as the batch (5), since batch_first is False"),
        (True, (B, Q, Q), "attn_mask is 2×5×5, but n_batch·n_head × n_Q × n_K is 8×5×5: axis 1 of the inputs was read as the length (n_Q 5, n_K 5), and axis 0 as the batch (2), since batch_first is True"),
    ],
)  # fmt: skip
def test_a_mask_of_another_shape_says_which_axis_was_read_as_what(batch_first, mask, expected):
    module, x = nn.MultiheadAttention(D, H, batch_first=batch_first), inputs()[0]

    def attend(x, mask):
        return module(x, x, x, attn_mask=mask)[0]

    assert inspect(attend, x, torch.zeros(mask)).crash.disagreement == expected
    unbatched = inspect(attend, x[0], torch.zeros(3, 3)).crash.disagreement
    assert (
        unbatched
        == "attn_mask is 3×3, but n_Q×n_K is 5×5: axis 0 of the inputs was read as the length (n_Q 5, n_K 5)"
    )


@pytest.mark.sweep
def test_a_trace_without_a_softmax_does_not_speak_of_no_findings():
    def double(x):
        y = x + x
        return y

    trace = inspect(double, torch.ones(2, 3))
    assert not trace.saw_softmax
    assert repr(trace).endswith("no softmax was seen: nothing is known of the attention)")
    told = "no softmax was seen: nothing is known of the attention"
    assert told in text(trace)
    assert told not in text(inspect(attend, *torch.randn(3, B, H, Q, 6)))


def test_gradients_flow_through_opened_attention():
    module = nn.MultiheadAttention(D, H, batch_first=True)
    tensors = inputs()
    module(*tensors)[0].sum().backward()
    expected = module.in_proj_weight.grad.clone()
    module.zero_grad()

    def call(*tensors):
        out, _ = module(*tensors)
        out.sum().backward()
        return out

    trace_call(call, *tensors, keep=True)
    assert torch.equal(module.in_proj_weight.grad, expected)


def test_modes_of_the_program_receive_the_same_operators():
    class Listing(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    module, tensors = nn.MultiheadAttention(D, H, batch_first=True), inputs()

    def listed():
        with Listing() as listing:
            module(*tensors, need_weights=False)
            attend(*(each.unflatten(-1, (H, -1)).transpose(1, 2) for each in tensors))
        return listing.names

    expected = listed()
    with attnscope.trace(listed, keep=True) as trace:
        assert listed() == expected
    assert "scores" in [step.name for step in trace.steps]


@pytest.mark.sweep
def test_compiled_code_calls_torchs_own_function():
    module, tensors = nn.MultiheadAttention(D, H, batch_first=True), inputs()
    compiled = torch.compile(module, backend="eager")

    def call(*tensors):
        out, _ = compiled(*tensors)
        return out

    expected = module(*tensors)[0]
    with attnscope.trace(call) as trace:
        torch.testing.assert_close(call(*tensors), expected)
    assert trace.tracing_error is None


def flex(q, k, v):
    def earlier(score, b, h, i, j):
        return torch.where(i >= j, 2 * score, -float("inf"))

    y = flex_attention(q, k, v, score_mod=earlier)
    return y


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_flex_attention_is_one_row_or_its_steps_if_it_is_followed():
    q, k, v = torch.randn(B, H, Q, 8), torch.randn(B, H, K, 8), torch.randn(B, H, K, 8)
    trace = inspect(flex, q, k, v)
    assert [step.name for step in trace.steps] == ["q", "k", "v", "y"]
    assert trace.steps[-1].how.endswith(": Q 2×4×5×8, K 2×4×7×8, V 2×4×7×8, scale 0.3536")
    assert trace.saw_softmax
    with attnscope.trace(
        flex, follow=["torch.nn.attention.flex_attention.flex_attention"], keep=True
    ) as trace:
        y = flex(q, k, v)
    assert trace.notices == []
    hidden = torch.ones(Q, K, dtype=torch.bool).triu(1)
    scores = (q @ k.mT / 8**0.5 * 2).masked_fill(hidden, -float("inf"))
    torch.testing.assert_close(trace["scores_masked"].tensor, scores)
    torch.testing.assert_close(trace["attention"].tensor, scores.softmax(-1))
    torch.testing.assert_close(trace["attention"].tensor @ v, y)
