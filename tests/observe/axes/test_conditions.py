"""The conditions that code puts on sizes: those that it needs, and no others."""

import warnings
from pathlib import Path

import pytest

from tests.observe.sources import options, written

WITH_VOCABULARY = """\
class Model(nn.Module):
    def __init__(self, vocab_size=65, block_size=64, d_model=48, n_head=4, n_layer=3):
        super().__init__()
        assert d_model % n_head == 0
        self.n_head, self.block_size = n_head, block_size
        self.token, self.place = nn.Embedding(vocab_size, d_model), nn.Embedding(block_size, d_model)
        self.layers = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(n_layer))

    def forward(self, ids):
        b, t = ids.shape
        assert t <= self.block_size
        x = self.token(ids) + self.place(torch.arange(t))
        for layer in self.layers:
            x = layer(x).view(b, t, self.n_head, -1).flatten(2)
        return x
"""

NARROWED = """\
class Model(nn.Module):
    def __init__(self, width, n_head, narrower=1):
        super().__init__()
        self.inner, self.n_head = width // narrower, n_head
        assert self.inner % n_head == 0, "n_head must divide the inner width"
        self.q, self.k, self.v = (nn.Linear(width, self.inner) for _ in range(3))

    def heads(self, x):
        b, n, c = x.shape
        return x.reshape(b, n, self.n_head, c // self.n_head).transpose(1, 2)

    def forward(self, q, k, v):
        q, k, v = self.heads(self.q(q)), self.heads(self.k(k)), self.heads(self.v(v))
        attention = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1)
        return (attention @ v).transpose(1, 2).flatten(2)
"""

WINDOWS = """\
class Model(nn.Module):
    def __init__(self, width=96, window=4, n_head=3):
        super().__init__()
        self.n_head, self.qkv = n_head, nn.Linear(width, 3 * width)

    def forward(self, x, mask):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.n_head, c // self.n_head).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.size(-1) ** 0.5
        n_window = mask.shape[0]
        scores = scores.view(b // n_window, n_window, self.n_head, n, n) + mask.unsqueeze(1)
        attention = scores.view(-1, self.n_head, n, n).softmax(-1)
        return (attention @ v).transpose(1, 2).reshape(b, n, c)
"""

ROTATED = """\
class Model(nn.Module):
    def __init__(self, width=48, n_head=4, n_kv_head=2):
        super().__init__()
        self.n_head, self.n_kv_head, self.d_head = n_head, n_kv_head, width // n_head
        self.qkv = nn.Linear(width, (n_head + 2 * n_kv_head) * self.d_head)

    def forward(self, x, angles):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).split([h * self.d_head for h in (self.n_head, self.n_kv_head, self.n_kv_head)], -1)
        q = q.view(b, n, self.n_head, self.d_head) * angles.view(n, 1, self.d_head)
        k = k.view(b, n, self.n_kv_head, self.d_head) * angles.view(n, 1, self.d_head)
        v = v.view(b, n, self.n_kv_head, self.d_head)
        k, v = (each.repeat_interleave(self.n_head // self.n_kv_head, dim=2) for each in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / self.d_head**0.5
        return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
"""

CASES = {
    "a head as wide as a table": (
        ROTATED, [], ["x=b:2,n:7,width", "angles=n,12"], ["n_head is a multiple of n_kv_head", "width = 12·n_head"],
    ),
    "token ids below the vocabulary's size": (
        WITH_VOCABULARY, [], ["ids=b:2,t:16@int64<65"], ["d_model is a multiple of n_head"],
    ),
    "a width that is divided twice": (
        NARROWED, ["width=48", "n_head=4", "narrower=2"], ["q=b:2,n:5,width", "k=b,m:7,width", "v=b,m,width"],
        ["width is a multiple of n_head", "width is a multiple of narrower"],
    ),
    "a number of windows that another argument equals": (
        WINDOWS, [], ["x=b:8,n:16,width", "mask=n_window:4,n,n"],
        ["b is a multiple of n_window", "width is a multiple of n_head"],
    ),
    "a number of windows that is half of the batch": (
        WINDOWS, ["window=5"], ["x=b:8,n:16,width", "mask=n_window:4,n,n"],
        ["b is a multiple of n_window", "width is a multiple of n_head"],
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_conditions_are_those_that_the_code_needs(attnscope, tmp_path, name):
    source, init, inputs, expected = CASES[name]
    file = written(tmp_path, source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what code says of other sizes is of no use
        r = attnscope("trace", f"{file}:Model", *options(init, inputs), "--format", "json")
    assert sorted(r.json["options"]["where"]) == expected
    assert r.json["findings"] == []


CONDITIONAL = Path(__file__).parent / "conditional.py"

# The class, its sizes; what it requires, with the text where it rejects other sizes; what is assumed; axes.
MODULES = {
    "a number of groups that divides the channels": (
        "Spatial", "channels=32 n_head=4 d_head=8", "x=b:2,channels,H:5,W:7",
        {"channels is a multiple of 32": "GroupNorm"}, [], {"p": "b n_head H·W H·W"},
    ),
    "more channels": (
        "Spatial", "channels=96 n_head=4 d_head=24", "x=b:2,channels,H:5,W:7",
        {"channels is a multiple of 32": "GroupNorm"}, [], {"p": "b n_head H·W H·W"},
    ),
    "an even width, of even heads": (
        "Positions", "d_model=48 n_head=4", "x=b:2,n:7,d_model",
        {"d_model is a multiple of n_head": "view", "d_model is a multiple of 2": "1::2"}, [],
        {"q": "b n_head n d_model/n_head"},
    ),
    "a square that the heads' square equals": (
        "Squares", "dim=24 n_head=3", "x=b:2,n:9,dim",
        {"dim is a multiple of n_head": "view", "n is a square": "side"}, [], {"p": "b n_head n n"},
    ),
    "a square": (
        "Squares", "dim=24 n_head=3", "x=b:2,n:36,dim",
        {"dim is a multiple of n_head": "view", "n is a square": "side"}, [], {"p": "b n_head n n"},
    ),
    "the width of a head, which is not the width over the heads": (
        "Explicit", "dim=48 heads=4 dim_head=12", "x=b:2,n:7,dim",
        {"dim is a multiple of heads": "dim % heads"}, [], {"q": "b heads n dim_head"},
    ),
    "a class token": (
        "Class", "dim_in=20 dim_out=24 n_head=4", "x=b:2,n:25,dim_in h=4 w=6",
        {"dim_out is a multiple of n_head": "unflatten", "n = h·w+1": "split"}, [],
        {"q": "b n_head n dim_out/n_head"},
    ),
    "windows": (
        "Windows", "window=4", "q=b:2,n:16,d:6 k=b,n,d",
        {"n is a multiple of window": "multiple of the window"}, [], {"padded": "b n/window+1 window d"},
    ),
    "values that are wider than keys": (
        "Unequal", "dim=30 d_key=6 n_head=4 ratio=2", "x=b:2,n:9,dim",
        {}, [], {"q": "b n n_head d_key", "v": "b n n_head ratio·d_key"},
    ),
    "a spectrum": (
        "Spectrum", "", "q=b:2,h:3,n:24 k=b,h,n", {}, ["n is a multiple of 2"], {"q_f": "b h n/2+1"},
    ),
    "a width that a literal fixes": (
        "Latent", "dim=48 d_latent=20 d_rot=8", "x=b:2,n:7,dim table=n,4",
        {"d_rot = 8": "unflatten"}, [], {"kv": "b n d_latent+d_rot", "rot": "b n d_rot/2 2"},
    ),
    "heads that one view splits off and folds into the batch": (
        "Merge", "width=48 n_head=4", "v=n:7,b:2,width",
        {"width is a multiple of n_head": "view"}, [], {"return": "b·n_head n width/n_head"},
    ),
    "groups that are rounded down": (
        "Grouped", "width=21 n_head=6 n_kv_head=2 d_head=3", "x=b:2,n:7,width",
        {}, ["n_head is a multiple of n_kv_head"], {"q": "b n_kv_head n_head/n_kv_head n d_head"},
    ),
    "a power of two": (
        "Slopes", "n_head=8", "scores=b:2,n_head,n:5,n", {"n_head is a power of two": "power of two"}, [],
        {"return": "b n_head n n"},
    ),
    "an even number of buckets": (
        "Buckets", "n_head=4 bucket=4", "x=b:2,t:16,d:24",
        {"d is a multiple of n_head": "view", "t is a multiple of 2·bucket": "assert"},
        [], {"half": "b n_head t t/bucket/2", "q": "b n_head t/bucket bucket d/n_head"},
    ),
    "three parts of each head": (
        "Interleaved", "n_head=4", "qkv=b:2,width:72,t:5",
        {"width is a multiple of n_head": "assert", "width is a multiple of 3": "assert"}, [],
        {"q": "b·n_head width/n_head/3 t"},
    ),
    "groups of heads with a bias for each": (
        "Biased", "width=24 n_head=6 n_kv_head=3", "x=b:3,t:5,width bias=n_head,t,t",
        {"width is a multiple of n_head": "assert", "n_head is a multiple of n_kv_head": "assert"}, [],
        {"q": "b n_head t width/n_head"},
    ),
    "a row for each distance": (
        "Distances", "", "q=b:2,n:7,d:5 table=n_row:13,d", {"n_row = 2·n-1": "raise"}, [], {"return": "b n n"},
    ),
    "a table that is large enough": ("Doubled", "", "x=b:2,n:8,d:5 table=n_row:16,d", {}, None, {"return": "b n d"}),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("case", MODULES)
def test_a_condition_is_required_only_if_the_code_rejects_all_other_sizes(attnscope, case):
    name, init, inputs, required, assumed, dims = MODULES[case]
    r = attnscope("trace", f"{CONDITIONAL}:{name}", *options(init, inputs), "--format", "json").json
    lines = CONDITIONAL.read_text(encoding="utf-8").splitlines()
    found = {each["text"]: each for each in r["conditions"] if each["required"]}
    assert found.keys() == required.keys()
    for condition, words in required.items():
        assert words in found[condition]["expression"]
        assert found[condition]["file"] is None
        assert words in "".join(lines[found[condition]["line"] - 1 :][:2])
    if assumed is not None:
        assert [each["text"] for each in r["conditions"] if not each["required"]] == assumed
    last = {step["name"]: " ".join(step["dims"]) for step in r["steps"]}
    assert {name: last[name] for name in dims} == dims
    assert r["findings"] == []


@pytest.mark.sweep
def test_assumed_conditions_are_shown_only_if_all_columns_are(attnscope):
    line = [
        "trace",
        f"{CONDITIONAL}:Grouped",
        *options("width=21 n_head=6 n_kv_head=2 d_head=3", "x=b:2,n:7,width"),
    ]
    assert "n_head is a multiple" not in attnscope(*line).out
    assert "assumed: n_head is a multiple of n_kv_head" in attnscope(*line, "--wide").out


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("table", "where"),
    [("P,d", ["P=2*n-1"]), ("P:13,d", ["P=2*n-1"]), ("2*n-1,d", []), ("n+n-1,d", [])],
)
def test_sums_are_sizes_of_inputs(attnscope, table, where):
    n = "n" if ":" in table else "n:7"
    given = options(inputs=[f"q=b:2,{n},d:5", f"table={table}"]) + [f"--where={text}" for text in where]
    r = attnscope("trace", f"{CONDITIONAL}:Distances", *given, "--format", "json").json
    name = "P" if where else "2·n-1"
    last = {step["name"]: " ".join(step["dims"]) for step in r["steps"]}
    assert last == {"q": "b n d", "table": f"{name} d", "index": "n n", "return": "b n n"}
    assert r["sizes"] == {"b": 2, "n": 7, "d": 5, name: 13}
    assert r["options"].get("where", []) == where
    assert r["findings"] == []
