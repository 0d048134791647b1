"""What looks wrong is found, at its line; and in what is right, nothing is."""

from itertools import product

import pytest
import torch

from attnscope.observe.diagnose import findings as rules
from tests.observe.sources import CODE, HEAD, options, written
from tests.sweeps import swept


@pytest.fixture
def found(attnscope, monkeypatch):
    """The findings in a file of the corpus: `found("wrong.py:Class", init, inputs, …)`, as (line, message)."""
    monkeypatch.chdir(CODE)

    def run(target, init=(), inputs=(), *more):
        ran = attnscope("trace", target, *options(init, inputs), *more, "--format", "json")
        assert ran.exit_status == 0, ran.err or ran.json["crash"]
        return [(finding["line"], finding["message"]) for finding in ran.json["findings"]]

    return run


@pytest.fixture
def found_in(found, tmp_path):
    """The findings in a function `f`: `found_in("def f(Q, K): …", inputs, …)`, as (line, message).

    The line is counted from the function's first.
    """

    def run(source, inputs, *more):
        ahead, path = HEAD.count("\n"), written(tmp_path, source)
        return [(line - ahead, text) for line, text in found(f"{path}:f", [], inputs, *more)]

    return run


def line_of(file, text):
    """The number of the one line that a text is in; of `# right:`, the code that is wrong."""
    lines = (CODE / file).read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, line in enumerate(lines, start=1) if text in line]
    return number


QKV = ["Q=n_batch:2,n_head:3,n_Q:5,d_K:16", "K=n_batch,n_head,n_K:7,d_K", "V=n_batch,n_head,n_K,d_V:6"]
HEADS = ["d_model=60", "n_head=5"]

# Of each class in wrong.py: what it is given, the wrong line, and the words of the finding.
WRONG = {
    "SoftmaxOverQueries": ([], QKV, "dim=-2)", ["softmax normalizes axis -2", "contracts over axis -1"]),
    "MaskAfterSoftmax": (
        [], [*QKV, "mask=n_Q,n_K@bool"], "attention.masked_fill(",
        ["rows of attention do not sum to one", "Apply masks before the softmax"],
    ),
    "MaskWithoutAxes": (
        [], ["Q=n_batch:5,n_head:3,n_Q:5,d_K:16", *QKV[1:], "padding=n_batch,n_K@bool"], "scores + mask",
        ["n_batch and n_Q are both 5", "mask [n_batch 5, n_K 7]", "missing from the mask"],
    ),
    "ScaledByLength": ([], QKV, "math.sqrt(n_k)", ["1/√n_K = 1/√7", "d_K = 16", "1/√16 is 0.25"]),
    "ScaleMultiplied": ([], QKV, "* math.sqrt", ["scaled by 4, which is √16 instead of 1/√16"]),
    "ScaledByWidth": ([], QKV, "/ d_k  #", ["1/16, without the square root"]),
    "FullyMaskedRow": ([], QKV, "see: softmax", ["6 of 30 rows of the scores are fully masked"]),
    "HeadsNotTransposedBack": (
        HEADS, ["x=n_batch:4,n:7,d_model"], "# right: heads.transpose",
        ["as [n_batch, n, d_model] scrambles n", "transpose missing"],
    ),
    "SplitWithoutTranspose": (
        HEADS, ["x=n_batch:4,n:7,d_model"], "# right: view(",
        ["as [n_batch, n_head, n, d_model/n_head] scrambles n", "transpose missing"],
    ),
    "LogOfNegative": ([], QKV, "torch.log(distance", ["penalty is the first tensor with 20 NaN among its 35"]),
    "QueryAndKeySwapped": (
        [], [QKV[0], "K=n_batch,n_head,n_K:5,d_K", QKV[2]], "see: product",
        ["n_Q and n_K are both 5", "attention [n_batch 2, n_head 3, n_K 5, n_Q 5]"],
    ),
    "HardCodedBatch": (
        HEADS, ["x=n_batch:4,n:7,d_model"], "x.size(0)",
        ["self.w_q(x).view(2, -1, self.n_head, self.d_head)", "by coincidence", "mix"],
    ),
}  # fmt: skip


def wrong_line(name, text):
    lines = (CODE / "wrong.py").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"class {name}("))
    text = {"see: softmax": "F.softmax(", "see: product": "attention @ V"}.get(text, text)
    return next(i + 1 for i in range(first, len(lines)) if text in lines[i])


def test_every_wrong_class_has_its_case():
    text = (CODE / "wrong.py").read_text(encoding="utf-8")
    classes = [line.split()[1].split("(")[0] for line in text.splitlines() if line.startswith("class ")]
    assert classes == list(WRONG)


NEEDS_VALUES = {
    "MaskAfterSoftmax", "MaskWithoutAxes", "FullyMaskedRow", "LogOfNegative", "QueryAndKeySwapped", "HardCodedBatch",
}  # fmt: skip
ON_DEVICES = [("cpu", name) for name in WRONG] + [
    ("meta", name) for name in WRONG if name not in NEEDS_VALUES
]


@pytest.mark.few(4)
@pytest.mark.parametrize(("device", "name"), ON_DEVICES)
def test_each_mistake_is_found_once_and_at_its_line(found, device, name):
    init, inputs, text, words = WRONG[name]
    line = wrong_line(name, text)
    findings = found(f"wrong.py:{name}", init, inputs, "--device", device)
    messages = [message for where, message in findings if where == line]
    assert messages
    assert all(any(word in message for message in messages) for word in words), messages
    assert len(findings) == 1 or name == "FullyMaskedRow"


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [5, 11])
def test_a_hard_coded_batch_is_found_with_that_very_batch(found, n):
    assert found("wrong.py:HardCodedBatch", ["d_model=12", "n_head=3"], [f"x=n_batch:2,n:{n},d_model"])


# The tutorial's two slips.

TUTORIAL = ["Q=n_batch:6,n_Q:32,d_feat", "K=n_batch,n_K:32,d_feat", "V=n_batch,n_K,d_feat"]


@pytest.mark.pairwise
@pytest.mark.parametrize(
    ("device", "n_K"), swept(product(["cpu", "meta"], [32, 48]), [("cpu", 32), ("meta", 48)])
)
def test_the_tutorials_scale_is_found(found, device, n_K):
    inputs = [text.replace("n_K:32", f"n_K:{n_K}") for text in TUTORIAL]
    ((line, message),) = found(
        "tutorial_mha.py:MultiHeadedAttention", ["d_feat=200", "n_head=5"], inputs, "--device", device
    )
    assert line == line_of("tutorial_mha.py", "np.sqrt(d_k)")
    assert "0.07071, which is 1/√d_feat = 1/√200" in message
    assert "their product contracts over d_feat/n_head = 40, and 1/√40 is 0.1581" in message


@pytest.mark.sweep
def test_the_tutorials_keys_of_another_batch_are_found(found):
    """Six samples of queries and three of keys: the keys are shared out among them without an error."""
    init = ["d_feat=200", "n_head=5"]
    inputs = ["Q=n_batch:6,n_Q:32,d_feat", "K=n_batch_K:3,n_K:64,d_feat", "V=n_batch_K,n_K,d_feat"]
    lines = dict(found("tutorial_mha.py:MultiHeadedAttention", init, inputs))
    message = lines[line_of("tutorial_mha.py", "K_feat.view")]
    assert "K_feat [n_batch_K 3, n_K 64, d_feat 200]" in message
    assert "by coincidence" in message


# What is right: the class, its arguments, its inputs.

RIGHT = {
    "tutorial_sdpa": ("tutorial_sdpa.py:ScaledDotProductAttention", [], [
        "Q=n_batch:2,n_Q:5,d_K:16", "K=n_batch,n_K:7,d_K", "V=n_batch,n_K,d_V:6",
    ]),
    "tutorial_sdpa, masked": ("tutorial_sdpa.py:ScaledDotProductAttention", ["dropout=0.1"], [
        "Q=n_batch:2,n_Q:5,d_K:16", "K=n_batch,n_K:7,d_K", "V=n_batch,n_K,d_V:6", "mask=n_Q,n_K@bool",
    ]),
    "tutorial_mha_right": ("tutorial_mha_right.py:MultiHeadedAttention", ["d_feat=60", "n_head=5"], [
        "Q=n_batch:2,n_Q:9,d_feat", "K=n_batch,n_K:9,d_feat", "V=n_batch,n_K,d_feat",
    ]),
    "tutorial_mha_right, masked": (
        "tutorial_mha_right.py:MultiHeadedAttention", ["d_feat=60", "n_head=5"],
        ["Q=n_batch:2,n_Q:9,d_feat", "K=n_batch,n_K:7,d_feat", "V=n_batch,n_K,d_feat", "mask=n_Q,n_K@bool"],
    ),
    "annotated": ("annotated.py:MultiHeadedAttention", ["h=5", "d_model=60"], [
        "query=n_batch:2,n_Q:9,d_model", "key=n_batch,n_K:7,d_model", "value=n_batch,n_K,d_model",
        "mask=n_batch,n_Q,n_K@bool",
    ]),
    "split_merge": ("split_merge.py:MultiHeadAttention", ["n_heads=5", "d_model=60"], [
        "query=n_batch:2,n_Q:9,d_model", "key=n_batch,n_K:7,d_model",
    ]),
    "nanogpt": (
        "nanogpt.py:CausalSelfAttention",
        ["config=nanogpt.py:GPTConfig(block_size=20,n_head=3,n_embd=24,dropout=0.2)"], ["x=n_batch:2,n:13,n_embd"],
    ),
    "grouped": (
        "grouped.py:GroupedQueryAttention", ["hidden_size=96", "num_heads=6", "num_key_value_heads=2"],
        ["hidden_states=n_batch:4,n:5,hidden_size"],
    ),
    "multi-query": ("grouped.py:MultiQueryAttention", ["dim=96", "n_heads=6"], ["x=n_batch:4,n:5,dim"]),
    "multi-query, masked": (
        "grouped.py:MultiQueryAttention", ["dim=96", "n_heads=6", "n_kv_heads=3"], ["x=n_batch:4,n:5,dim", "mask=n,n"],
    ),
    "expanded groups": (
        "expanded_groups.py:GroupedAttention", ["embed_dim=96", "num_heads=6", "num_kv_heads=2", "head_dim=16"],
        ["x=n_batch:4,n:5,embed_dim"],
    ),
    "low rank": (
        "low_rank.py:LatentAttention",
        ["dim=40", "n_heads=3", "q_rank=11", "kv_rank=14", "nope_dim=6", "rope_dim=4", "v_dim=5"], ["x=n_batch:2,n:7,dim"],
    ),
    "cross": (
        "cross.py:CrossAttention", ["query_dim=24", "context_dim=35", "heads=3", "dim_head=10", "dropout=0.1"],
        ["x=n_batch:2,n_Q:11,query_dim", "context=n_batch,n_K:13,context_dim", "mask=n_batch,n_K@bool"],
    ),
    "fused": (
        "fused.py:FusedAttention", ["dim=24", "num_heads=3", "dropout=0.1"], ["x=n_batch:2,n:7,dim", "attn_mask=n,n"],
    ),
    "fused, causal": ("fused.py:FusedAttention", ["dim=24", "num_heads=3", "is_causal=True"], ["x=n_batch:2,n:7,dim"]),
    "relative, in buckets": (
        "relative.py:BucketedBiasAttention", ["d_model=24", "n_heads=3"],
        ["hidden_states=n_batch:2,n_Q:5,d_model", "key_value_states=n_batch,n_K:7,d_model"],
    ),
    "relative, a table": (
        "relative.py:RelativeBiasAttention", ["dim=24", "num_heads=3", "n_queries=5", "n_keys=7"],
        ["x=n_batch:2,n_queries,dim", "context=n_batch,n_keys,dim"],
    ),
    "relative, shifted": (
        "relative.py:ShiftedRelativeAttention", ["n_head=3", "d_model=24", "d_head=10"],
        ["w=n:5,n_batch:2,d_model", "r=n,d_model"],
    ),
    "windowed": (
        "windowed.py:WindowedSelfAttention", ["dim=24", "num_heads=3", "window_size=2"], ["x=n_batch:5,H:4,W:6,dim"],
    ),
    "windowed, with masks": (
        "windowed.py:WindowAttention", ["dim=24", "num_heads=3", "window_size=(2,2)"], ["x=n:6,4,dim", "mask=2,4,4"],
    ),
}  # fmt: skip

# What these compute in: -1e9 is more than float16 holds, and rotary angles are float32 in the corpus.
NOT_HALF = {
    "tutorial_sdpa, masked": "bfloat16",
    "tutorial_mha_right, masked": "bfloat16",
    "annotated": "bfloat16",
    "grouped": "float64",
    "expanded groups": "float64",
    "low rank": "float64",
}
HOW = {
    "in eval mode": [],
    "on meta": ["--device", "meta"],
    "in training, and another dtype": ["--train", "--seed", "3"],
}


def test_every_right_file_has_its_case():
    files = {
        target.partition(":")[0] for target in (*(target for target, *_ in RIGHT.values()), *SELDOM)
    }
    elsewhere = {"configured.py", "rotary_complex.py", "absorbed.py"}  # in tests of their own
    known = files | elsewhere | {"wrong.py", "tutorial_mha.py"}
    assert known == {path.name for path in CODE.glob("*.py")}


PAIRS = [(name, list(HOW)[i % len(HOW)]) for i, name in enumerate(RIGHT)]
"""Each class in one of the ways, and each way with several classes."""


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "how"), PAIRS)
def test_nothing_is_found_in_what_is_right(found, name, how):
    more = HOW[how]
    if "--train" in more:
        more = [*more, "--dtype", NOT_HALF.get(name, "float16")]
    assert found(*RIGHT[name], *more) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["Expanded", "Absorbed", "Joined", "Filled", "Fused", "Premultiplied"])
def test_the_scale_of_latent_attention_is_that_before_a_projection_was_absorbed(found, name):
    assert found(f"absorbed.py:{name}", [], ["x=n_batch:2,n:7,d_model"]) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["Expanded", "Joined", "Fused"])
def test_another_scale_of_latent_attention_is_found(found, name):
    """1/√d_model is the width of no product."""
    [(_, message)] = found(f"absorbed.py:{name}", ["width=40"], ["x=n_batch:2,n:7,d_model"])
    assert "1/√d_model = 1/√40" in message or "1/√width = 1/√40" in message


def test_a_matrix_of_each_head_does_not_excuse_the_scale_of_all_heads(found):
    """The first projection of x is its own, also where each head has a matrix."""
    [(_, message)] = found("absorbed.py:PerHead", [], ["x=n_batch:2,n:7,d_model"])
    assert "1/√d_model = 1/√40; but their product contracts over d_head = 6" in message
    assert found("absorbed.py:PerHead", ["slip=False"], ["x=n_batch:2,n:7,d_model"]) == []


@pytest.mark.sweep
def test_products_of_two_factors_each_are_one_product_when_they_are_added(found_in):
    """[q, q']·[k, k'] is q·k + q'·k', so its scale is that of both widths, or of one of them."""
    code = """\
    def f(q, k, u, v):
        scores = q @ k.mT + u @ v.mT
        return (scores / DIVISOR).softmax(-1) @ k
    """
    inputs = ["q=2,5,6", "k=2,7,6", "u=2,5,6", "v=2,7,6"]
    assert found_in(code.replace("DIVISOR", "math.sqrt(q.shape[-1] + u.shape[-1])"), inputs) == []
    assert found_in(code.replace("DIVISOR", "math.sqrt(q.shape[-1])"), inputs) == []
    [(_, message)] = found_in(code.replace("DIVISOR", "q.shape[-1]"), inputs)
    assert "without the square root" in message


LARGER = {
    "tutorial_mha_right": lambda text: text.replace("n_Q:9", "n_Q:65").replace("n_K:9", "n_K:31"),
    "grouped": lambda text: text.replace("n_batch:4,n:5", "n_batch:1,n:64"),
    "cross": lambda text: text.replace("n_Q:11", "n_Q:1"),
    "relative, in buckets": lambda text: text.replace("n_K:7", "n_K:200"),
    "split_merge": lambda text: text.replace("n_batch:2,n_Q:9", "n_batch:9,n_Q:9"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", LARGER)
def test_nothing_is_found_at_other_sizes(found, name):
    target, init, inputs = RIGHT[name]
    changed = [LARGER[name](text) for text in inputs]
    assert changed != inputs
    assert found(target, init, changed) == []


@pytest.mark.sweep
def test_nothing_is_found_in_a_shift_with_a_memory(found):
    target, init, _ = RIGHT["relative, shifted"]
    inputs = ["w=n_Q:5,n_batch:2,d_model", "r=n_K:7,d_model", "mems=n_mem:2,n_batch,d_model"]
    assert found(target, init, [*inputs, "attn_mask=n_Q,n_K@bool"]) == []


# What is seldom: each class at several sizes, and the same class with a mistake in one line.

X = ["x=b:2,n:7,width"]
SELDOM = {
    "mixed_heads.py:TalkingHeadsAttention": [
        ([], X), (["width=64", "n_head=8"], ["x=b:3,n:64,width"]), (["width=12", "n_head=3"], ["x=b:3,n:4,width"]),
    ],
    "mixed_heads.py:ReAttention": [
        ([], X), (["width=64", "n_head=8"], ["x=b:3,n:64,width"]), (["width=12", "n_head=3"], ["x=b:3,n:4,width"]),
    ],
    "linear_attention.py:LinearAttention": [
        ([], ["x=b:2,n:7,dim"]), (["dim=64", "n_head=8"], ["x=b:3,n:8,dim"]), (["dim=9", "n_head=3"], ["x=b:3,n:3,dim"]),
    ],
    "linear_attention.py:SeparateProjections": [
        ([], ["x=b:2,n:7,dim"]), (["dim=64", "n_head=8"], ["x=b:3,n:8,dim"]), (["dim=9", "n_head=3"], ["x=b:3,n:3,dim"]),
    ],
    "relative_shift.py:PaddedShift": [
        ([], ["x=b:2,n:7,d_model", "positions=m:13,d_model"]), ([], ["x=b:3,n:4,d_model", "positions=m:7,d_model"]),
        ([], ["x=b:2,n:7,d_model", "positions=13,d_model"]),
    ],
    "relative_shift.py:DoubledShift": [
        ([], ["x=b:2,n:7,d_model", "positions=m:14,d_model"]), ([], ["x=b:3,n:6,d_model", "positions=m:12,d_model"]),
    ],
    "relative_shift.py:TimeFirstShift": [
        ([], ["w=n:7,b:2,d_model", "r=m:14,d_model"]), ([], ["w=n:7,b:2,d_model", "r=m:15,d_model"]),
        (["d_model=24", "n_head=2"], ["w=n:5,b:5,d_model", "r=m:10,d_model"]),
    ],
    "windowed.py:WindowAttention": [
        (["dim=24", "num_heads=3", "window_size=(4,4)"], ["x=B_:8,N:16,dim", "mask=nW:4,N,N"]),
        (["dim=96", "num_heads=6", "window_size=(2,2)"], ["x=B_:6,N:4,dim", "mask=nW:3,N,N"]),
    ],
    "landmarks.py:LandmarkAttention": [
        ([], ["x=b:2,n:12,dim", "mask=b,n"]), (["dim=32", "n_head=4"], ["x=b:1,n:16,dim", "mask=b,n<2"]),
    ],
    **{
        f"split_in_scopes.py:{name}": [([], ["x=B:2,T:7,d_model"]), ([], ["x=B:4,T:48,d_model"]), ([], ["x=B:6,T:4,d_model"])]
        for name in ("InAGenerator", "InALambda", "InAComprehension", "InAFunction")
    },
}  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("target", "init", "inputs"),
    [(target, *case) for target, cases in SELDOM.items() for case in (cases[0], cases[-1])],
)
def test_nothing_is_found_in_what_is_seldom(found, target, init, inputs):
    assert found(target, init, inputs) == []


# Of each, a line, what stands there by mistake, and the words of the finding.
MISTAKES = [
    ("mixed_heads.py:TalkingHeadsAttention", "logits.softmax(dim=-1)", "logits.softmax(dim=-2)", "softmax normalizes axis"),
    ("mixed_heads.py:TalkingHeadsAttention", "q, k) * self.scale", "q, k) * width**-0.5", "1/√width = 1/√48"),
    ("mixed_heads.py:TalkingHeadsAttention", "logits.softmax(dim=-1)", "logits.softmax(dim=1)", "softmax normalizes axis"),
    ("mixed_heads.py:ReAttention", "q.size(-1) ** 0.5", "width**0.5", "1/√width = 1/√48"),
    (
        "relative_shift.py:PaddedShift", "scores.softmax(dim=-1)", "by_content.softmax(dim=-1) * self.d_head**-0.5",
        "rows of attention do not sum to one",
    ),
    (
        "relative_shift.py:DoubledShift", "rows = scores.reshape(b, h, 2 * n, n)",
        "return scores.reshape(b, h, 2 * n, n).transpose(2, 3)[..., :n]", " scrambles ",
    ),
    ("landmarks.py:LandmarkAttention", "(q @ mean_k.mT).softmax(-1)", "(q @ mean_k.mT).softmax(-2)", "softmax normalizes axis"),
    ("landmarks.py:LandmarkAttention", "(1 - mask[:, None, None])", "torch.ones(n)", "24 of 24 rows of the scores are fully masked"),
    (
        "windowed.py:WindowAttention", ".transpose(1, 2).reshape(B_, N, C)", ".reshape(B_, N, C)", " scrambles ",
    ),
    *(
        (
            f"split_in_scopes.py:{name}", "t.view(B, T, self.cfg.n_head, -1)",
            "t.view(2, -1, self.cfg.n_head, self.cfg.d_model // self.cfg.n_head)", "by coincidence",
        )
        for name in ("InAGenerator", "InALambda", "InAComprehension", "InAFunction")
    ),
]  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize(("target", "right", "wrong", "words"), MISTAKES)
def test_the_same_with_a_mistake_is_found_at_its_line(found, tmp_path, target, right, wrong, words):
    file, _, name = target.partition(":")
    lines = (CODE / file).read_text(encoding="utf-8").splitlines()
    after = next(i for i, line in enumerate(lines) if line.startswith(f"class {name}("))
    if not any(right in line for line in lines[after:]):
        after = 0  # in what the class inherits
    place = next(i for i, line in enumerate(lines) if i >= after and right in line)
    lines[place] = lines[place].replace(right, wrong)
    (tmp_path / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    init, inputs = SELDOM[target][0]
    findings = found(f"{tmp_path / file}:{name}", init, inputs)
    assert [line for line, message in findings if words in message] == [place + 1]


# Scales, and all else that becomes of scores.

FINE = {
    "divided by a root": "scores = Q @ K.mT / math.sqrt(Q.size(-1))\nreturn scores.softmax(-1) @ V",
    "multiplied with a root's inverse": "scores = Q @ K.mT * Q.size(-1) ** -0.5\nreturn scores.softmax(-1) @ V",
    "divided by a tensor": "scores = Q @ K.mT / torch.tensor(float(Q.size(-1))).sqrt()\nreturn scores.softmax(-1) @ V",
    "divided in its place": "scores = Q @ K.mT\nscores /= Q.size(-1) ** 0.5\nreturn scores.softmax(-1) @ V",
    "queries divided before": "q = Q / Q.size(-1) ** 0.5\nreturn (q @ K.mT).softmax(-1) @ V",
    "split over both": "s = Q.size(-1) ** -0.25\nreturn ((Q * s) @ (K * s).mT).softmax(-1) @ V",
    "einsum": 'scores = torch.einsum("bhqd,bhkd->bhqk", Q, K) / Q.size(-1) ** 0.5\nreturn torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), V)',
    "no scale": "return (Q @ K.mT).softmax(-1) @ V",
    "a temperature besides": "return (Q @ K.mT / math.sqrt(Q.size(-1)) * 1.5).softmax(-1) @ V",
    "fused": "return F.scaled_dot_product_attention(Q, K, V)",
    "fused, with its scale": "return F.scaled_dot_product_attention(Q, K, V, scale=Q.size(-1) ** -0.5)",
    "fused, without a scale": "return F.scaled_dot_product_attention(Q, K, V, scale=1.0)",
    "fused, causal": "return F.scaled_dot_product_attention(Q, K, V, is_causal=True)",
    "a soft cap": "scores = Q @ K.mT / math.sqrt(Q.size(-1))\nscores = 30 * torch.tanh(scores / 30)\nreturn scores.softmax(-1) @ V",
    "a soft cap without a scale": "scores = 30 * torch.tanh(Q @ K.mT / 30)\nreturn scores.softmax(-1) @ V",
    "log_softmax": "scores = Q @ K.mT / math.sqrt(Q.size(-1))\nreturn F.log_softmax(scores, dim=-1).exp() @ V",
    "softmax by hand": "e = (Q @ K.mT / math.sqrt(Q.size(-1))).exp()\nreturn e / e.sum(-1, keepdim=True) @ V",
    "norms": "q, k = F.normalize(Q, dim=-1), F.normalize(K, dim=-1)\nreturn (q @ k.mT * 10).softmax(-1) @ V",
    "transposed": "scores = K @ Q.mT / math.sqrt(Q.size(-1))\nattention = scores.softmax(-2).mT\nreturn attention @ V",
    "by columns": "scores = K @ Q.mT / math.sqrt(Q.size(-1))\nattention = scores.softmax(-2)\nreturn V.mT @ attention",
    "dropout": "attention = (Q @ K.mT / math.sqrt(Q.size(-1))).softmax(-1)\nreturn F.dropout(attention, 0.5) @ V",
    "a gate": "return (Q @ K.mT / math.sqrt(Q.size(-1))).softmax(-1) @ V * torch.sigmoid(Q[..., :1])",
    "a triangle of attention that is made to sum to one": "attention = (Q @ K.mT / math.sqrt(Q.size(-1))).softmax(-1).tril()\nattention = attention / attention.sum(-1, keepdim=True)\nreturn attention @ V",
    "a triangle of attention that is causal": "scores = Q @ K.mT / math.sqrt(Q.size(-1))\nscores = scores.masked_fill(torch.ones(5, 7).triu(1).bool(), -torch.inf)\nreturn scores.softmax(-1).tril() @ V",
    "a triangle of scores with -inf elsewhere": "scores = (Q @ K.mT / math.sqrt(Q.size(-1))).tril()\nscores = scores.masked_fill(scores == 0, -torch.inf)\nreturn scores.softmax(-1) @ V",
    "a triangle of scores, hidden after exp": "scores = (Q @ K.mT / math.sqrt(Q.size(-1))).tril()\nattention = scores.softmax(-1).tril()\nattention = attention / attention.sum(-1, keepdim=True)\nreturn attention @ V",
    "a triangle of one of two products": "scores = Q @ K.mT / math.sqrt(Q.size(-1))\nreturn (scores + (Q @ K.mT).tril()).softmax(-1) @ V",
    "a triangle of scores that are all zero": "scores = Q @ (K * 0).mT / math.sqrt(Q.size(-1))\nreturn (scores + (Q @ (K * 0).mT).tril()).softmax(-1) @ V",
    "a triangle without a softmax": "return (Q @ K.mT).tril() @ V",
    "fused, masked above the diagonal": "return F.scaled_dot_product_attention(Q, K, K, attn_mask=torch.ones(5, 7).tril().bool())",
    "masked by a product, and hidden after the softmax": "see = torch.ones(5, 7).tril()\nscores = Q @ K.mT / math.sqrt(Q.size(-1))\nattention = (scores * see).softmax(-1) * see\nreturn attention / (attention.sum(-1, keepdim=True) + 1e-13) @ V",
    "masked by a product and a sum": "see = torch.ones(5, 7).tril()\nscores = Q @ K.mT / math.sqrt(Q.size(-1))\nreturn (scores * see - 1e4 * (1 - see)).softmax(-1) @ V",
    "filled with zero, then with -inf": "hidden = torch.ones(5, 7).triu(1).bool()\nscores = Q @ K.mT / math.sqrt(Q.size(-1))\nscores = scores.masked_fill(hidden, 0.0)\nreturn scores.masked_fill(hidden, -torch.inf).softmax(-1) @ V",
    "scores of a ReLU": "scores = Q @ K.mT / math.sqrt(Q.size(-1))\nreturn scores.masked_fill(scores < 0, 0.0).softmax(-1) @ V",
    "queries of padding": "pad = (torch.arange(Q.size(-2)) > 2)[:, None]\nscores = Q @ K.mT / math.sqrt(Q.size(-1))\nreturn scores.masked_fill(pad, 0.0).softmax(-1) @ V",
    "a difference of two maps": "q, p = Q.chunk(2, -1)\nk, m = K.chunk(2, -1)\none, two = ((x @ y.mT / math.sqrt(x.size(-1))).softmax(-1) for x, y in ((q, k), (p, m)))\nreturn (one - 0.3 * two) @ V",
    "a mean of two maps": "q, p = Q.chunk(2, -1)\nk, m = K.chunk(2, -1)\none, two = ((x @ y.mT / math.sqrt(x.size(-1))).softmax(-1) for x, y in ((q, k), (p, m)))\nreturn (one + two) / 2 @ V",
    "a map and its transpose": "attention = (Q @ Q.mT / math.sqrt(Q.size(-1))).softmax(-1)\nreturn (attention.mT + attention) / 2 @ Q",
    "a sink that is cut off": (
        "scores = Q @ K.mT / math.sqrt(Q.size(-1))\nsink = torch.ones(1, 1, 1, 1).expand(*scores.shape[:-1], 1)\n"
        "both = torch.cat([scores, sink], -1)\nboth = both - both.max(-1, keepdim=True).values\n"
        "attention = both.softmax(-1)[..., :-1]\nreturn attention @ V"
    ),
}  # fmt: skip


def function(body, arguments="Q, K, V"):
    return f"def f({arguments}):\n" + "".join(f"    {line}\n" for line in body.split("\n"))


@pytest.mark.few(5)
@pytest.mark.parametrize("name", FINE)
def test_no_fault_is_found_with(found_in, name):
    assert found_in(function(FINE[name]), QKV) == []


UNDER_N_K = ["1/√n_K = 1/√7", "d_K = 16", "0.25"]
FAULTS = {
    "multiplied with another root's inverse": ("scores = Q @ K.mT * K.size(-2) ** -0.5\nreturn scores.softmax(-1) @ V", 2, UNDER_N_K),
    "divided by another root": ("scores = Q @ K.mT\nscores = scores / K.size(-2) ** 0.5\nreturn scores.softmax(-1) @ V", 3, UNDER_N_K),
    "divided in its place": ("scores = Q @ K.mT\nscores /= K.size(-2) ** 0.5\nreturn scores.softmax(-1) @ V", 3, UNDER_N_K),
    "divided by a tensor": ("scores = Q @ K.mT / torch.tensor(float(K.size(-2))).sqrt()\nreturn scores.softmax(-1) @ V", 2, UNDER_N_K),
    "queries divided before": ("q = Q / K.size(-2) ** 0.5\nreturn (q @ K.mT).softmax(-1) @ V", 2, UNDER_N_K),
    "both divided by the whole root": ("s = Q.size(-1) ** -0.5\nreturn ((Q * s) @ (K * s).mT).softmax(-1) @ V", 3, ["1/16, without the square root"]),
    "divided twice": ("q = Q / Q.size(-1) ** 0.5\nreturn F.scaled_dot_product_attention(q, K, V)", None, ["1/16, without the square root"]),
    "fused": ("q = Q * 1\nreturn F.scaled_dot_product_attention(q, K, V, scale=K.size(-2) ** -0.5)", None, UNDER_N_K),
    "before a mask": ("scores = Q @ K.mT / K.size(-2) ** 0.5\nscores = scores.masked_fill(scores > 9, -1e9)\nreturn scores.softmax(-1) @ V", 2, UNDER_N_K),
    "before a soft cap": ("scores = Q @ K.mT * K.size(-2) ** -0.5\nscores = torch.tanh(scores)\nreturn scores.softmax(-1) @ V", 2, UNDER_N_K),
    "before the logarithm of a softmax": ("scores = Q @ K.mT / K.size(-2) ** 0.5\nreturn F.log_softmax(scores, dim=-1).exp() @ V", 2, UNDER_N_K),
    "the logarithm of a softmax over queries": ("scores = Q @ K.mT / Q.size(-1) ** 0.5\nreturn F.log_softmax(scores, dim=-2).exp() @ V", 3, ["softmax normalizes axis -2"]),
    "a number of another width": ("return (Q @ K.mT / 8.0).softmax(-1) @ V", 2, ["0.125", "written in this line"]),
    "softmax over queries": ("scores = Q @ K.mT / Q.size(-1) ** 0.5\nattention = scores.softmax(2)\nreturn attention @ V", 3, ["softmax normalizes axis -2", "contracts over axis -1"]),
    "softmax over heads": ("scores = Q @ K.mT / Q.size(-1) ** 0.5\nattention = scores.softmax(1)\nreturn attention @ V", 3, ["softmax normalizes axis -3 (size", "contracts over axis -1"]),
    "softmax over queries, einsum": ('attention = (Q @ K.mT / Q.size(-1) ** 0.5).softmax(-2)\nreturn torch.einsum("bhqk,bhkd->bhqd", attention, V)', 2, ["softmax normalizes axis"]),
    "attention is halved": ("attention = (Q @ K.mT / Q.size(-1) ** 0.5).softmax(-1)\nattention = attention * 0.5\nreturn attention @ V", 3, ["30 of 30 rows", "do not sum to one (sums: 0.5): this line"]),
    "attention is made causal": ("attention = (Q @ K.mT / Q.size(-1) ** 0.5).softmax(-1)\nattention = attention.tril()\nreturn attention @ V", 3, ["30 of 30 rows of attention do not sum to one"]),
    "scores are made causal with zeros": ("scores = Q @ K.mT / Q.size(-1) ** 0.5\nscores = torch.tril(scores)\nreturn scores.softmax(-1) @ V", 3, ["120 weights are not zero", "hides no key, because exp(0) is 1"]),
    "a window is cut out with zeros": ("scores = Q @ K.mT / Q.size(-1) ** 0.5\nscores = scores.triu(diagonal=1)\nreturn scores.softmax(-1) @ V", 3, ["weights are not zero"]),
    "fused, and a query sees no key": ("mask = torch.ones(5, 7).tril(-1).bool()\nreturn F.scaled_dot_product_attention(Q, K, K, attn_mask=mask)", 3, ["1 of 5 rows of the mask are fully masked: no key is visible to them, so the kernel returns 0 for them"]),
    "fused, and -inf for a query": ("mask = torch.zeros(2, 3, 5, 7)\nmask[0, :, 2] = -torch.inf\nreturn F.scaled_dot_product_attention(Q, K, K, attn_mask=mask)", 4, ["3 of 30 rows of the mask are fully masked"]),
    "softmax over queries, without NaN": ("attention = (Q @ K.mT / Q.size(-1) ** 0.5).softmax(-2)\nattention = attention.nan_to_num()\nreturn attention @ V", 2, ["softmax normalizes axis -2"]),
    "softmax over queries of two terms": ("scores = (Q @ K.mT + Q.roll(1, 1) @ K.mT) / Q.size(-1) ** 0.5\nattention = scores.softmax(-2)\nreturn attention @ V", 3, ["softmax normalizes axis -2"]),
    "softmax over queries of two maps": ("one = (Q @ K.mT / Q.size(-1) ** 0.5).softmax(-2)\nreturn (one + one.flip(1)) @ V", 2, ["softmax normalizes axis -2"]),
    "filled with almost nothing": ("hidden = torch.ones(5, 7).triu(1).bool()\nscores = Q @ K.mT / Q.size(-1) ** 0.5\nscores = scores.masked_fill(hidden, -1e-9)\nreturn scores.softmax(-1) @ V", 4, ["120 weights are not zero although this line sets their scores to -1e-09"]),
    "filled with zero": ("hidden = torch.ones(5, 7).triu(1).bool()\nscores = Q @ K.mT / Q.size(-1) ** 0.5\nscores = torch.where(hidden, 0.0, scores)\nreturn scores.softmax(-1) @ V", 4, ["120 weights are not zero", "exp(0) is 1"]),
    "zero is assigned": ("hidden = torch.ones(5, 7).triu(1).bool()\nscores = Q @ K.mT / Q.size(-1) ** 0.5\nscores[hidden.expand_as(scores)] = 0\nreturn scores.softmax(-1) @ V", 4, ["120 weights are not zero", "exp(0) is 1"]),
    "multiplied by a mask": ("scores = Q @ K.mT / Q.size(-1) ** 0.5\nscores = scores * torch.ones(5, 7).tril()\nreturn scores.softmax(-1) @ V", 3, ["120 weights are not zero", "exp(0) is 1"]),
    "multiplied by a mask of keys": ("scores = Q @ K.mT / Q.size(-1) ** 0.5\nscores = scores * (torch.arange(K.size(-2)) < 4)\nreturn scores.softmax(-1).flatten(0, 1) @ V.flatten(0, 1)", 3, ["90 weights are not zero"]),
    "attention is clipped by a mask": ("attention = (Q @ K.mT / Q.size(-1) ** 0.5).softmax(-1)\nattention = attention * torch.ones(5, 7).tril()\nreturn attention @ V", 3, ["rows of attention do not sum to one"]),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with(found_in, name):
    body, line, words = FAULTS[name]
    ((where, message),) = found_in(function(body), QKV)
    assert line in (where, None)
    assert all(word in message for word in words), message


@pytest.mark.xfail(strict=True, reason="the alpha of baddbmm is not looked at")
def test_a_fault_is_found_with_a_scale_inside_of_the_product(found_in):
    body = "q, k, v = Q[0], K[0], V[0]\nzero = torch.zeros(1)\nscores = torch.baddbmm(zero, q, k.mT, alpha=k.size(1) ** -0.5)\nreturn scores.softmax(-1) @ v"
    assert found_in(function(body), QKV)


def test_heads_that_talk_to_each_other_are_no_fault(found_in):
    body = 'scores = Q @ K.mT / math.sqrt(Q.size(-1))\nscores = torch.einsum("bhqk,hg->bgqk", scores, mix)\nreturn scores.softmax(-1) @ V'
    assert found_in(function(body, "Q, K, V, mix"), [*QKV, "mix=n_head,n_head"]) == []


# Heads that share keys, whose queries one product takes together.

GROUPED = {
    "groups first": (
        ["q=2,3,4,5,8", "k=2,3,7,8", "v=2,3,7,6"], ("bgnqd,bgkd->bgnqk", "bgnqk,bgkd->bgnqd"), "scores.softmax(DIM)",
    ),
    "queries first": (
        ["q=2,5,3,4,8", "k=2,7,3,8", "v=2,7,3,6"], ("bqgnd,bkgd->bgnqk", "bgnqk,bkgd->bqgnd"), "scores.softmax(DIM)",
    ),
    "keys as the left factor": (
        ["q=2,3,4,5,8", "k=2,3,7,8", "v=2,3,7,6"], ("bgnqd,bgkd->bgknq", "bgnqk,bgkd->bgnqd"),
        "scores.permute(0, 1, 3, 4, 2).softmax(DIM)",
    ),
    "masked when all heads are one axis": (
        ["q=2,3,4,5,8", "k=2,3,7,8", "v=2,3,7,6"], ("bgnqd,bgkd->bgnqk", "bgnqk,bgkd->bgnqd"),
        "scores.flatten(1, 2).softmax(DIM).unflatten(1, (3, 4))",
    ),
}  # fmt: skip


def grouped(name, *, dim=-1, fill="-torch.inf", scale="8**-0.5"):
    """Grouped-query attention, with a causal mask if the scores have queries and keys last."""
    inputs, (before, after), softmax = GROUPED[name]
    hidden = (
        ""
        if "permute" in softmax or fill is None
        else f".masked_fill(torch.ones(5, 7).triu(1).bool(), {fill})"
    )
    softmax = softmax.replace("DIM", str(dim)).replace(".softmax", f"{hidden}.softmax")
    source = f"""\
    def f(q, k, v):
        scores = torch.einsum("{before}", q, k) * {scale}
        attention = {softmax}
        return torch.einsum("{after}", attention, v)
    """
    return source, inputs


@pytest.mark.parametrize("name", GROUPED)
def test_nothing_is_found_where_groups_of_heads_share_keys_until_there_is_a_mistake(found_in, name):
    """Of 5 queries over 7 keys, 20 pairs are later; there are 2·3·4 heads."""
    assert found_in(*grouped(name)) == []
    mistakes = [(grouped(name, dim=-2, fill=None), 3, "the softmax normalizes axis -2 (size 5)")]
    if name == "groups first":
        words = "scaled by 0.125, which is a number written in this line; but their product contracts over d_K = 8"
        mistakes.append((grouped(name, scale="8**-1"), 2, words))
    if name != "keys as the left factor":
        words = "480 weights are not zero although this line sets their scores to -1e-09"
        mistakes.append((grouped(name, fill="-1e-9"), 3, words))
    for code, line, words in mistakes:
        [(where, message)] = found_in(*code)
        assert where == line
        assert words in message


# Talking heads: a weight mixes scores or attention of several heads.

TALKING = """\
class f(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, Q, K, V):
        scores = self.before(Q @ K.mT / 4)
        attention = scores.softmax(DIM)
        return self.after(attention) @ V
"""


@pytest.mark.parametrize(("dim", "n_findings"), [(-1, 0), (-2, 1), (1, 1)])
def test_a_softmax_over_heads_or_queries_is_found_between_convolutions_over_heads(
    found_in, dim, n_findings
):
    findings = found_in(TALKING.replace("DIM", str(dim)), QKV)
    assert [(line, "the softmax normalizes" in text) for line, text in findings] == [
        (8, True)
    ] * n_findings


# Masks. Where no size has a name, nothing is run again with other sizes.

SHAPES = ["Q=2,3,5,16", "K=2,3,7,16", "V=2,3,7,6"]

HIDE = {
    "added": "scores = scores + torch.zeros(5, 7).masked_fill(hidden, {})",
    "filled in": "scores = scores.masked_fill(hidden, {})",
    "filled into its place": "scores.masked_fill_(hidden, {})",
    "where": "scores = torch.where(hidden, {}, scores)",
    "where, a tensor": "scores = torch.where(hidden, torch.tensor({}), scores)",
}
NUMBERS = {"-inf": 'float("-inf")', "-1e9": "-1e9", "the least": "torch.finfo(torch.float32).min"}


PAIRED = [(way, list(NUMBERS)[i % 3]) for i, way in enumerate(HIDE)]


@pytest.mark.few(2)
@pytest.mark.parametrize(("way", "number"), PAIRED)
def test_a_mask_that_hides_some_keys_is_fine_and_one_that_hides_all_is_not(found_in, way, number):
    for hidden, rows in {"torch.ones(5, 7).triu(1) > 0": 0, "torch.ones(5, 7).triu(-1) > 0": 2}.items():
        line = HIDE[way].format(NUMBERS[number])
        body = f"scores = Q @ K.mT / 4\nhidden = {hidden}\n{line}\nattention = scores.softmax(-1)\nreturn attention @ V"
        messages = [message for _, message in found_in(function(body), SHAPES)]
        told = [message for message in messages if "fully masked" in message]
        nan = [message for message in messages if "NaN" in message]
        assert told == ([f"{6 * rows} of 30 rows of the scores are fully masked: no key is visible to them, so their attention weights are meaningless"] if rows else [])  # fmt: skip
        assert bool(nan) == bool(rows and number == "-inf")


@pytest.mark.few(1)
@pytest.mark.parametrize("sides", ["(6, 9)", "(3, 18)", "[2, 27]"])
def test_a_length_that_numbers_of_another_input_decide_is_no_coincidence(found_in, sides):
    source = function(
        "(b, n, c), (h, w) = x.shape, size\nimage = x.view(b, h, w, c)\nreturn image", "x, size"
    )
    assert found_in(source, ["x=B:2,N:54,C:24", f"size={sides}"]) == []


HIDDEN_BY = {
    "a random mask of numbers": ("(scores - 1e9 * (1 - mask))", "mask=7", False),
    "a random mask and a causal one": ("scores.masked_fill(~mask | (torch.ones(5, 7) > 0).triu(1), -1e9)", "mask=7@bool", False),
    "a causal one without the diagonal": ("scores.masked_fill((torch.ones_like(mask) > 0).triu(), -1e9)", "mask=5,7@bool", True),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("how", HIDDEN_BY)
def test_what_a_random_mask_hides_is_no_mistake(found_in, how):
    value, mask, is_mistake = HIDDEN_BY[how]
    body = f"scores = Q @ K.mT / 4\nattention = {value}.softmax(-1)\nreturn attention @ V"
    found = found_in(function(body, "Q, K, V, mask"), [*SHAPES, mask])
    messages = [message for _, message in found]
    assert ["fully masked" in message for message in messages] == [True] * is_mistake


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_rows_that_see_no_key_are_told_at_the_softmax(found_in, dtype):
    body = "scores = Q @ K.mT / 4\nscores = scores.masked_fill(torch.ones(5, 7) > 0, torch.finfo(scores.dtype).min)\n\nattention = scores.softmax(-1)\nreturn attention @ V"
    assert [line for line, _ in found_in(function(body), SHAPES, "--dtype", dtype)] == [5]


# Queries that see no key, on purpose: the first one of a causal mask without its diagonal.

STRICTLY = (
    "scores = Q @ K.mT / 4\nhidden = torch.ones(5, 7).triu() > 0\nblind = hidden.all(-1)[:, None]\n"
)
FUSED = "seen = torch.ones(5, 7).tril(-1) > 0\nblind = ~seen.any(-1)[:, None]\noutput = F.scaled_dot_product_attention(Q, K, K, attn_mask=seen)\n"
HANDLED = {
    "NaN becomes 0": STRICTLY + "return scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(0.0) @ V",
    "NaN becomes 0 in its place": STRICTLY + "attention = scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num_()\nreturn attention @ V",
    "where attention is NaN, it is 0": STRICTLY + "attention = scores.masked_fill(hidden, -math.inf).softmax(-1)\nattention = torch.where(attention.isnan(), 0, attention)\nreturn attention @ V",
    "hidden after the softmax, too": STRICTLY + "attention = scores.masked_fill(hidden, -math.inf).softmax(-1).masked_fill(hidden, 0)\nreturn attention @ V",
    "hidden after the softmax, too, by a product": STRICTLY + "attention = scores.masked_fill(hidden, -1e9).softmax(-1) * ~hidden\nreturn attention @ V",
    "the output is multiplied by 0": STRICTLY + "output = scores.masked_fill(hidden, -1e9).softmax(-1) @ V\nreturn output * ~blind",
    "the output is multiplied by 0 after dropout": STRICTLY + "output = F.dropout(scores.masked_fill(hidden, -1e9).softmax(-1), 0.2) @ V\nreturn Q[..., :6] + F.dropout(output, 0.2) * ~blind",
    "the output of NaN is filled": STRICTLY + "output = scores.masked_fill(hidden, -math.inf).softmax(-1) @ V\nreturn output.masked_fill(blind, 0)",
    "the row is left out": STRICTLY + "return (scores.masked_fill(hidden, -1e9).softmax(-1) @ V)[:, :, 1:]",
    "written over": STRICTLY + "output = scores.masked_fill(hidden, -1e9).softmax(-1) @ V\noutput[:, :, 0] = 0\nreturn output",
    "what cannot be followed in float8": STRICTLY + "attention = scores.masked_fill(hidden, -1e9).softmax(-1).to(torch.float8_e4m3fn)\nreturn attention.float() @ V * ~blind",
    "fused, and filled": FUSED + "return output.masked_fill(blind, 0)",
    "fused, and left out after a projection": FUSED + "return F.linear(output, torch.ones(3, 16))[:, :, 1:]",
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", HANDLED)
def test_a_query_that_sees_no_key_is_no_mistake_where(found_in, name):
    assert found_in(function(HANDLED[name]), SHAPES) == []


SEEN = {
    "the output is multiplied by 1": (STRICTLY + "return scores.masked_fill(hidden, -1e9).softmax(-1) @ V * torch.ones(6)", "6 of 30 rows of the scores"),
    "other rows are filled": (STRICTLY + "return (scores.masked_fill(hidden, -1e9).softmax(-1) @ V).masked_fill(torch.arange(5)[:, None] == 1, 0)", "6 of 30 rows of the scores"),
    "the last row is left out": (STRICTLY + "return (scores.masked_fill(hidden, -1e9).softmax(-1) @ V)[:, :, :-1]", "6 of 30 rows of the scores"),
    "fused, and added": (FUSED + "return F.layer_norm(Q + output, (16,))", "1 of 5 rows of the mask are fully masked: no key is visible to them, so the kernel returns 0 for them"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SEEN)
def test_a_query_that_sees_no_key_is_told_where(found_in, name):
    body, words = SEEN[name]
    ((_, message),) = found_in(function(body), SHAPES)
    assert words in message


def test_rows_of_attention_that_are_divided_by_their_sums_after_the_product_are_no_fault(found_in):
    body = "attention = (Q @ K.mT / 4).softmax(-1).tril()\noutput = attention @ V\nreturn output / {}"
    assert found_in(function(body.format("attention.sum(-1, keepdim=True)")), SHAPES) == []
    ((_, message),) = found_in(function(body.format("V.sum(-2, keepdim=True)")), SHAPES)
    assert "do not sum to one" in message


# Values that are no numbers.


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Q * 2\nb = a.abs().neg().sqrt()\nc = b + 1\nreturn c @ K.mT", [(3, "b is the first tensor with 480 NaN among its 480 values")]),
        ("a = torch.zeros(5) + 1\na[2] = 0\nb = 1 / a\nreturn b", [(4, "b is the first tensor with 1 inf among its 5 values")]),
        ("mask = torch.full((5, 7), -math.inf).triu(1)\nreturn mask", []),
        ("a = torch.arange(4)\nreturn a", []),
    ],
)  # fmt: skip
def test_the_first_tensor_that_is_not_a_number_is_told_but_minus_infinity_hides(
    found_in, body, expected
):
    assert found_in(function(body), SHAPES) == expected


def test_an_input_that_is_not_a_number_is_told(found_in, tmp_path):
    import numpy as np

    values = np.ones((5, 16), dtype=np.float32)
    values[1, 2:5] = np.nan
    np.save(tmp_path / "q.npy", values)
    ((_, message),) = found_in("def f(Q):\n    return Q * 2\n", [f"Q=n_Q,d_K@{tmp_path / 'q.npy'}"])
    assert message == "the input Q has 3 NaN among its 80 values"


# Silent copies.

COPIES = {
    "contiguous": ("y = Q.transpose(1, 2).contiguous()", 2, "its input is not contiguous"),
    "a product with keys that were expanded": (
        "k = K[:, :1].expand(2, 3, 7, 16)\nscores = Q @ k.mT", 3, "its input is an expanded view",
    ),
    "a view of what was expanded": (
        "k = K[:, :, None].expand(2, 3, 4, 7, 16)\nk = k.reshape(2, 12, 7, 16)", 3, "its input is an expanded view",
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", COPIES)
def test_a_large_copy_is_told_and_a_small_one_is_not(found_in, monkeypatch, name):
    body, line, why = COPIES[name]
    assert found_in(function(body), SHAPES) == []  # it is small
    monkeypatch.setattr(rules, "LARGE", 1024)
    ((where, message),) = found_in(function(body), SHAPES)
    assert where == line
    n = 2 * 3 * 5 * 16 if name == "contiguous" else 2 * 3 * 7 * 16 * (4 if "view" in name else 1)
    assert message.startswith(f"this copies {n * 4 / 1024:.1f} KiB: {why}")


def test_what_copies_nothing_or_must_or_was_asked_for_is_not_told(found_in, monkeypatch):
    monkeypatch.setattr(rules, "LARGE", 1024)
    lines = ["Q.contiguous()", "Q.transpose(1, 2)", "Q.view(2, 3, -1)", "Q.half()", "torch.cat([Q, Q])", "Q @ K.mT", "Q.clone()"]  # fmt: skip
    assert found_in(function("\n".join(f"y = {line}" for line in lines)), SHAPES) == []


SKIPPED = """
class Skipped(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.w = nn.utils.skip_init(nn.Linear, d, d)
        self.v = nn.Parameter(torch.empty_like(self.w.weight))

    def forward(self, x):
        y = self.w(x) @ self.v
        return y
"""


def test_weights_that_a_checkpoint_would_fill_are_no_nan(found, tmp_path):
    path = written(tmp_path, SKIPPED)
    garbage = [torch.full((4096,), float("nan")) for _ in range(64)]
    garbage += [torch.full((16,), float("nan")) for _ in range(64)]
    del garbage
    assert found(f"{path}:Skipped", [], ["x=n:3,d"]) == []


# Softmaxes over groups, as over the edges of a graph.

GRAPH = """
class Attention(nn.Module):
    def __init__(self, d_in, d_out, n_head):
        super().__init__()
        self.n_head, self.w = n_head, nn.Linear(d_in, n_head * d_out)
        self.a = nn.Parameter(torch.randn(n_head, 2 * d_out))

    def forward(self, x, edges):
        src, dst = edges
        h = self.w(x).unflatten(-1, (self.n_head, -1))
        e = (torch.cat([h[src], h[dst]], -1) * self.a).sum(-1)
        alpha = softmax(e, {group}, x.shape[0])
        out = torch.zeros_like(h).index_add_(0, dst, alpha[..., None] * h[src])
        return out
"""
SOFTMAX_OF_GROUPS = {
    "index_add": """
def softmax(e, index, n):
    num = (e - e.max()).exp()
    den = torch.zeros(n, e.shape[1]).index_add_(0, index, num)
    return num / (den[index] + 1e-16)
""",
    "scatter": """
def softmax(e, index, n):
    index = index[:, None].expand_as(e)
    largest = torch.full((n, e.shape[1]), -torch.inf).scatter_reduce(0, index, e, "amax")
    num = (e - largest.gather(0, index)).exp()
    return num / torch.zeros(n, e.shape[1]).scatter_add(0, index, num).gather(0, index)
""",
    "repeated": """
def softmax(e, index, n):
    index = index[:, None].repeat(1, e.shape[1])
    num = e.exp()
    total = torch.zeros(n, e.shape[1]).scatter_reduce(0, index, num, "sum")
    return num / total.gather(0, index).clamp(min=1e-9)
""",
}


def trace_of_graph(attnscope, tmp_path, how, group):
    path = written(tmp_path, SOFTMAX_OF_GROUPS[how] + GRAPH.format(group=group))
    given = options("d_in=6 d_out=5 n_head=2", "x=N:7,d_in:6 edges=2,E:20<7")
    return attnscope("trace", f"{path}:Attention", *given, "--format", "json").json


@pytest.mark.few(2)
@pytest.mark.parametrize("how", SOFTMAX_OF_GROUPS)
def test_a_softmax_over_the_edges_that_reach_a_node_is_told(attnscope, tmp_path, how):
    trace = trace_of_graph(attnscope, tmp_path, how, "dst")
    assert trace["findings"] == []
    assert any("is a softmax over the groups of equal dst" in each for each in trace["notices"])


@pytest.mark.few(1)
@pytest.mark.parametrize("how", SOFTMAX_OF_GROUPS)
def test_a_softmax_over_the_edges_that_leave_a_node_is_a_fault(attnscope, tmp_path, how):
    (finding,) = trace_of_graph(attnscope, tmp_path, how, "src")["findings"]
    assert "normalizes over the groups of equal src, but line" in finding["message"]
    assert "sums over those of equal dst" in finding["message"]
