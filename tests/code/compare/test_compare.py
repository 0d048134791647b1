"""Two attentions: equal if they are, and the right place and cause if a mistake is planted in one."""

import itertools
import re

import pytest
import torch

from attnscope import AttnscopeError, compare
from tests.code.compare.code.styles import MISTAKES, STYLES, has, source, written

INIT = ["d_feat=24", "n_head=4", "n_kv_head=2"]
INPUTS = ["x=2,5,24", "y=2,7,24"]
NAMES = list(STYLES)
PLANTED = [(style, mistake) for style in STYLES for mistake in MISTAKES if has(style, mistake)]
DTYPES = ["float64", "float32", "bfloat16"]
WITHOUT_EFFECT = {
    ("mask missing", "mask added as numbers"),
    ("mask inverted", "mask added as numbers"),  # 1 where a key may be seen
    ("mask missing", "small fill"),
    ("rotary interleaved", "rotary missing"),
    ("rotary base", "rotary missing"),
    ("rotary interleaved", "rotary missing in K"),
    ("rotary base", "rotary missing in K"),
}
"""Pairs of which one hides the other in one of the tensors."""
PAIRS = [
    (styles[number % len(styles)], one, other)
    for number, (one, other) in enumerate(itertools.combinations(MISTAKES, 2))
    if (styles := [style for style in STYLES if has(style, one) and has(style, other)])
    and MISTAKES[one].tag != MISTAKES[other].tag
    and (one, other) not in WITHOUT_EFFECT
]
"""Every pair of mistakes, in one style after the other."""


def beside_each_tensor(pairs):
    """The first pairs in which each mistake stands beside one in each other tensor."""
    covered = set()
    for needed in (2, 1):
        for style, one, other in pairs:
            new = {(one, MISTAKES[other].role), (other, MISTAKES[one].role)} - covered
            if len(new) >= needed:
                covered |= new
                yield style, one, other


def compared(tmp_path, a, b, *mistakes, **options):
    """Compare a style with another, in which mistakes are planted."""
    first, second = written(tmp_path, "correct", a), written(tmp_path, "other", b, *mistakes)
    return compare(first, second, init=INIT, inputs=INPUTS, **options)


def other_style(style):
    return NAMES[(NAMES.index(style) + 1) % len(NAMES)]


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [(a, b, DTYPES[(i + k) % 3]) for i, a in enumerate(NAMES) for k, b in enumerate(NAMES)],
)
@pytest.mark.few(1)
def test_correct_attention_in_two_styles_is_equal(tmp_path, a, b, dtype):
    result = compared(tmp_path, a, b, dtype=dtype)
    assert (result.status, result.divergences, result.notices) == ("equal", [], [])
    assert {each.status for each in result.tensors} <= {"equal", "form"}


BESIDE = {
    "scale missing": "scale added",
    "soft cap": "soft cap missing",
    "mask missing": "mask added",
    "rotary interleaved": "rotary half-split",
    "rotary positions missing": "rotary positions added",
    "rotary positions added": "rotary positions missing",
    "bias missing": "bias added",
}
"""What a mistake of a is called, where b is what has more or less than a."""
MUTUAL = {
    "another scale",
    "scaled twice",
    "mask inverted",
    "causal mask aligned otherwise",
    "causal mask shifted",
    "rotary base",
    "shared heads in another order",
}
"""Differences of which neither side is said to be wrong."""


@pytest.mark.parametrize(
    ("style", "mistake", "wrong"), [(*each, "ba"[number % 2]) for number, each in enumerate(PLANTED)]
)
@pytest.mark.few(1)
def test_a_planted_mistake_is_found_whichever_side_has_it(tmp_path, style, mistake, wrong):
    planted, cause = MISTAKES[mistake], MISTAKES[mistake].cause
    sides = [
        written(tmp_path, "correct", other_style(style)),
        written(tmp_path, "other", style, mistake),
    ]
    result = compare(*(sides if wrong == "b" else sides[::-1]), init=INIT, inputs=INPUTS)
    expected = cause if wrong == "b" else BESIDE.get(cause, cause)
    assert result.status == "different"
    assert (result.divergences[0].role, result.divergences[0].cause) == (planted.role, expected)
    assert result.explained
    assert {each.cause for each in result.divergences} == {expected}
    if cause not in {*BESIDE, *MUTUAL}:
        assert re.match(rf"{wrong}('s)? ", result.divergences[0].explanation)


@pytest.mark.parametrize(("style", "one", "other"), list(beside_each_tensor(PAIRS)))
@pytest.mark.few(1)
def test_two_planted_mistakes_are_found(tmp_path, style, one, other):
    result = compared(tmp_path, other_style(style), style, one, other)
    found = {(each.role, cause) for each in result.divergences for cause in each.cause.split(" + ")}
    planted = {(MISTAKES[each].role, MISTAKES[each].cause) for each in (one, other)}
    assert planted <= found
    assert {cause for _, cause in found} == {cause for _, cause in planted}
    assert result.explained


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "mistake", ["scale of d_feat", "mask top-left", "keys shared interleaved", "bias missing in V"]
)
@pytest.mark.parametrize("style", NAMES)
def test_the_place_of_a_mistake_is_its_line(tmp_path, style, mistake):
    text = source(style, mistake).splitlines()
    tag = {"mask top-left": "fill"}.get(mistake, MISTAKES[mistake].tag)
    if style == "fused":
        tag = {"mask top-left": "scale", "keys shared interleaved": "share_k"}.get(mistake, tag)
    result = compared(tmp_path, other_style(style), style, mistake)
    site = result[result.divergences[0].role].b
    assert text[site.line - 1].endswith(f"# {tag}")


def test_what_no_common_cause_explains_is_reported_as_unexplained(tmp_path):
    path = tmp_path / "strange.py"
    text = source("heads first").replace(
        "scores = scores / math.sqrt(self.d)", "scores = (scores / 3).sin()"
    )
    path.write_text(text)
    result = compare(
        written(tmp_path, "correct", "einsum"), f"{path}:Attention", init=INIT, inputs=INPUTS
    )
    [divergence] = result.divergences
    assert (divergence.role, divergence.cause, result.explained) == ("scores", None, False)
    assert divergence.rest > 0.01


@pytest.mark.sweep
def test_the_class_that_divides_by_the_root_of_d_feat_is_told_so(tmp_path):
    path = tmp_path / "attn.py"
    path.write_text(TUTORIAL)
    result = compare(f"{path}:MultiHeadAttention", "mha", init=["d_feat=200", "n_head=5"])
    [divergence] = result.divergences
    assert "√d_feat = √200" in divergence.explanation
    assert "√d_head = √40" in divergence.explanation
    assert "√5" in divergence.explanation
    path.write_text(TUTORIAL.replace("d_feat)  # scale", "(d_feat // self.n_head))"))
    corrected = compare(
        f"{tmp_path / 'attn.py'}:MultiHeadAttention", "mha", init=["d_feat=200", "n_head=5"]
    )
    assert corrected.a == "mha"


TUTORIAL = """
import math
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_feat, n_head):
        super().__init__()
        self.n_head = n_head
        self.lin_Q = nn.Linear(d_feat, d_feat)
        self.lin_K = nn.Linear(d_feat, d_feat)
        self.lin_V = nn.Linear(d_feat, d_feat)
        self.lin = nn.Linear(d_feat, d_feat)

    def forward(self, Q, K, V):
        n_batch, n_Q, d_feat = Q.shape
        Q_split = self.lin_Q(Q).view(n_batch, n_Q, self.n_head, -1).transpose(1, 2)
        K_split = self.lin_K(K).view(n_batch, K.shape[1], self.n_head, -1).transpose(1, 2)
        V_split = self.lin_V(V).view(n_batch, V.shape[1], self.n_head, -1).transpose(1, 2)
        scores = Q_split @ K_split.transpose(2, 3) / math.sqrt(d_feat)  # scale
        attention = scores.softmax(-1)
        x_raw = attention @ V_split
        x_rsh1 = x_raw.transpose(1, 2).contiguous()
        x_rsh2 = x_rsh1.view(n_batch, n_Q, d_feat)
        return self.lin(x_rsh2)
"""


BERT = """
import math
from torch import nn


class MyBertAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def heads(self, x):
        b, n, d = x.shape
        q, k, v = (
            each(x).view(b, n, self.n_head, -1).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.n_head)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)

    def forward(self, x):
        return self.out(self.heads(x))


class WithoutProjection(MyBertAttention):
    def forward(self, x):
        return self.heads(x)


class WithNorm(MyBertAttention):
    def __init__(self, config):
        super().__init__(config.hidden_size, config.num_attention_heads)
        self.norm = nn.LayerNorm(config.hidden_size, eps=1e-12)

    def forward(self, x):
        return self.norm(x + super().forward(x))
"""


@pytest.fixture
def bert(tmp_path):
    path = tmp_path / "my_bert.py"
    path.write_text(BERT)
    return str(path)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "end"), [("MyBertAttention", "x"), ("WithoutProjection", "x_merged"), ("WithNorm", None)]
)
def test_own_attention_with_the_weights_of_a_model_equals_its_layer(bert, name, end):
    result = compare(f"{bert}:{name}", "minilm", layer=3, text="The cat sat.")
    assert (result.status, result.divergences) == ("equal", [])
    assert result.a == "minilm, encoder.layer.3.attention"
    assert any(f"ends with {end}" in each for each in result.notices) == (end is not None)
    assert {"W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V"} <= {each.role for each in result.weights}


@pytest.mark.parametrize("layer", range(6))
@pytest.mark.few(1)
def test_own_attention_equals_every_layer_of_minilm(bert, layer):
    assert compare(f"{bert}:WithNorm", "minilm", layer=layer).is_equal


def test_a_layer_with_another_scale_is_found(bert, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(BERT.replace("math.sqrt(d // self.n_head)", "math.sqrt(d)"))
    [divergence] = compare(f"{path}:MyBertAttention", "minilm", layer=0).divergences
    assert "√d_feat = √384" in divergence.explanation
    assert "√d_head = √32" in divergence.explanation


@pytest.mark.parametrize(
    ("other", "message", "hint"),
    [
        ("spda", "'spda' is neither a reference nor code.", "sdpa"),
        (3, "3 is neither code nor a model.", None),
        ("minilm", "minilm has several layers, and the code is compared with one.", "layer=0"),
    ],
)
def test_a_side_that_is_nothing_is_told_so(other, message, hint):
    def attention(Q, K, V):
        return (Q @ K.mT).softmax(-1) @ V

    with pytest.raises(AttnscopeError) as failure:
        compare(attention, other)
    assert (failure.value.message, failure.value.hint) == (message, hint)


@pytest.mark.parametrize("other", [None, torch.nn.Linear(3, 4)])
def test_sides_that_are_objects_are_called_by_their_names(other):
    def attention(Q, K, V):
        return (Q @ K.mT).softmax(-1) @ V

    name = "test_sides_that_are_objects_are_called_by_their_names.<locals>.attention"
    sides = f"{name} is not one" if other is None else f"neither {name} nor Linear is one"
    with pytest.raises(AttnscopeError) as failure:
        compare(attention, other, layer=0)
    assert failure.value.message == f"layer is for a model, and {sides}."


@pytest.mark.parametrize(
    ("sides", "options", "message"),
    [
        (("sdpa", "mha"), {}, "sdpa is a reference, and code is compared with it."),
        (("minilm", "sdpa"), {}, "sdpa is a reference, and code is compared with it."),
        (("mine.py:f", None), {"layer": 0}, "layer is for a model, and mine.py:f is not one."),
        (("mine.py:f", "sdpa"), {"layer": 0}, "layer is for a model, and neither sdpa nor mine.py:f is one."),
        (("mine.py:f", "sdpa"), {"adapter": "lora"}, "adapter is for two models, and one side is code."),
        (("mine.py:f", "minilm"), {}, "minilm has several layers, and the code is compared with one."),
        (("mine.py:f", "minilm"), {"layer": "0-3"}, 'layer="0-3" is not one layer, and the code is compared with one.'),
        (("mine.py:f", "other.py:f"), {"causal": True}, "causal is for the references sdpa and mha: other sides decide themselves."),
        (("mine.py:f", "minilm"), {"scale": 0.0, "layer": 0}, "scale is for the references sdpa and mha: other sides decide themselves."),
        (("minilm", "minilm"), {"rope": True}, "rope is for the references sdpa and mha, and both are models."),
        (("mine.py:f", "sdpa"), {"softcap": -1}, "the soft cap is -1, but it must be above 0."),
        (("minilm", "minilm"), {"init": ["d=3"]}, "init is for code, and both are models."),
        (("minilm", "minilm"), {"dtype": "float32"}, "dtype is for runs, and weights are compared as they are stored."),
        (("mine.py:f", "sdpa"), {"same": ["q"]}, "same 'q' is not a pair of names."),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_clear_line(sides, options, message):
    with pytest.raises(AttnscopeError) as failure:
        compare(*sides, **options)
    assert failure.value.message == message


@pytest.mark.parametrize("style", ["heads first", "fused", "einsum"])
def test_gradients_of_correct_attention_are_equal(tmp_path, style):
    result = compared(tmp_path, other_style(style), style, backward=True)
    assert result.status == "equal"
    assert {each.status for each in result.gradients} == {"equal"}
    assert [each.a for each in result.gradients[:2]] == ["x", "y"]
    assert len(result.gradients) == 2 + 8  # inputs; weights and biases
    assert all(each.rounding > 0 for each in result.gradients)


def test_gradients_that_are_zero_but_for_rounding_are_equal(tmp_path):
    a, b = written(tmp_path, "a", "heads first"), written(tmp_path, "b", "fused")
    init = {"d_feat": 4, "n_head": 1, "n_kv_head": 1}
    inputs = {name: torch.randn(1, 1, 4, generator=torch.Generator().manual_seed(6)) for name in "xy"}
    result = compare(a, b, init=init, inputs=inputs, dtype="float64", backward=True)
    of_queries = next(each for each in result.gradients if each.a == "W_Q.weight")
    assert of_queries.largest < 1e-15  # one key has all weight, whatever its score is
    assert {each.status for each in result.gradients} == {result.status} == {"equal"}


def test_a_wrong_gradient_behind_an_equal_output_is_found(tmp_path):
    path = tmp_path / "stopped.py"
    path.write_text(
        source("heads first").replace(
            "weights = scores.softmax(-1)", "weights = scores.softmax(-1).detach()"
        )
    )
    correct = written(tmp_path, "correct", "einsum")
    options = {"init": INIT, "inputs": INPUTS}
    assert compare(correct, f"{path}:Attention", **options).status == "equal"
    result = compare(correct, f"{path}:Attention", **options, backward=True)
    assert (result.status, result.divergences) == ("different", [])
    wrong = {each.a for each in result.gradients if each.status == "different"}
    assert wrong == {"x", "y", "W_Q.weight", "W_Q.bias", "W_K.weight", "W_K.bias"}


def test_gradients_equal_those_of_torch_for_its_own_module():
    """The gradient of an input that is passed three times is the sum of the three."""
    sizes = {"embed_dim": 24, "num_heads": 4, "batch_first": True}
    inputs = {"query": "2,5,embed_dim", "key": "query", "value": "query"}
    result = compare("torch.nn:MultiheadAttention", "mha", init=sizes, inputs=inputs, backward=True)
    assert result.status == "equal"
    assert result.gradients[0].a == "Q, K, V"
    assert result.gradients[0].b == "query, key, value"


OTHER_MISTAKES = {
    "Q and K swapped": (
        {"q = self.W_Q(x)": "q = self.W_K(x)", "k = self.W_K(y)": "k = self.W_Q(y)"},
        [("Q_feat", "Q and K swapped"), ("K_feat", "Q and K swapped")],
    ),
    "rotary before the split": (
        {
            "q = self.W_Q(x)": "q = rotated(self.W_Q(x))",
            "k = self.W_K(y)": "k = rotated(self.W_K(y))",
            "q = rotated(q)": "q = q * 1",
            "k = rotated(k)": "k = k * 1",
        },
        [("Q", "rotary before the split"), ("K", "rotary before the split")],
    ),
    "rotary offset": (
        {"position = torch.arange(n, dtype=x.dtype)": "position = torch.arange(n, dtype=x.dtype) + (n == 7)"},
        [("K", "rotary offset")],
    ),
    "rotary direction": (
        {"first * cos - second * sin, second * cos + first * sin": "first * cos + second * sin, second * cos - first * sin"},
        [("Q", "rotary direction"), ("K", "rotary direction")],
    ),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("mistake", OTHER_MISTAKES)
@pytest.mark.parametrize("style", ["heads first", "folded batch", "fused"])
def test_a_mistake_in_several_lines_is_found(tmp_path, style, mistake):
    lines, expected = OTHER_MISTAKES[mistake]
    text = source(style)
    for right, wrong in lines.items():
        assert right in text
        text = text.replace(right, wrong)
    path = tmp_path / "wrong.py"
    path.write_text(text)
    init = ["d_feat=24", "n_head=4", "n_kv_head=4"]
    result = compare(
        written(tmp_path, "correct", "heads last"), f"{path}:Attention", init=init, inputs=INPUTS
    )
    found = [(each.role, each.cause) for each in result.divergences]
    assert sorted(found) == sorted(expected)
    assert result.explained


MASKS = """
def blind(Q, K, V, mask):
    scores = Q @ K.mT / Q.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, {fill})
    return scores.softmax(-1) @ V
"""


def test_the_fill_matters_only_where_a_query_sees_no_key(tmp_path):
    paths = [tmp_path / f"{name}.py" for name in ("infinite", "finite")]
    for path, fill in zip(paths, ("float('-inf')", "-1e9"), strict=True):
        path.write_text(MASKS.format(fill=fill))
    mask = torch.ones(5, 7, dtype=torch.bool).tril(1)
    shapes = {"Q": (2, 3, 5, 8), "K": (2, 3, 7, 8), "V": (2, 3, 7, 6)}
    inputs = {name: torch.randn(shape) for name, shape in shapes.items()}
    targets = [f"{path}:blind" for path in paths]
    assert compare(*targets, inputs={**inputs, "mask": mask}).status == "equal"
    mask[2] = False
    result = compare(*targets, inputs={**inputs, "mask": mask})
    [divergence] = result.divergences
    assert (divergence.role, divergence.cause) == ("scores_masked", "another fill")
    assert "1 query sees no key at all" in divergence.explanation


def test_a_mask_of_numbers_is_one_for_all_heads(tmp_path):
    path = tmp_path / "numbers.py"
    path.write_text(MASKS.format(fill="-1e9").replace("~mask", "mask == 0"))
    inputs = ["Q=2,3,5,8", "K=2,3,7,8", "V=2,3,7,6", "mask=5,7<2"]
    assert compare(f"{path}:blind", "sdpa", inputs=inputs, seed=3).status == "equal"


def test_dropout_is_off_and_that_is_said(tmp_path):
    path = tmp_path / "dropout.py"
    path.write_text(
        source("heads first")
        .replace("self.W_O = ", "self.drop = nn.Dropout(0.25)\n        self.W_O = ")
        .replace("F.dropout(weights, 0.5, self.training)", "self.drop(weights)")
    )
    result = compare(
        written(tmp_path, "correct", "einsum"), f"{path}:Attention", init=INIT, inputs=INPUTS
    )
    assert result.status == "equal"
    assert result.notices == [f"dropout is off in {path}:Attention (p = 0.25)"]


def test_what_would_take_too_much_memory_is_refused(tmp_path, monkeypatch):
    from attnscope.base.process.memory import FreeMemory
    from attnscope.code.pairs import implementation as side

    monkeypatch.setattr(side, "free_host_memory", lambda: FreeMemory(16 * 2**14))
    with pytest.raises(
        AttnscopeError, match=r"takes too much memory: its tensors, .*, take more than 16\.0 KiB"
    ):
        compared(tmp_path, "einsum", "heads first")


@pytest.mark.sweep
def test_an_ordinary_layer_stays_within_a_few_times_its_tensors(tmp_path):
    """A layer of 300 tokens and 12 heads is compared, and not refused."""
    path = tmp_path / "long.py"
    path.write_text(MASKS.format(fill="-1e9"))
    inputs = ["Q=1,12,300,8", "K=1,12,300,8", "V=1,12,300,8", "mask=300,300@bool"]
    assert compare(f"{path}:blind", "sdpa", inputs=inputs).status == "equal"
