"""The masks of attention code are those that its scores show, and what is not known is not guessed."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnscope
from attnscope import AttnscopeError

N = 7
FUTURE = torch.ones(N, N).triu(1).bool()
DISTANCE = torch.arange(N)[:, None] - torch.arange(N)


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


X = drawn(2, N, 32)
Q, K, V = drawn(3, 2, 4, N, 8)


class Attention(nn.Module):
    """Its mask is a lower triangle, from some diagonal on."""

    def __init__(self, diagonal=0, fill=-torch.inf):
        super().__init__()
        self.diagonal, self.fill = diagonal, fill
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        n = x.shape[1]
        see = torch.ones(n, n).tril(self.diagonal) == 1
        scores = (q @ k.mT * 8**-0.5).masked_fill(~see, self.fill)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def only(result):
    [mask] = result.masks
    return mask


def seen(*args, **options):
    return torch.from_numpy(only(attnscope.mask(*args, **options)).visible)


def masked(bias):
    """Attention of a function that adds a bias to its scores."""
    return lambda q, k, v: (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v


@pytest.mark.parametrize("diagonal", [0, 1, -1], ids=["causal", "sees the future", "not itself"])
@pytest.mark.parametrize("fill", [-torch.inf, -1e9, -1e4])
def test_a_module_has_the_mask_that_its_code_applies(diagonal, fill):
    result = attnscope.mask(Attention(diagonal, fill), X)
    expected = (DISTANCE + diagonal >= 0).expand(2, 1, N, N)
    assert torch.equal(torch.from_numpy(only(result).visible), expected)
    assert result.title == "Attention"
    assert only(result).name.startswith("line ")
    assert (only(result).n_batch, only(result).n_head) == (2, 1)
    if diagonal < 0:
        is_nan = fill == -torch.inf
        what = "the output there is NaN" if is_nan else "keys that are hidden get all the weight"
        assert only(result).n_blind == 2
        assert "query 0 sees no key" in result.notices[0]
        assert what in result.notices[0]
    else:
        assert result.notices == []


@pytest.mark.few(5)
@pytest.mark.parametrize("need_weights", [True, False], ids=["written out", "fused"])
@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        (FUTURE, DISTANCE >= 0),
        (torch.zeros(N, N).masked_fill(FUTURE, -torch.inf), DISTANCE >= 0),
        (FUTURE | (DISTANCE > 2), (DISTANCE >= 0) & (DISTANCE <= 2)),
        (FUTURE.roll(-1, 1) & FUTURE, DISTANCE >= -1),
        (None, DISTANCE == DISTANCE),
    ],
    ids=["causal", "causal as numbers", "window", "one key too many", "no mask"],
)
def test_the_module_of_torch_has_the_mask_that_it_is_given(mask, visible, need_weights):
    if mask is not None and mask.dtype == torch.bool:
        visible = ~mask
    module = nn.MultiheadAttention(32, 4, batch_first=True)
    inputs = {"query": X, "key": X, "value": X, "attn_mask": mask, "need_weights": need_weights}
    assert torch.equal(seen(module, inputs=inputs), visible.expand(2, 1, N, N))


def test_padding_hides_keys_of_its_own_sequence():
    padding = torch.zeros(2, N, dtype=torch.bool)
    padding[1, 5:] = True
    module = nn.MultiheadAttention(32, 4, batch_first=True)
    inputs = {"query": X, "key": X, "value": X, "key_padding_mask": padding}
    assert torch.equal(seen(module, inputs=inputs), ~padding[:, None, None].expand(2, 1, N, N))


def test_cross_attention_has_as_many_keys_as_its_memory():
    memory = drawn(2, 9, 32)
    mask = only(attnscope.mask(nn.MultiheadAttention(32, 4, batch_first=True), X, memory, memory))
    assert (mask.n_Q, mask.n_K, mask.pattern) == (N, 9, "all keys")


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        ({"is_causal": True}, DISTANCE >= 0),
        ({"attn_mask": (DISTANCE >= 0) & (DISTANCE < 3)}, (DISTANCE >= 0) & (DISTANCE < 3)),
        ({"attn_mask": DISTANCE >= -1}, DISTANCE >= -1),
        ({}, DISTANCE == DISTANCE),
    ],
    ids=["causal", "window", "one key too many", "no mask"],
)
def test_a_fused_kernel_hides_what_its_arguments_say(options, visible):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **options)

    assert torch.equal(seen(attend, Q, K, V), visible.expand(2, 1, N, N))


def test_is_causal_counts_from_the_first_key_where_queries_are_fewer():
    mask = seen(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), Q[:, :, -2:], K, V
    )
    assert torch.equal(mask, torch.ones(2, N).tril().bool().expand(2, 1, 2, N))


def test_heads_with_masks_of_their_own_are_kept_apart():
    widths = torch.arange(1, 5)[:, None, None]
    see = (DISTANCE >= 0) & (widths > DISTANCE)
    mask = only(attnscope.mask(masked(torch.zeros(4, N, N).masked_fill(~see, -torch.inf)), Q, K, V))
    assert mask.n_head == 4
    assert np.array_equal(mask.visible, see.expand(2, 4, N, N).numpy())


def test_weights_that_become_zero_after_the_softmax_are_hidden_but_not_those_that_are_dropped():
    assert torch.equal(
        seen(lambda q, k, v: (q @ k.mT).softmax(-1).tril() @ v, Q, K, V), (~FUTURE).expand(2, 1, N, N)
    )
    result = attnscope.mask(lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.5) @ v, Q, K, V)
    assert only(result).pattern == "all keys"
    assert "a dropout that is active" in result.notices[0]


@pytest.mark.parametrize(
    ("function", "notice"),
    [
        (masked(torch.zeros(N, N).masked_fill(FUTURE, -8.0)), "a mask leaves 168 scores at"),
        (
            lambda q, k, v: ((q @ k.mT) * ~FUTURE).softmax(-1) @ v,
            "a mask leaves 168 scores at 0 or more",
        ),
        (
            lambda q, k, v: (
                (20 * ((q @ k.mT).masked_fill(FUTURE, -torch.inf) / 20).tanh()).softmax(-1) @ v
            ),
            "a mask leaves 168 scores at -20 or more",
        ),
        (masked(-500.0 * DISTANCE.abs()), "weights are 0 by a bias that is finite"),
    ],
    ids=["a small fill", "a product", "a mask below a soft cap", "a steep bias"],
)
def test_keys_that_are_nearly_hidden_count_as_visible_and_a_notice_says_so(function, notice):
    result = attnscope.mask(function, Q, K, V)
    assert only(result).pattern == "all keys"
    assert notice in result.notices[0]
    assert "count as visible" in result.notices[0]


@pytest.mark.parametrize("slope", [0.5, 500.0])
def test_a_bias_beside_a_mask_hides_nothing(slope):
    bias = (-slope * DISTANCE).masked_fill(FUTURE, -torch.inf)
    assert torch.equal(seen(masked(bias), Q, K, V), (~FUTURE).expand(2, 1, N, N))


def test_scores_that_differ_by_hundreds_hide_nothing():
    result = attnscope.mask(lambda q, k, v: (200 * q @ k.mT).softmax(-1) @ v, Q, K, V)
    assert only(result).pattern == "all keys"
    assert result.notices == []


UNKNOWN = {
    "linear attention": (
        lambda q, k, v: q.softmax(-1) @ (k.softmax(-2).mT @ v),
        "not computed from Q·Kᵀ",
    ),
    "without a softmax": (
        lambda q, k, v: (q @ k.mT).relu() @ v,
        "multiplies no softmax of scores by values",
    ),
    "heads that are mixed": (
        lambda q, k, v: torch.einsum("bhqk,hg->bgqk", q @ k.mT, drawn(4, 4)).softmax(-1) @ v,
        "the scores of several heads or queries are mixed",
    ),
    "numbers that are not finite": (lambda q, k, v: (q @ k.mT / 0 * 0).softmax(-1) @ v, "NaN"),
    "scores as low as a mask": (
        lambda q, k, v: (1e5 * q @ k.mT).masked_fill(FUTURE, -1e9).softmax(-1) @ v,
        "before any mask",
    ),
}


@pytest.mark.parametrize("function, why", UNKNOWN.values(), ids=UNKNOWN)  # noqa: PT006
def test_what_is_not_known_is_refused_in_a_line_that_names_audit(function, why):
    with pytest.raises(AttnscopeError) as caught:
        attnscope.mask(function, Q, K, V)
    assert "is not known" in caught.value.message
    assert why in caught.value.message
    assert caught.value.hint.startswith("audit, which measures")


class Stack(nn.Module):
    """Two layers, of which one sees the future, and a gate whose softmax is no attention."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Attention(1)])
        self.gate = nn.Linear(32, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x * self.gate(x).softmax(-1).amax(-1, keepdim=True)


def test_each_attention_of_a_module_has_a_mask_with_its_name(tmp_path):
    result = attnscope.mask(Stack(), X)
    assert [each.name.split(",")[0] for each in result.masks] == ["layers.0", "layers.1"]
    assert [each.pattern for each in result.masks] == [
        "causal",
        "all keys before each query and 1 after it",
    ]
    assert "left out, because its softmax is not computed from Q·Kᵀ" in result.notices[0]
    text = str(result.to_dict())
    assert "layers.0, line" in text
    for name in ("masks.npz", "masks.html", "masks.json", "masks.csv", "masks.md", "masks.svg"):
        result.save(tmp_path / name)
    assert attnscope.load(tmp_path / "masks.json").masks[1].name == result.masks[1].name
    with np.load(tmp_path / "masks.npz") as saved:
        assert np.array_equal(saved["mask1"], result.masks[1].visible)
    assert "layers.1, line" in (tmp_path / "masks.html").read_text()


def test_the_caller_keeps_module_and_tensors_as_they_are():
    class Changing(Attention):
        def forward(self, x):
            self.seen = x
            return super().forward(x.mul_(2))

    module, x = Changing().train(), X.clone()
    before, state = x.clone(), torch.get_rng_state()
    attnscope.mask(module, x)
    assert torch.equal(x, before)
    assert module.training
    assert not hasattr(module, "seen")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_module_runs_in_its_own_dtype(dtype):
    assert only(attnscope.mask(Attention().to(dtype), X)).pattern == "causal"


@pytest.mark.parametrize("inputs", [X, [X], {"x": X}, "x=2,7,32", {"x": "2,7,32"}], ids=repr)
def test_inputs_are_given_in_any_form(inputs):
    assert only(attnscope.mask(Attention(), inputs=inputs)).n_Q == N


def test_without_inputs_the_usual_ones_are_drawn_and_a_notice_says_so():
    result = attnscope.mask(Attention())
    assert only(result).pattern == "causal"
    assert "the inputs are drawn: x=" in result.notices[0]
    built = attnscope.mask(Attention, init={"diagonal": 1}, inputs={"x": "2,7,32"})
    assert only(built).pattern == "all keys before each query and 1 after it"


def test_a_function_of_four_tensors_is_code_and_a_mask_mod_is_not():
    def attend(q, k, v, mask):
        return (q @ k.mT).masked_fill(mask, -torch.inf).softmax(-1) @ v

    assert only(attnscope.mask(attend, Q, K, V, FUTURE)).pattern == "causal"
    assert only(attnscope.mask(lambda b, h, q, k: k <= q, nq=N)).pattern == "causal"


def test_a_rule_takes_no_tensor():
    with pytest.raises(
        AttnscopeError, match="a second argument is for models and code, and causal is a rule"
    ):
        attnscope.mask("causal", X)
