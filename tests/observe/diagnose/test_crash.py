"""Where code fails: the line, the expression, what went into it, and which axes do not fit together."""

import pytest
import torch

from attnscope import inspect
from tests.observe.sources import HEAD, options, written


@pytest.fixture
def crash_of(attnscope, tmp_path):
    """How code fails: `crash_of("def f(Q): …", "Q=n:5")`, as JSON; lines are counted from the code's first."""

    def run(source, inputs, init="", *more):
        path = written(tmp_path, source)
        ran = attnscope("trace", f"{path}:f", *options(init, inputs), *more, "-f", "json")
        assert ran.exit_status == 1
        assert "Traceback" not in ran.err
        crash = ran.json["crash"]
        assert crash["file"] == str(path)
        return {**crash, "line": crash["line"] - HEAD.count("\n"), "steps": ran.json["steps"]}

    return run


QK = "Q=b:2,n_Q:3,d:4 K=b,n_K:5,e:6"
QKV = "Q=b:2,n_Q:3,d:4 K=b,n_K:5,e:6 V=b,n_K,f:7"
MASK = "Q=b:2,n_Q:3,d:4 mask=b,n_K:5@bool"

OVER, BESIDE, JOINED = (
    "the product contracts over them",
    "to broadcast, they must be equal, or one of them must be 1",
    "only the concatenated axis may differ",
)
D_N = f"axis 2 of Q (d 4) and axis 1 of K (n_K 5) disagree: {OVER}"
D_E = f"axis 2 of Q (d 4) and axis 2 of K (e 6) disagree: {OVER}"
Q, K = ("Q", "b n_Q d", "2 3 4"), ("K", "b n_K e", "2 5 6")

# The line that fails, the expression that does, its operands, and what disagrees.
CASES = {
    "matmul": ("scores = Q @ K", QK, "Q @ K", [Q, K], D_N),
    "torch.matmul": ("scores = torch.matmul(Q, K) / 2", QK, "torch.matmul(Q, K)", [Q, K], D_N),
    "bmm": ("scores = 2 * torch.bmm(Q, K)", QK, "torch.bmm(Q, K)", [Q, K], D_N),
    "baddbmm": (
        "scores = torch.baddbmm(torch.zeros(1, 1, 1), Q, K)", QK, "torch.baddbmm(torch.zeros(1, 1, 1), Q, K)",
        [("torch.zeros(1, 1, 1)", "1 1 1", "1 1 1"), Q, K], D_N,
    ),
    "other batches": (
        "scores = Q @ K.mT", "Q=b:2,n_Q:3,d:4 K=c:7,n_K:5,d", "Q @ K.mT",
        [Q, ("K.mT", "c d n_K", "7 4 5")], f"axis 0 of Q (b 2) and axis 0 of K.mT (c 7) disagree: {BESIDE}",
    ),
    "outside of another": (
        "x = F.softmax(Q @ K.mT, -1) @ Q.mT", "Q=b:2,n_Q:3,d:4 K=b,n_K:5,d", "F.softmax(Q @ K.mT, -1) @ Q.mT",
        [("F.softmax(Q @ K.mT, -1)", "b n_Q n_K", "2 3 5"), ("Q.mT", "b d n_Q", "2 4 3")],
        f"axis 2 of F.softmax(Q @ K.mT, -1) (n_K 5) and axis 1 of Q.mT (d 4) disagree: {OVER}",
    ),
    "einsum": (
        'scores = torch.einsum("bqd,bkd->bqk", Q, K)', QK, 'torch.einsum("bqd,bkd->bqk", Q, K)', [Q, K], D_E,
    ),
    "einsum with blanks": (
        'scores = einsum("b q d, b k d -> b q k", Q, K)', QK, 'einsum("b q d, b k d -> b q k", Q, K)', [Q, K], D_E,
    ),
    "einsum with dots": (
        'scores = einsum("...qd,...kd->...qk", Q, K)', QK, 'einsum("...qd,...kd->...qk", Q, K)', [Q, K], D_E,
    ),
    "einsum of a list": (
        'scores = einsum("bqd,bkd->bqk", [Q, K])', QK, 'einsum("bqd,bkd->bqk", [Q, K])', [Q, K], D_E,
    ),
    "view": (
        "y = Q.view(Q.size(0), -1, 7) * 2", "Q=b:2,n_Q:3,d:4", "Q.view(Q.size(0), -1, 7)", [Q],
        "Q has 2 · 3 · 4 = 24 elements, which is not a multiple of 14, as 2×?×7 requires",
    ),
    "view of another size": (
        "y = Q.view(2, 5)", "Q=b:2,n_Q:3,d:4", "Q.view(2, 5)", [Q],
        "Q has 2 · 3 · 4 = 24 elements, but 2×5 has 10",
    ),
    "view of what was transposed": (
        "y = Q.transpose(0, 1).view(-1)", "Q=b:2,n_Q:3,d:4", "Q.transpose(0, 1).view(-1)",
        [("Q.transpose(0, 1)", "n_Q b d", "3 2 4")],
        "Q.transpose(0, 1) is not contiguous, so it cannot be viewed this way: reshape copies it",
    ),
    "unflatten": (
        "y = Q.unflatten(-1, (3, 5))", "Q=b:2,n_Q:3,d:4", "Q.unflatten(-1, (3, 5))", [Q],
        "axis 2 of Q (d 4) cannot be split into 3 · 5 = 15",
    ),
    "cat": (
        "y = torch.cat([Q, K], dim=1)", QK, "torch.cat([Q, K], dim=1)", [Q, K],
        f"axis 2 of Q (d 4) and axis 2 of K (e 6) disagree: {JOINED}",
    ),
    "cat along the last axis": (
        "y = torch.cat((Q, K), -1)", QK, "torch.cat((Q, K), -1)", [Q, K],
        f"axis 1 of Q (n_Q 3) and axis 1 of K (n_K 5) disagree: {JOINED}",
    ),
    "stack": (
        "y = torch.stack([Q, K])", QK, "torch.stack([Q, K])", [Q, K],
        f"axis 1 of Q (n_Q 3) and axis 1 of K (n_K 5) disagree: {JOINED}",
    ),
    "an addition": (
        "y = Q + K", QK, "Q + K", [Q, K], f"axis 2 of Q (d 4) and axis 2 of K (e 6) disagree: {BESIDE}",
    ),
    "an addition of a mask without an axis": (
        "y = Q @ Q.mT + mask", "Q=b:2,n_Q:3,d:4 mask=n_K:5,n_Q", "Q @ Q.mT + mask",
        [("Q @ Q.mT", "b n_Q n_Q", "2 3 3"), ("mask", "n_K n_Q", "5 3")],
        f"axis 1 of Q @ Q.mT (n_Q 3) and axis 0 of mask (n_K 5) disagree: {BESIDE}",
    ),
    "an addition in its place": (
        "Q += K", QK, "Q += K", [Q, K], f"axis 2 of Q (d 4) and axis 2 of K (e 6) disagree: {BESIDE}",
    ),
    "torch.add": (
        "y = torch.add(Q, K)", QK, "torch.add(Q, K)", [Q, K], f"axis 2 of Q (d 4) and axis 2 of K (e 6) disagree: {BESIDE}",
    ),
    "a comparison": (
        "y = Q > K", QK, "Q > K", [Q, K], f"axis 2 of Q (d 4) and axis 2 of K (e 6) disagree: {BESIDE}",
    ),
    "masked_fill": (
        "y = Q.masked_fill(mask, -1e9)", MASK, "Q.masked_fill(mask, -1e9)", [Q, ("mask", "b n_K", "2 5")],
        f"axis 2 of Q (d 4) and axis 1 of mask (n_K 5) disagree: {BESIDE}",
    ),
    "masked_fill_": (
        "Q.masked_fill_(mask, -1e9)", MASK, "Q.masked_fill_(mask, -1e9)", [Q, ("mask", "b n_K", "2 5")],
        f"axis 2 of Q (d 4) and axis 1 of mask (n_K 5) disagree: {BESIDE}",
    ),
    "where": (
        "y = torch.where(mask, Q, -1e9)", MASK, "torch.where(mask, Q, -1e9)", [("mask", "b n_K", "2 5"), Q],
        f"axis 1 of mask (n_K 5) and axis 2 of Q (d 4) disagree: {BESIDE}",
    ),
    "F.linear": (
        "y = F.linear(Q, w)", "Q=b:2,n_Q:3,d:4 w=out:5,e:6", "F.linear(Q, w)", [Q, ("w", "out e", "5 6")],
        f"axis 2 of Q (d 4) and axis 1 of w (e 6) disagree: {OVER}",
    ),
    "F.scaled_dot_product_attention": (
        "y = F.scaled_dot_product_attention(Q, K, V)", QKV, "F.scaled_dot_product_attention(Q, K, V)",
        [Q, K, ("V", "b n_K f", "2 5 7")], D_E,
    ),
    "as many values as keys": (
        "y = F.scaled_dot_product_attention(Q, K, V)", "Q=b:2,n_Q:3,d:4 K=b,n_K:5,d V=b,n_V:6,f:7",
        "F.scaled_dot_product_attention(Q, K, V)", [Q, ("K", "b n_K d", "2 5 4"), ("V", "b n_V f", "2 6 7")],
        f"axis 1 of K (n_K 5) and axis 1 of V (n_V 6) disagree: {OVER}",
    ),
    "a mask of queries for keys": (
        "y = F.scaled_dot_product_attention(Q, K, V, mask)", "Q=b:2,n_Q:3,d:4 K=b,n_K:5,d V=b,n_K,f:7 mask=n_K,n_Q",
        "F.scaled_dot_product_attention(Q, K, V, mask)",
        [Q, ("K", "b n_K d", "2 5 4"), ("V", "b n_K f", "2 5 7"), ("mask", "n_K n_Q", "5 3")],
        f"axis 1 of Q (n_Q 3) and axis 0 of mask (n_K 5) disagree: {BESIDE}",
    ),
    "the return value": ("return Q @ K", QK, "Q @ K", [Q, K], D_N),
    "a condition": ("if (Q @ K).sum() > 0:\n        pass", QK, "Q @ K", [Q, K], D_N),
    "an index": ("y = Q[:, :, :, 3]", "Q=b:2,n_Q:3,d:4", "Q[:, :, :, 3]", [Q], None),
    "no tensor": ("y = Q + None", "Q=b:2,n_Q:3,d:4", "Q + None", [Q], None),
    "no such key": ('y = {"a": Q}["b"]', "Q=b:2,n_Q:3,d:4", '{"a": Q}["b"]', [], None),
    "no such attribute": ("y = Q.shappe", "Q=b:2,n_Q:3,d:4", "Q.shappe", [Q], None),
    "too many to unpack": ("a, c = Q.shape", "Q=b:2,n_Q:3,d:4", "a, c = Q.shape", [], None),
}  # fmt: skip


@pytest.mark.few(7)
@pytest.mark.parametrize("name", CASES)
def test_what_fails_is_told_with_its_operands_and_the_axes_that_disagree(crash_of, name):
    line, inputs, expression, operands, disagreement = CASES[name]
    arguments = ", ".join(each.partition("=")[0] for each in inputs.split())
    source = f"def f({arguments}):\n    made = 2 * Q\n    {line}\n"
    crash = crash_of(source, inputs)
    assert crash["error"] == error_of(source, inputs)
    assert crash["line"] == 3
    assert crash["expression"] == expression
    told = [(o["text"], " ".join(o["dims"]), " ".join(map(str, o["shape"]))) for o in crash["operands"]]
    assert told == operands
    assert crash["disagreement"] == disagreement
    assert [step["name"] for step in crash["steps"]][-1] == "made"


def error_of(source, inputs):
    """What Python says when the function `f` of a source gets ones for its inputs."""
    arguments, sizes = {}, {}
    for each in inputs.split():
        key, _, axes = each.partition("=")
        shape = []
        for axis in axes.removesuffix("@bool").split(","):
            axis_name, _, size = axis.partition(":")
            sizes[axis_name] = int(size or sizes[axis_name])
            shape.append(sizes[axis_name])
        arguments[key] = torch.ones(shape, dtype=torch.bool if "@bool" in each else torch.float32)
    space = {"torch": torch, "F": torch.nn.functional, "einsum": torch.einsum}
    exec(source, space)
    with pytest.raises(Exception) as raised:  # noqa: PT011
        space["f"](**arguments)
    said = str(raised.value).split("\n")[0]
    return f"{type(raised.value).__name__}: {said}"


# Modules.

LINEAR = """
class f(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, 10)
        self.net = nn.Sequential(nn.Linear(13, 11), nn.Linear(d, 9))

    def forward(self, x):
        made = x * 2
        {}
"""


@pytest.mark.parametrize(
    ("line", "expression", "text"),
    [("y = self.lin(x)", "self.lin(x)", "x"), ("y = F.relu(self.lin(made + 1)) * 2", "self.lin(made + 1)", "made + 1")],
)  # fmt: skip
def test_a_linear_of_another_width(crash_of, line, expression, text):
    crash = crash_of(LINEAR.format(line), "x=b:2,n:3,e:13", "d=12")
    assert (crash["line"], crash["expression"]) == (9, expression)
    assert crash["operands"] == [
        {"text": text, "dims": ["b", "n", "e"], "shape": [2, 3, 13]},
        {"text": "self.lin.weight", "dims": ["10", "12"], "shape": [10, 12]},
    ]
    assert crash["disagreement"] == (
        f"axis 2 of {text} (e 13) and axis 1 of self.lin.weight (12) disagree: {OVER}"
    )


def test_a_module_that_fails_inside_is_told_where_it_is_called(crash_of):
    crash = crash_of(LINEAR.format("y = self.net(made)"), "x=b:2,n:3,e:13", "d=12")
    assert (crash["line"], crash["expression"]) == (9, "self.net(made)")
    assert [operand["text"] for operand in crash["operands"]] == ["made"]


def test_a_weight_that_is_looked_up_in_is_not_multiplied(crash_of):
    source = """
    class f(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(5, 24)

        def forward(self, ids):
            y = self.emb(ids + 7)
    """
    crash = crash_of(source, "ids=n:9@int64<3")
    assert crash["expression"] == "self.emb(ids + 7)"
    assert crash["disagreement"] is None
    assert crash["error"].startswith("IndexError: ")


# Places.


def test_a_chain_on_several_lines(crash_of):
    source = """
    def f(Q):
        y = (
            Q.transpose(0, 1)
            .contiguous()
            .view(3, -1, 7)
            .softmax(-1)
        )
    """
    crash = crash_of(source, "Q=b:2,n_Q:3,d:4")
    assert crash["line"] == 5
    assert crash["expression"].replace(" .", ".") == "Q.transpose(0, 1).contiguous().view(3, -1, 7)"
    (operand,) = crash["operands"]
    assert operand["text"].replace(" .", ".") == "Q.transpose(0, 1).contiguous()"
    assert (operand["dims"], operand["shape"]) == (["n_Q", "b", "d"], [3, 2, 4])


def test_a_call_with_its_arguments_on_lines_of_their_own(crash_of):
    source = """
    def f(Q, K):
        scores = torch.matmul(
            Q,
            K,
        )
    """
    crash = crash_of(source, QK)
    assert crash["line"] == 2
    assert [operand["text"] for operand in crash["operands"]] == ["Q", "K"]
    assert crash["disagreement"] == D_N


HELPER = """
def helper(a, b):
    c = a.mT
    return c @ b


def f(Q, K):
    x = Q * 2
    y = helper(x, K)
"""


def test_a_function_of_the_same_file_fails_at_its_own_line(crash_of):
    crash = crash_of(HELPER, QK)
    assert (crash["line"], crash["expression"]) == (3, "c @ b")
    assert crash["disagreement"] == f"axis 2 of c (n_Q 3) and axis 1 of b (n_K 5) disagree: {OVER}"
    assert [step["name"] for step in crash["steps"]] == ["Q", "K", "x", "a", "b", "c"]


def test_a_function_of_another_file_fails_where_it_is_called(crash_of, tmp_path):
    (tmp_path / "elsewhere_of_crash.py").write_text(
        "def helper(a, b):\n    return a.mT @ b\n", encoding="utf-8"
    )
    source = """
    from elsewhere_of_crash import helper

    def f(Q, K):
        x = Q * 2
        y = helper(x, K) + 1
    """
    crash = crash_of(source, QK)
    assert (crash["line"], crash["expression"]) == (5, "helper(x, K)")
    assert [operand["text"] for operand in crash["operands"]] == ["x", "K"]
    assert crash["error"].startswith("RuntimeError: ")


def test_a_file_that_is_followed_is_told_of(attnscope, tmp_path):
    followed = tmp_path / "followed_of_crash.py"
    followed.write_text("def helper(a, b):\n    return a.mT @ b\n", encoding="utf-8")
    path = written(
        tmp_path, "from followed_of_crash import helper\n\ndef f(Q, K):\n    y = helper(Q, K)\n"
    )
    given = [*options(inputs=QK), "--follow", "followed_of_crash"]
    crash = attnscope("trace", f"{path}:f", *given, "-f", "json").json["crash"]
    assert (crash["file"], crash["line"], crash["expression"]) == (str(followed), 2, "a.mT @ b")


def test_a_loop_fails_with_the_shapes_of_that_turn(crash_of):
    source = """
    def f(Q, K):
        for i in range(3):
            y = (Q[:, i:] * 2) @ K[:, : 4 + (i == 2)]
    """
    crash = crash_of(source, "Q=b:2,n_Q:3,d:4 K=b,n_K:5,e:6")
    assert [operand["shape"] for operand in crash["operands"]] == [[2, 1, 4], [2, 5, 6]]
    assert crash["disagreement"].startswith("axis 2 of Q[:, i:] * 2 (d 4) and axis 1 of K[")
    assert [step["shape"] for step in crash["steps"] if step["name"] == "y"] == [[2, 3, 6], [2, 2, 6]]


def test_what_was_caught_is_not_told(attnscope, tmp_path):
    source = "def f(Q, K):\n    try:\n        y = Q @ K\n    except RuntimeError:\n        y = Q\n    z = y * 2\n"
    ran = attnscope("trace", f"{written(tmp_path, source)}:f", *options(inputs=QK), "-f", "json")
    assert (ran.exit_status, ran.json["crash"]) == (0, None)
    assert ran.json["steps"][-1]["name"] == "z"


# What the code raises itself.

RAISED = {
    "an exception": (
        'raise ValueError(f"too many: {y.size(0)}")', 'raise ValueError(f"too many: {y.size(0)}")', "ValueError: too many: 2",
    ),
    "an exception on several lines": (
        'raise ValueError(\n        "too "\n        "many"\n    )', 'raise ValueError( "too " "many" )', "ValueError: too many",
    ),
    "a message of several lines": (
        'raise ValueError("too many\\nof them")', 'raise ValueError("too many\\nof them")', "ValueError: too many",
    ),
    "a note": (
        'error = ValueError("too many")\n    error.add_note("a note")\n    raise error', "raise error", "ValueError: too many",
    ),
    "an assertion": ('assert y.size(0) == 1, "one"', 'assert y.size(0) == 1, "one"', "AssertionError: one"),
    "an assertion without words": ("assert y.size(0) == 1", "assert y.size(0) == 1", "AssertionError"),
    "another instead": (
        'try:\n        Q @ Q\n    except RuntimeError as e:\n        raise ValueError("bad") from e',
        'raise ValueError("bad") from e', "ValueError: bad",
    ),
}  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("name", RAISED)
def test_what_the_code_raises_itself_is_told_as_it_stands(crash_of, name):
    line, expression, error = RAISED[name]
    crash = crash_of(f"def f(Q):\n    y = Q * 2\n    {line}\n", "Q=b:2,n_Q:3,d:4")
    assert crash["expression"] == expression
    assert (crash["error"], crash["operands"], crash["disagreement"]) == (error, [], None)
    assert [step["name"] for step in crash["steps"]] == ["Q", "y"]


def test_a_constructor_that_fails_is_told_in_a_line(attnscope, tmp_path):
    path = written(
        tmp_path,
        """
    class f(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.w = torch.ones(d, 3) @ torch.ones(d, 3)

        def forward(self, x):
            return x
    """,
    )
    ran = attnscope("trace", f"{path}:f", "--init", "d=12", "--input", "x=n:5")
    assert (ran.exit_status, ran.out) == (2, "")
    assert ran.err.startswith("attnscope: error: f(d=12) raises RuntimeError: ")
    assert "line 8" in ran.err
    assert "self.w = torch.ones(d, 3) @ torch.ones(d, 3)" in ran.err
    assert "Traceback" not in ran.err


# What a reader sees.


def test_the_rows_up_to_there_are_shown_and_no_wall_of_text(attnscope, tmp_path):
    ran = attnscope("trace", f"{written(tmp_path, HELPER)}:f", *options(inputs=QK))
    assert ran.exit_status == 1
    assert ran.err == ""
    assert "Traceback" not in ran.out
    assert "File " not in ran.out
    lines = ran.out.splitlines()
    names = [line.split()[1] for line in lines if line[:4].strip().isdigit()]
    assert names == ["Q", "K", "x", "a", "b", "c"]
    start = next(i for i, line in enumerate(lines) if line.startswith("✗"))
    assert lines[start] == f"✗ line {3 + HEAD.count(chr(10))}: c @ b"
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["c", "2×4×3", "b", "d", "n_Q"],
        ["b", "2×5×6", "b", "n_K", "e"],
    ]
    assert lines[start + 3].strip() == f"axis 2 of c (n_Q 3) and axis 1 of b (n_K 5) disagree: {OVER}"
    assert lines[start + 4].strip().startswith("RuntimeError: ")
    assert len(lines) == start + 5


def test_a_failure_on_meta_is_that_of_the_cpu(crash_of):
    on_meta = crash_of(HELPER, QK, "", "--device", "meta")
    assert on_meta["disagreement"] == crash_of(HELPER, QK)["disagreement"]


# Looking at what failed runs nothing again.


@pytest.mark.parametrize("attribute", ["mT", "mH", "H"])
def test_an_attribute_of_a_tensor_that_cannot_be_computed_is_told(crash_of, attribute):
    shape = "n:5" if attribute != "H" else "a:2,b:3,n:5"
    crash = crash_of(f"def f(x):\n    y = x @ x.{attribute}\n    return y\n", f"x={shape}")
    assert crash["expression"] == f"x.{attribute}"
    assert [operand["text"] for operand in crash["operands"]] == ["x"]
    assert crash["error"].startswith("RuntimeError: ")


FRAGILE = """
class Fragile:
    def __init__(self):
        self.asked = 0
        self.weight = torch.ones(3)

    @property
    def value(self):
        self.asked += 1
        if self.asked > 1:
            raise RuntimeError("asked twice")
        return torch.ones(2)

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")

"""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("x + box.value", ["x"]),
        ("x + box.weight", ["x", "box.weight"]),
        ("x + box.nothing", []),
        ("box.weight.mT + x", ["box.weight", "x"]),
    ],
)
def test_properties_are_not_asked_again(crash_of, expression, texts):
    crash = crash_of(
        f"{FRAGILE}def f(x):\n    box = Fragile()\n    y = {expression}\n    return y\n", "x=n:5"
    )
    assert {operand["text"] for operand in crash["operands"]} <= {*texts, "x", "box.weight"}
    assert "twice" not in crash["error"]


WORDLESS = {
    "raises": "raise ValueError('no words')",
    "is no text": "return 3",
    "is interrupted": "raise KeyboardInterrupt",
    "exits": "raise SystemExit(9)",
}


@pytest.mark.few(3)
@pytest.mark.parametrize("what", WORDLESS)
@pytest.mark.parametrize("where", ["f", "A"])
def test_an_exception_whose_own_text_fails_is_told_by_its_kind(attnscope, tmp_path, what, where):
    path = written(
        tmp_path,
        f"""
        class Wordless(Exception):
            def __str__(self):
                {WORDLESS[what]}
            __repr__ = __str__

        def f(x):
            y = x + 1
            raise Wordless

        class A(nn.Module):
            def __init__(self):
                raise Wordless
            def forward(self, x):
                return x
        """,
    )
    r = attnscope("trace", f"{path}:{where}", "--input", "x=n:5")
    assert "Wordless" in r.out + r.err
    assert r.exit_status == (1 if where == "f" else 2)


def test_notes_of_an_exception_that_fail_are_left_out(crash_of):
    crash = crash_of(
        """
        class Noted(Exception):
            @property
            def __notes__(self):
                raise ValueError("no notes")

        def f(x):
            raise Noted("words")
        """,
        "x=n:5",
    )
    assert crash["error"].endswith("Noted: words")


@pytest.mark.few(3)
@pytest.mark.parametrize("subexpressions", [False, True])
@pytest.mark.parametrize(
    "line",
    ["[q @ K for q in Q]", "{q @ K for q in Q}", "{0: q @ K for q in Q}", "list(q @ K for q in Q)"],
)
def test_names_of_comprehensions_are_operands(module_of, line, subexpressions):
    """They are variables of the function itself since Python 3.12, and gone when it has failed."""
    module = module_of(f"def f(Q, K):\n    return {line}\n")
    inputs = {"Q": "b:2,n_Q:3,d:4", "K": "b,n_K:5,e:6"}
    crash = inspect(f"{module.__file__}:f", inputs=inputs, subexpressions=subexpressions).crash
    assert [(each.text, " ".join(each.dims)) for each in crash.operands] == [
        ("q", "n_Q d"),
        ("K", "b n_K e"),
    ]
    assert crash.disagreement == f"axis 1 of q (d 4) and axis 1 of K (n_K 5) disagree: {OVER}"
