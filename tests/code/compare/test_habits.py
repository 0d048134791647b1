"""Attention as people write it: no mistake is found where there is none, and the planted one where there is."""

import warnings

import pytest
import torch
from torch import nn

from attnscope import AttnscopeError, compare
from tests.code.compare.code.habits import SOURCE, changed

D = ["d=24", "h=4"]
CROSS = ["x=2,5,24", "context=2,7,20"]


@pytest.fixture
def code(tmp_path):
    """Return a function that writes source to a file, and returns the target of a class in it."""

    def write(name, source=SOURCE):
        path = tmp_path / f"code{len(list(tmp_path.iterdir()))}.py"
        path.write_text(source)
        return f"{path}:{name}"

    return write


CORRECT = [
    # class, options, a notice
    ("Plain", {}, None),
    ("ScaledAfterTheMask", {"causal": True}, None),
    ("NormBefore", {}, "mha gets x = self.norm(x) (line 40), from which"),
    ("ResidualAndNormAfter", {}, "mha ends with x: what"),
    ("Block", {}, "mha ends with x: what"),
    ("WithoutProjection", {}, "has no projection after attention, and so mha has none here"),
    ("OneHead", {}, "has no projection after attention"),
    ("NarrowHeads", {"inputs": CROSS}, None),
    ("NarrowHeads", {"inputs": [*CROSS, "mask=2,7@bool"]}, None),
    ("SequenceFirst", {"inputs": ["x=n:5,batch:2,24"]}, "attends along axis 0 of its inputs"),
    ("Lazy", {"inputs": ["queries=2,5,20", "keys=2,7,18", "values=2,7,26"]}, None),
]


@pytest.mark.parametrize(("name", "options", "notice"), CORRECT)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.few(4)
def test_correct_attention_equals_mha(code, name, options, notice, dtype):
    result = compare(code(name), "mha", init=D, backward=True, dtype=dtype, **options)
    assert (result.status, result.divergences) == ("equal", [])
    assert {each.status for each in result.tensors} <= {"equal"}
    assert {each.status for each in result.gradients or ()} <= {"equal"}
    if notice is None:
        assert result.notices == []
    else:
        assert any(notice in each for each in result.notices)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("init", "options", "notice"),
    [
        ({"bias": False, "kdim": 20, "vdim": 18}, {"key": "2,7,20", "value": "2,7,18"}, None),
        ({"batch_first": False}, {"query": "5,2,24", "key": "7,2,24", "value": "7,2,24"}, "axis 0"),
        ({}, {"query": "5,24", "key": "7,24", "value": "7,24"}, None),
        ({}, {"attn_mask": "5,7@bool"}, None),  # True hides a key in torch's module, and shows it in mha
        ({}, {"attn_mask": "8,5,7@bool"}, None),
        ({}, {"key_padding_mask": torch.tensor([[False] * 6 + [True], [False] * 7])}, None),
    ],
)
def test_torch_module_equals_mha(init, options, notice):
    init = {"embed_dim": 24, "num_heads": 4, "batch_first": True} | init
    inputs = {"query": "2,5,24", "key": "2,7,24", "value": "2,7,24"} | options
    result = compare("torch.nn:MultiheadAttention", "mha", init=init, inputs=inputs)
    assert result.status == "equal"
    assert (notice is None and result.notices == []) or notice in result.notices[0]
    assert result["K_feat"].b.file == "torch/nn/functional.py"
    assert result["K_feat"].shape == (1 if options.get("query") == "5,24" else 2, 7, 24)


def test_a_function_that_splits_heads_equals_sdpa_that_does(tmp_path):
    path = tmp_path / "split.py"
    path.write_text(SPLITS)
    inputs = ["Q=n_batch:2,n_Q:5,d:24", "K=n_batch,n_K:7,d", "V=n_batch,n_K,d", "h=4"]
    assert compare(f"{path}:attention", "sdpa", inputs=inputs).status == "equal"
    [found] = compare(f"{path}:wrong", "sdpa", inputs=inputs).divergences
    assert (found.role, found.cause) == ("scores", "another scale")
    assert "√d_feat = √24" in found.explanation


SPLITS = """
def attention(Q, K, V, h, width=0):
    q, k, v = (each.unflatten(-1, (h, -1)).transpose(1, 2) for each in (Q, K, V))
    scores = q @ k.mT / (width or q.shape[-1]) ** 0.5
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def wrong(Q, K, V, h):
    return attention(Q, K, V, h, Q.shape[-1])


def heads_last(q, k, v):
    scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)
"""


def test_another_layout_of_the_inputs_must_be_meant(tmp_path, code):
    path = tmp_path / "split.py"
    path.write_text(SPLITS)
    numbers = ["q=2,5,3,8", "k=2,7,3,8", "v=2,7,3,6"]
    with pytest.raises(AttnscopeError, match="attends along axis 1 of its inputs") as failure:
        compare(f"{path}:heads_last", "sdpa", inputs=numbers)
    assert failure.value.hint.endswith('inputs={"q": "n_batch:2,n_Q:5,n_head:3,8"}')
    named = ["q=n_batch:2,n_Q:5,n_head:3,8", *numbers[1:]]
    result = compare(f"{path}:heads_last", "sdpa", inputs=named)
    assert result.status == "equal"
    assert result.sizes["n_head"] == 3
    with pytest.raises(AttnscopeError, match=r"along axis 0 of its inputs \(2 positions\), and mha"):
        compare(code("SequenceFirst"), "mha", init=D)


@pytest.mark.parametrize(
    ("init", "parameters"), [(["n_state=24", "n=4"], "n_state, n"), (["c=types:SimpleNamespace(n_embd=24,n_head=4)"], "c")]
)  # fmt: skip
def test_the_usual_inputs_have_the_width_that_the_class_needs(tmp_path, init, parameters):
    path = tmp_path / "sized.py"
    width, heads = ("c.n_embd", "c.n_head") if parameters == "c" else ("n_state", "n")
    path.write_text(
        f"{SOURCE}\n\nclass Sized(Plain):\n    def __init__(self, {parameters}):\n        super().__init__({width}, {heads})\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compare(f"{path}:Sized", "mha", init=init).status == "equal"


def test_usual_inputs_do_not_contradict_an_argument_that_is_no_width(tmp_path):
    path = tmp_path / "fixed.py"
    path.write_text("""
from torch import nn

class Fixed(nn.Module):
    def __init__(self, d_feat):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Linear(64, 64, bias=False) for _ in range(3))

    def forward(self, Q, K, V):
        scores = self.W_Q(Q) @ self.W_K(K).mT / 8
        return scores.softmax(-1) @ self.W_V(V)
""")
    result = compare(f"{path}:Fixed", "mha", init=["d_feat=32"])
    assert result.status == "equal"


def test_an_error_names_the_line_of_the_user(code):
    wrong = changed("x = self.norm(x)  # norm", "x = x + torch.ones(3)")
    with pytest.raises(AttnscopeError, match=r"line 40 of code0\.py: x = x \+ torch\.ones\(3\)"):
        compare(code("NormBefore", wrong), "mha", init=D, inputs=["x=2,5,24"])


def test_what_raises_in_the_constructor_is_not_blamed_on_the_inputs(code):
    with pytest.raises(AttnscopeError) as failure:
        compare(code("Plain", changed("self.h = h", "self.h = unknown")), "mha", init=D)
    assert failure.value.message.startswith("Plain(d=24, h=4) raises NameError")


def test_what_does_not_fit_together_is_refused(code, tmp_path):
    path = tmp_path / "split.py"
    path.write_text(SPLITS)
    with pytest.raises(AttnscopeError, match="projects Q, K, V with weights, and sdpa has none"):
        compare(code("Plain"), "sdpa", init=D)
    with pytest.raises(AttnscopeError, match="no projection was found before Q, K, V of"):
        compare(f"{path}:attention", "mha", inputs=["Q=2,5,24", "K=2,7,24", "V=2,7,24", "h=4"])
    with pytest.raises(AttnscopeError, match=r"map is for weights, and .*heads_last has none"):
        compare(f"{path}:heads_last", "sdpa", inputs=dict.fromkeys("qkv", "2,5,h:3,8"), map=["a=b"])


# Weights.


def test_norms_are_matched_by_what_they_normalise(code):
    result = compare(code("Separate"), code("Fused"), init=D, backward=True)
    assert (result.status, result.notices) == ("equal", [])
    pairs = {each.role: (each.a, each.b) for each in result.weights}
    assert pairs["norm_Q"] == ("q_norm.scale", "ln_for_q.weight")
    assert pairs["norm_K"] == ("k_norm.scale", "ln_for_k.weight")


@pytest.mark.sweep
def test_a_bias_that_only_b_has_is_set_to_zero(code):
    """It is not one of the norm's weights, which have its shape."""
    sizes = {"embed_dim": 24, "num_heads": 4, "batch_first": True}
    result = compare(code("NormBefore"), "torch.nn:MultiheadAttention", init={"d": 24, "h": 4} | sizes)
    assert {each.cause for each in result.divergences} == {"another input"}
    assert "a from x = self.norm(x) (line 40)" in result.divergences[0].explanation
    assert [each for each in result.notices if "in_proj_bias of" in each and "is set to 0" in each]


def test_modules_with_the_same_weights_need_no_attention(code):
    result = compare(code("LoopOverHeads"), code("LoopOverHeads"), init=D, inputs=["x=2,5,24"])
    assert result.status == "equal"
    assert result.notices == ["only the outputs were compared: a: it computes 8 attentions in one call"]
    with pytest.raises(AttnscopeError, match="it computes 8 attentions in one call"):
        compare(code("LoopOverHeads"), "mha", init=D, inputs=["x=2,5,24"])


def test_scores_that_are_mixed_across_heads_are_not_attention(code):
    with pytest.raises(AttnscopeError, match="its scores are a product with the weight mix, not Q·Kᵀ"):
        compare(code("TalkingHeads"), init=D)


@pytest.mark.sweep
def test_an_input_that_one_side_takes_three_times_is_one_tensor(code):
    sizes = {"d": 24, "h": 4, "embed_dim": 24, "num_heads": 4, "batch_first": True}
    pair = "torch.nn:MultiheadAttention", code("Plain")
    for sides in (pair, pair[::-1]):
        assert compare(*sides, init=sizes).status == "equal"
    shapes = {"query": "2,5,24", "key": "2,5,24", "value": "2,5,24"}
    assert compare(*pair, init=sizes, inputs=shapes).status == "equal"
    with pytest.raises(AttnscopeError, match=r"query and key of .* are 2×5×24 and 2×7×24"):
        compare(*pair, init=sizes, inputs=shapes | {"key": "2,7,24"})


ROTARY = """
import torch
from torch.nn import functional as F


def angles():
    speed = 10000.0 ** (-torch.arange(4).float() / 4)
    return torch.arange(9000, 9007).float()[:, None] * speed


TABLE = angles()


def rotated(x, angle):
    one, two = x.chunk(2, -1)
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)


def computed(q, k, v):
    return F.scaled_dot_product_attention(rotated(q, angles()), rotated(k, angles()), v)


def tabled(q, k, v):
    return F.scaled_dot_product_attention(rotated(q, TABLE), rotated(k, TABLE), v)
"""


@pytest.mark.sweep
def test_a_table_in_float32_is_rounding_however_far_its_positions(tmp_path):
    """In float64, the angles of `computed` are exact, and those of `tabled` are off by 1e-4."""
    path = tmp_path / "rotary.py"
    path.write_text(ROTARY)
    sides, inputs = (f"{path}:computed", f"{path}:tabled"), dict.fromkeys("qkv", "2,3,7,8")
    result = compare(*sides, inputs=inputs)
    assert (result.status, result.divergences) == ("equal", [])
    assert result["Q"].largest > 1e-5
    assert result.notices[0].endswith(
        "from Q on, and in float32 by no more than rounding: b rotates Q by other angles than a"
    )
    path.write_text(ROTARY.replace("rotated(k, TABLE)", "rotated(k, TABLE + 1)"))
    assert [each.role for each in compare(*sides, inputs=inputs).divergences] == ["K"]


# Mistakes.


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "old", "new", "causal", "expected"),
    [
        ("ScaledAfterTheMask", "/ q.shape[-1] ** 0.5).softmax", ").softmax", True, ("scores", "scale missing")),
        ("ScaledAfterTheMask", "q.shape[-1] ** 0.5).softmax", "24 ** 0.5).softmax", True, ("scores", "another scale")),
        ("ScaledAfterTheMask", ".triu(1).bool()))", ".triu(2).bool()))", True, ("scores_masked", "causal mask shifted")),
        ("ScaledAfterTheMask", "self.core(x, torch.ones(n, n).triu(1).bool())", "self.core(x)", True, ("scores_masked", "mask missing")),
        ("ScaledAfterTheMask", "torch.ones(n, n).triu(1).bool()", "torch.ones(n, n).triu(1).bool() | torch.ones(n, n).tril(-3).bool()", True, ("scores_masked", "another mask")),
        ("ScaledAfterTheMask", "torch.ones(n, n).triu(1).bool()", "(torch.arange(n * n).view(n, n) % 3 == 1)", True, ("scores_masked", "another mask")),
        ("ScaledAfterTheMask", "# mask", "", False, ("scores_masked", "mask added")),
        ("Separate", "k = self.key(x)", "k = self.query(x)", False, ("K_feat", "another projection")),
        ("Separate", "q = self.query(x)", "q = self.key(x)", False, ("Q_feat", "another projection")),
        ("Plain", "return self.out(self.core(x))", "return self.core(x)", False, ("output", "output projection missing")),
        ("Plain", "return self.out(self.core(x))", "return 2 * self.out(self.core(x))", False, ("output", "factor added")),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found(code, name, old, new, causal, expected):
    wrong = changed(old, new)
    if name == "Separate":  # mha has no norms
        wrong = wrong.replace("q, k = self.q_norm(q), self.k_norm(k)", "pass")
    [found] = compare(code(name, wrong), "mha", init=D, causal=causal).divergences
    assert (found.role, found.cause) == expected


def test_a_window_is_told_in_keys(code):
    wrong = changed("torch.ones(n, n).triu(1).bool()", "torch.ones(n, n).triu(1).bool() | torch.ones(n, n).tril(-3).bool()")  # fmt: skip
    [found] = compare(code("ScaledAfterTheMask", wrong), "mha", init=D, causal=True).divergences
    assert "b hides 20% of the keys that a shows (first key 0 of query 3)" in found.explanation
    assert found.explanation.endswith("b has a window of 3 keys, a no window")


def test_a_mask_that_the_reference_lacks_names_the_option(code):
    result = compare(code("ScaledAfterTheMask"), "mha", init=D)
    assert result.notices == ["causal hides later keys in mha, too"]


@pytest.mark.sweep
def test_a_fused_weight_is_not_called_another_projection_of_itself(code):
    """The weights of Q and K are one parameter; what differs is the input, which b normalises."""
    source = changed("super().__init__(d, h, bias=False)", "super().__init__(d, h)")
    result = compare(code("Plain"), code("NormBefore", source), init=D)
    assert [(each.role, each.cause) for each in result.divergences] == [
        (f"{name}_feat", "another input") for name in "QKV"
    ]
    assert result.divergences[0].explanation.startswith(
        "b projects Q from x = self.norm(x) (line 40), a from"
    )


@pytest.mark.sweep
def test_a_file_that_was_edited_is_read_again(tmp_path):
    path = tmp_path / "edited.py"
    path.write_text(changed("q.shape[-1] ** 0.5).softmax", "24 ** 0.5).softmax"))
    assert compare(f"{path}:Plain", "mha", init=D).status == "different"
    path.write_text(f"\n{SOURCE}")
    result = compare(f"{path}:Plain", "mha", init=D)
    assert result.status == "equal"
    lines = path.read_text().splitlines()
    assert lines[result["scores"].b.line - 1].endswith("# softmax")


def test_live_modules_are_not_changed():
    a, b = (nn.MultiheadAttention(24, 4, batch_first=True).train() for _ in range(2))
    before = [each.clone() for each in (*a.parameters(), *b.parameters())]
    x = torch.randn(2, 5, 24)
    inputs = {"query": x, "key": x, "value": x}
    assert compare(a, b, inputs=inputs, weights="same").status == "equal"
    after = [*a.parameters(), *b.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert a.training


@pytest.mark.parametrize(
    ("line", "wrong"),
    [("self.h = h", "raise SystemExit(0)"), ("x = self.norm(x)  # norm", "raise SystemExit(0)")],
)
def test_code_that_ends_the_process_is_an_error_and_not_the_end_of_ours(code, line, wrong):
    with pytest.raises(AttnscopeError, match=r"ends the process: SystemExit: 0 \(line \d+ of code0\.py"):
        compare(code("NormBefore", changed(line, wrong)), "mha", init=D, inputs=["x=2,5,24"])
