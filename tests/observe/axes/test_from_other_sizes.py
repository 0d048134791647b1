"""Axes get their names from runs with other sizes, and with the names what the code asks of sizes is found out."""

import pytest

from attnscope.observe.axes.from_other_sizes import regroupings
from tests.observe.sources import CODE, options, written


@pytest.fixture
def traced(attnscope, tmp_path):
    """Traces source text: `traced("f", "def f(x): …", "", "x=n:5")`, as JSON."""

    def trace(name, source, init, inputs, *more):
        path = written(tmp_path, source)
        ran = attnscope("trace", f"{path}:{name}", *options(init, inputs), *more, "--format", "json")
        assert ran.exit_status == 0, ran.err
        return ran.json

    return trace


def dims(trace):
    """The axes of each name; of a name that is bound again, the last."""
    return {step["name"]: " ".join(step["dims"]) for step in trace["steps"]}


def where(trace):
    return trace["options"].get("where", [])


def assumed(trace):
    return [each["text"] for each in trace["conditions"] if not each["required"]]


HEADS = """
class Heads(nn.Module):
    def __init__(self, d_feat, n_head):
        super().__init__()
        self.n_head, self.d_head = n_head, d_feat // n_head
        self.lin_Q, self.lin_K, self.lin_V = (nn.Linear(d_feat, d_feat) for _ in range(3))

    def forward(self, Q, K, V):
        q = self.lin_Q(Q).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        k = self.lin_K(K).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        v = self.lin_V(V).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        scores = q @ k.mT / math.sqrt(self.d_head)
        attention = scores.softmax(-1)
        x = (attention @ v).transpose(1, 2).flatten(2)
        return x
"""

HEADS_DIMS = {
    "Q": "n_batch n_Q d_feat",
    "K": "n_batch n_K d_feat",
    "V": "n_batch n_K d_feat",
    "q": "n_batch n_head n_Q d_feat/n_head",
    "k": "n_batch n_head n_K d_feat/n_head",
    "v": "n_batch n_head n_K d_feat/n_head",
    "scores": "n_batch n_head n_Q n_K",
    "attention": "n_batch n_head n_Q n_K",
    "x": "n_batch n_Q d_feat",
}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "sizes",
    [
        (2, 7, 11, 60, 5),  # all different
        (2, 32, 32, 60, 5),  # as many queries as keys
        (4, 4, 4, 16, 4),  # all alike
        (5, 5, 5, 25, 5),
        (1, 1, 1, 6, 3),
        (1, 1, 9, 2, 1),
    ],
)
def test_axes_are_told_apart_however_alike_they_are(traced, sizes):
    device = "meta" if sizes[1] == sizes[2] == 32 else "cpu"
    n_batch, n_Q, n_K, d_feat, n_head = sizes
    inputs = f"Q=n_batch:{n_batch},n_Q:{n_Q},d_feat K=n_batch,n_K:{n_K},d_feat V=n_batch,n_K,d_feat"
    trace = traced("Heads", HEADS, f"d_feat={d_feat} n_head={n_head}", inputs, "--device", device)
    if n_head == 1:  # nothing is asked
        assert dims(trace)["scores"] == "n_batch 1 n_Q n_K" or dims(trace) == HEADS_DIMS
    else:
        assert dims(trace) == HEADS_DIMS
        assert where(trace) == ["d_feat is a multiple of n_head"]
    assert trace["findings"] == []
    assert trace["sizes"] == dict(zip("n_batch n_Q n_K d_feat n_head".split(), sizes, strict=True))


def test_a_name_for_the_width_of_a_head_is_used(traced):
    inputs = "Q=n_batch:2,n_Q:7,d_feat K=n_batch,n_K:11,d_feat V=n_batch,n_K,d_feat"
    trace = traced("Heads", HEADS, "d_feat=60 n_head=5", inputs, "--where", "d_head=d_feat/n_head")
    assert dims(trace) == {n: axes.replace("d_feat/n_head", "d_head") for n, axes in HEADS_DIMS.items()}
    assert where(trace) == ["d_head=d_feat/n_head"]
    assert trace["sizes"]["d_head"] == 12


# Each: the source of `f`, or of a class `f`; its options; what is asked of sizes; some dims.
CASES = {
    "three sizes, one the product of two": (
        """
        class f(nn.Module):
            def __init__(self, d_feat, n_head, d_head):
                super().__init__()
                assert d_feat == n_head * d_head
                self.n_head, self.d_head, self.lin = n_head, d_head, nn.Linear(d_feat, 3 * d_feat)

            def forward(self, x):
                y = self.lin(x)
                z = y.view(*x.shape[:2], 3, self.n_head, self.d_head)
        """,
        ["d_feat=60 n_head=5 d_head=12", "x=n_batch:2,n:7,d_feat"],
        ["d_feat = n_head·d_head"],
        {"y": "n_batch n 3·d_feat", "z": "n_batch n 3 n_head d_head"},
    ),
    "heads that share keys": (
        """
        class f(nn.Module):
            def __init__(self, d, n_head, n_kv_head):
                super().__init__()
                self.n_head, self.n_kv_head, self.d_head = n_head, n_kv_head, d // n_head
                self.q, self.k = nn.Linear(d, d), nn.Linear(d, n_kv_head * self.d_head)

            def forward(self, x):
                b, n, _ = x.shape
                q = self.q(x).view(b, n, self.n_head, self.d_head).transpose(1, 2)
                k = self.k(x).view(b, n, self.n_kv_head, self.d_head).transpose(1, 2)
                shared = k.repeat_interleave(self.n_head // self.n_kv_head, dim=1)
                scores = q @ shared.mT
        """,
        ["d=96 n_head=6 n_kv_head=2", "x=n_batch:4,n:5,d"],
        ["d is a multiple of n_head", "n_head is a multiple of n_kv_head"],
        {"k": "n_batch n_kv_head n d/n_head", "shared": "n_batch n_head n d/n_head", "scores": "n_batch n_head n n"},
    ),
    "a past of keys, and a mask as wide as both": (
        """
        def f(Q, K, K_past, mask):
            K_all = torch.cat([K_past, K], dim=-2)
            scores = Q @ K_all.mT + mask
        """,
        ["", "Q=n_new:3,d:6 K=n_new,d K_past=n_past:20,d mask=n_new,n_K:23"],
        ["n_K = n_new+n_past"],
        {"K_all": "n_K d", "scores": "n_new n_K"},
    ),
    "a past of keys, and no name for both": (
        """
        def f(Q, K, K_past):
            K_all = torch.cat([K_past, K], dim=-2)
            scores = Q @ K_all.mT
        """,
        ["", "Q=n_new:3,d:6 K=n_new,d K_past=n_past:20,d"],
        [],
        {"K_all": "n_new+n_past d", "scores": "n_new n_new+n_past"},
    ),
    "a fixed size": (
        """
        def f(x):
            y = x @ torch.ones(24, 10)
        """,
        ["", "x=n:7,d:24"],
        ["d = 24"],
        {"x": "n d", "y": "n 10"},
    ),
    "halves": (
        """
        def f(x):
            a, b = x[:, : x.size(1) // 2], x[:, x.size(1) // 2 :]
            turned = a * b
        """,
        ["", "x=n:7,d:26"],
        ["d is a multiple of 2"],
        {"a": "n d/2", "b": "n d/2", "turned": "n d/2"},
    ),
    "equal lengths": (
        """
        def f(x, y):
            z = x + y
        """,
        ["", "x=n:9,d:4 y=m:9,d"],
        ["n = m"],
        {"x": "n d", "y": "m d", "z": "n d"},
    ),
    "a length that may not exceed another": (
        """
        class f(nn.Module):
            def __init__(self, d, max_len):
                super().__init__()
                self.places = nn.Embedding(max_len, d)

            def forward(self, x):
                assert x.size(0) <= self.places.num_embeddings
                y = x + self.places.weight[: x.size(0)]
                mask = torch.ones(self.places.num_embeddings, x.size(0))
        """,
        ["d=6 max_len=40", "x=n:7,d"],
        [],
        {"y": "n d", "mask": "max_len n"},
    ),
    "a length that is as long as it may be": (
        """
        def f(x, max_len):
            assert x.size(0) <= max_len
            mask = torch.ones(max_len, x.size(0))
        """,
        ["", "x=n:12,d:5 max_len=12"],
        None,
        {"mask": "max_len n"},
    ),
    "distances": (
        """
        def f(Q, K):
            n_Q, n_K = Q.size(0), K.size(0)
            table = torch.zeros(n_Q + n_K - 1, 2 * n_Q - 1)
            padded = F.pad(Q @ K.mT, (1, 0))
        """,
        ["", "Q=n_Q:5,d:6 K=n_K:9,d"],
        [],
        {"table": "n_Q+n_K-1 2·n_Q-1", "padded": "n_Q n_K+1"},
    ),
    "products and numbers": (
        """
        def f(x):
            flat = x.flatten(0, 1)
            outer = flat[:, None] * torch.ones(3, 1)
            tokens = x.new_zeros(x.size(0) * 4, 640)
            last = x[:, -1:]
        """,
        ["", "x=n_batch:2,n:7,d:5"],
        [],
        {"flat": "n_batch·n d", "outer": "n_batch·n 3 d", "tokens": "4·n_batch 640", "last": "n_batch 1 d"},
    ),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_what_code_asks_of_sizes_is_found_out_and_axes_get_their_names(traced, case):
    source, (init, inputs), asked, expected = CASES[case]
    trace = traced("f", source, init, inputs)
    if asked is not None:
        assert sorted(where(trace)) == sorted(asked)
    assert {name: dims(trace)[name] for name in expected} == expected
    for step in trace[
        "steps"
    ]:  # a shape is what its axes say: Python computes them from the sizes alone
        sizes = [eval(axis.replace("·", "*"), {}, trace["sizes"]) for axis in step["dims"]]
        assert sizes == step["shape"], step["name"]


def test_halves_of_what_may_be_odd_have_names(traced):
    source = """
        def f(x):
            a, b = x.chunk(2, -1)
            turned = torch.cat([-b, a], -1) * x
        """
    assert dims(traced("f", source, "", "x=n:7,d:26"))["a"] == "n d/2"


def test_what_the_user_says_is_asked_is_not_found_out_again(traced):
    source, (init, inputs), _, expected = CASES["three sizes, one the product of two"]
    trace = traced("f", source, init, inputs, "--where", "d_feat=n_head*d_head")
    assert where(trace) == ["d_feat=n_head*d_head"]
    assert {name: dims(trace)[name] for name in expected} == expected


# Loops and branches.

LAYERS = """
class Layers(nn.Module):
    def __init__(self, n_layer, d):
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(d, d) for _ in range(n_layer))

    def forward(self, x):
        for lin in self.lins:
            y = lin(x)
            scores = y @ x.mT
            x = scores.softmax(-1) @ x
        return x
"""


def test_a_loop_that_runs_as_often_as_a_size_says(traced):
    trace = traced("Layers", LAYERS, "n_layer=4 d=6", "x=n_batch:2,n:5,d")
    rows = [(step["name"], " ".join(step["dims"]), step["times"]) for step in trace["steps"]]
    x, *loop = [
        ("x", "n_batch n d"),
        ("y", "n_batch n d"),
        ("scores", "n_batch n n"),
        ("x", "n_batch n d"),
    ]
    assert rows == [(*x, 1), *((*each, 4) for each in loop)]


BLOCKS = """
def blocks(x, block):
    outs = []
    for start in range(0, x.size(0), block):
        part = x[start : start + block]
        scores = part @ x.mT
        outs.append(scores.softmax(-1) @ x)
    whole = torch.cat(outs)
"""


@pytest.mark.parametrize("n", [12, 13])
def test_a_loop_over_blocks_of_which_the_last_may_be_smaller(traced, n):
    trace = traced("blocks", BLOCKS, "", f"x=n:{n},d:10 block=4")
    rows = [(step["name"], " ".join(step["dims"]), step["times"]) for step in trace["steps"]]
    assert rows[:3] == [("x", "n d", 1), ("part", "block d", 3), ("scores", "block n", 3)]
    if n == 12:
        assert rows[3:] == [("whole", "n d", 1)]
        assert where(trace) == []
        assert assumed(trace) == ["n is a multiple of block"]


GROWING = """
def growing(x):
    cache = x[:0]
    for i in range(x.size(0)):
        cache = torch.cat([cache, x[i : i + 1]])
        scores = x[i : i + 1] @ cache.mT
"""


def test_a_loop_that_grows_is_not_folded(traced):
    trace = traced("growing", GROWING, "", "x=n:5,d:3")
    caches = [step["shape"] for step in trace["steps"] if step["name"] == "cache"]
    assert caches == [[i, 3] for i in range(6)]
    assert all(step["times"] == 1 for step in trace["steps"])


BRANCHES = """
def branches(x):
    if x.size(0) > 16:
        long = x * 2
        return long @ long.mT
    else:
        short = x * 3
        return short @ short.mT
"""


@pytest.mark.parametrize(("n", "name"), [(5, "short"), (20, "long")])
def test_only_runs_that_took_the_same_branch_are_compared(traced, n, name):
    trace = traced("branches", BRANCHES, "", f"x=n:{n},d:10")
    assert dims(trace) == {"x": "n d", name: "n d", "return": "n n"}


def test_a_branch_asks_nothing_of_sizes_that_it_does_not_ask(traced):
    trace = traced("branches", BRANCHES, "", "x=n_batch:20,n:2,d:10")
    assert where(trace) == []


# Modules whose sizes nobody says.

DEFAULTS = """
class Defaults(nn.Module):
    def __init__(self, d_feat=48, n_head=4, max_len=100):
        super().__init__()
        self.n_head = n_head
        self.lin = nn.Linear(d_feat, 2 * d_feat)

    def forward(self, x):
        y = self.lin(x)
        z = y.unflatten(-1, (self.n_head, -1))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("width", "expected"),
    [
        ("d_feat:48", {"x": "n d_feat", "y": "n 2·d_feat", "z": "n n_head 2·d_feat/n_head"}),
        ("d:48", None),
        ("48", {"x": "n d_feat", "z": "n n_head 2·d_feat/n_head"}),
    ],
)
def test_defaults_have_names_too(traced, width, expected):
    trace = traced("Defaults", DEFAULTS, "", f"x=n:7,{width}")
    assert trace["findings"] == []
    assert "max_len" not in trace["sizes"]
    if expected is not None:
        assert {name: dims(trace)[name] for name in expected} == expected
        assert trace["sizes"] == {"n": 7, "d_feat": 48, "n_head": 4}
    else:
        assert dims(trace)["z"].startswith("n n_head ")


def test_code_that_runs_with_no_other_size_says_so(attnscope, tmp_path):
    path = written(tmp_path, "def rigid(x):\n    assert tuple(x.shape) == (5, 6)\n    y = x * 2\n")
    ran = attnscope("trace", f"{path}:rigid", "--input", "x=n:5,d:6", "--format", "json")
    assert ran.exit_status == 0
    assert dims(ran.json) == {"x": "n d", "y": "n d"} or "no other sizes were found" in ran.err


# Views that regroup several axes.


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((2, 12), (2, 3, 4), [([0], [0]), ([1], [1, 2])]),
        ((2, 3, 4), (6, 4), [([0, 1], [0]), ([2], [1])]),
        ((2, 3, 4), (3, 2, 4), [([0, 1], [0, 1]), ([2], [2])]),
        ((2, 5, 7, 12), (2, 7, 60), [([0], [0]), ([1, 2, 3], [1, 2])]),
        ((1, 6, 1), (6,), [([1], [0])]),
        ((6,), (1, 2, 3), [([0], [1, 2])]),
        ((1,), (), []),
        ((4, 6), (3, 8), [([0, 1], [0, 1])]),
    ],
)
def test_axes_that_become_others_are_grouped(before, after, groups):
    assert regroupings(before, after) == groups


# The corpus.

CORPUS = [
    (
        "nanogpt.py:CausalSelfAttention",
        ["config=nanogpt.py:GPTConfig(block_size=20,n_head=3,n_embd=24)"],
        "x=n:2,T:13,n_embd",
        {"k": "n n_head T n_embd/n_head", "att": "n n_head T T", "y": "n T n_embd"},
    ),
    (
        "grouped.py:MultiQueryAttention",
        ["dim=96", "n_heads=6", "n_kv_heads=2"],
        "x=n_batch:4,n:5,dim mask=n,n",
        {"xk": "n_batch n_kv_heads n dim/n_heads", "keys": "n_batch n_heads n dim/n_heads", "probs": "n_batch n_heads n n"},
    ),
    (
        "cross.py:CrossAttention",
        ["query_dim=24", "context_dim=35", "heads=3", "dim_head=10"],
        "x=n_batch:2,n_Q:32,query_dim context=n_batch,n_K:48,context_dim mask=n_batch,n_K@bool",
        {"sim": "n_batch heads n_Q n_K", "out": "n_batch n_Q heads·dim_head", "mask": "n_batch 1 1 n_K"},
    ),
    (
        "relative.py:ShiftedRelativeAttention",
        ["n_head=3", "d_model=24", "d_head=10"],
        "w=n_Q:5,n_batch:2,d_model r=n_K:7,d_model mems=n_mem:2,n_batch,d_model",
        {"cat": "n_K n_batch d_model", "w_heads": "n_K n_batch 3·n_head·d_head", "attn_vec": "n_Q n_batch n_head·d_head"},
    ),
    (
        "windowed.py:WindowedSelfAttention",
        ["dim=24", "num_heads=3", "window_size=2"],
        "x=n_batch:5,H:4,W:6,dim",
        {
            "q": "n_batch·H·W/window_size/window_size num_heads window_size·window_size dim/num_heads",
            "relative_position_bias": "num_heads window_size·window_size window_size·window_size",
            "attn_windows": "n_batch·H·W/window_size/window_size window_size window_size dim",
        },
    ),
]  # fmt: skip


EQUAL_SIZES = [
    (  # sizes that are equal, or divide each other
        "expanded_groups.py:GroupedAttention",
        ["embed_dim=48", "num_heads=6", "num_kv_heads=2", "head_dim=8"],
        "x=b:2,s:8,embed_dim",
        {
            "pairs": "b s num_kv_heads head_dim/2 2", "mixed": "b s num_heads·head_dim",
            **dict.fromkeys("qkv", "b num_heads s head_dim"),
        },
    ),
    (  # every width of a head is that of the others, and twice the batch
        "low_rank.py:LatentAttention",
        ["dim=32", "n_heads=2", "q_rank=16", "kv_rank=8", "nope_dim=8", "rope_dim=8", "v_dim=8"],
        "x=b:4,n:16,dim",
        {
            "q_nope": "b n n_heads nope_dim", "q_rope": "b n n_heads rope_dim", "rate": "rope_dim/2",
            **dict.fromkeys("qk", "b n n_heads nope_dim+rope_dim"), "k_rope": "b n 1 rope_dim",
            "kv": "b n n_heads nope_dim+v_dim", "v": "b n n_heads v_dim", "scores": "b n n_heads n",
            "mixed": "b n n_heads v_dim",
        },
    ),
]  # fmt: skip
EVERY = [*CORPUS, *(pytest.param(*case, marks=pytest.mark.sweep) for case in EQUAL_SIZES)]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("target", "init", "inputs", "expected"), EVERY, ids=[c[0] for c in [*CORPUS, *EQUAL_SIZES]]
)
def test_the_corpus_has_the_axes_that_it_says(attnscope, monkeypatch, target, init, inputs, expected):
    monkeypatch.chdir(CODE)
    ran = attnscope("trace", target, *options(init, inputs), "--format", "json")
    assert ran.exit_status == 0, ran.err
    assert {name: dims(ran.json)[name] for name in expected} == expected


THIRDS = """
class Thirds(nn.Module):
    def __init__(self, d_model=288, n_head=4):
        super().__init__()
        self.n_head, self.d_head = n_head, d_model // n_head
        self.q = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q = self.q(x).view(b, n, self.n_head, self.d_head).transpose(1, 2)
        part = 2 * (self.d_head // 6)
        angle = torch.arange(n)[:, None] * 100.0 ** -torch.linspace(0, 1, part // 2)
        parts = [torch.view_as_complex(each.unflatten(-1, (-1, 2)).contiguous()) for each in q.split(part, -1)]
        turned = torch.cat([torch.view_as_real(each * torch.polar(torch.ones_like(angle), angle)) for each in parts], -1)
        return turned
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [10, 24])
def test_an_axis_is_not_named_by_chance_where_a_failed_run_says_otherwise(traced, n):
    found = dims(traced("Thirds", THIRDS, "d_model=288 n_head=4", f"x=n_batch:2,n:{n},d_model"))
    assert (found["q"], found["angle"]) == ("n_batch n_head n d_model/n_head", "n 12")
