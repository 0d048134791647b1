"""Axes of calls that cannot be repeated get the names that the code has for them, and no others."""

from textwrap import dedent

import pytest
import torch

import attnscope
from tests.observe.sources import CODE, HEAD


@pytest.fixture
def dims(module_of, monkeypatch):
    """Traces a call: `dims(source, "make()", inputs)`, as the dims of each name; of several, the last."""

    def fails(self, event, *details):
        if self.axes is not None:
            getattr(self.axes, event)(*details)

    monkeypatch.setattr("attnscope.observe.instrument.recorder.Recorder._learn", fails)

    def trace(source, target, *inputs, **options):
        module = module_of(HEAD + dedent(source))
        torch.manual_seed(0)
        result = attnscope.trace_call(eval(target, vars(module)), *inputs, **options)
        return {step.name: " ".join(step.dims or ()) for step in result.steps}

    return trace


CAUSAL = """
class Causal(nn.Module):
    def __init__(self, width, n_head, longest=64):
        super().__init__()
        self.n_head = n_head
        self.to_qkv, self.to_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("below", torch.ones(longest, longest).tril().bool())

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.to_qkv(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        below = self.below[:T, :T]
        attention = scores.masked_fill(~below, -torch.inf).softmax(-1)
        mixed = attention @ v
        merged = mixed.transpose(1, 2).contiguous().view(B, T, C)
        return self.to_out(merged)
"""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "shape", [(2, 5, 48), (4, 4, 48), (2, 12, 48), (1, 7, 48), (3, 1, 48), (48, 48, 48)]
)
def test_equal_sizes_keep_the_names_of_their_axes(dims, shape):
    found = dims(CAUSAL, "Causal(48, 4)", torch.randn(shape))
    assert found["x"] == found["merged"] == "B T C"
    assert found["q"] == found["k"] == found["v"] == found["mixed"] == "B n_head T C/n_head"
    assert found["scores"] == found["attention"] == "B n_head T T"
    assert found["below"] == "T T"


GROUPED = """
def repeated(x, times):
    batch, heads, length, width = x.shape
    x = x[:, :, None].expand(batch, heads, times, length, width)
    return x.reshape(batch, heads * times, length, width)


class Grouped(nn.Module):
    def __init__(self, width, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, width // n_heads
        self.to_q = nn.Linear(width, width)
        self.to_kv = nn.Linear(width, 2 * n_kv_heads * self.head_dim)

    def forward(self, x, memory):
        b, n, _ = x.shape
        m = memory.shape[1]
        q = self.to_q(x).unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)
        kv = self.to_kv(memory).reshape(b, m, 2, self.n_kv_heads, self.head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        keys = repeated(k, self.n_heads // self.n_kv_heads)
        values = v.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)
        out = F.scaled_dot_product_attention(q, keys, values)
        together = torch.cat([x, memory], dim=1)
        return out
"""


@pytest.mark.few(2)
@pytest.mark.parametrize(("n", "m"), [(5, 7), (5, 5), (8, 4), (4, 8)])
def test_groups_of_heads_and_two_lengths_are_told_apart(dims, n, m):
    found = dims(GROUPED, "Grouped(32, 4, 2)", torch.randn(2, n, 32), torch.randn(2, m, 32))
    assert found["q"] == "b n_heads n head_dim"
    assert (found["kv"], found["k"]) == ("b m 2 n_kv_heads head_dim", "b n_kv_heads m head_dim")
    assert found["keys"] == "b n_heads m head_dim"
    assert found["out"] == "b n_heads n head_dim"
    assert found["together"].startswith("b n+m ")


FOLDED = """
class Folded(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.d = heads, width // heads
        self.to_q, self.to_k = nn.Linear(width, width), nn.Linear(width, width)

    def fold(self, x, n_batch):
        x = x.view(n_batch, -1, self.heads, self.d).transpose(1, 2)
        return x.reshape(n_batch * self.heads, -1, self.d)

    def forward(self, x, y):
        n_batch, n = x.size(0), x.size(1)
        queries, keys = self.fold(self.to_q(x), n_batch), self.fold(self.to_k(y), n_batch)
        scores = torch.bmm(queries, keys.mT)
        apart = scores.view(n_batch, self.heads, n, -1)
        return apart
"""


@pytest.mark.parametrize("m", [6, 7])
def test_heads_folded_into_the_batch_and_a_length_without_a_name(dims, m):
    found = dims(FOLDED, "Folded(24, 3)", torch.randn(2, 6, 24), torch.randn(2, m, 24))
    assert found["queries"] == "n_batch·heads n d"
    assert found["keys"] == f"n_batch·heads {m} d"
    assert found["scores"] == f"n_batch·heads n {m}"
    assert found["apart"] == f"n_batch heads n {m}"


HELPER = """
class Split(nn.Module):
    def split(self, x):
        b, n, d = x.shape
        return x.reshape(b, n, 4, d // 4).transpose(1, 2)

    def forward(self, x, y, z):
        q, k, v = self.split(x), self.split(y), self.split(z)
        scores = q @ k.mT
        mixed = scores.softmax(-1) @ v
        return mixed
"""


def test_a_name_that_a_function_has_for_queries_and_for_keys_is_none(dims):
    x, y = torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    assert dims(HELPER, "Split()", x, y, y)["scores"] == "b 4 5 5"
    assert dims(HELPER, "Split()", x, x, x)["scores"] == "b 4 n n"


@pytest.mark.sweep
def test_what_the_user_names_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "split_module.py").write_text(HEAD + dedent(HELPER))
    program = "import torch, split_module\nx, y = torch.ones(2, 5, 12), torch.ones(2, 5, 12)\nsplit_module.Split()(x, y, y)\n"
    (tmp_path / "program.py").write_text(program)
    named = {"x": "B Q D", "y": "B K D"}
    [trace] = attnscope.trace_script("program.py", watch="split_module.py:Split", dims=named).traces
    assert {step.name: " ".join(step.dims) for step in trace.steps if step.depth == 0} == {
        "x": "B Q D", "y": "B K D", "z": "B K D", "q": "B 4 Q D/4", "k": "B 4 K D/4", "v": "B 4 K D/4",
        "scores": "B 4 Q K", "mixed": "B 4 Q D/4",
    }  # fmt: skip
    assert trace.sizes == {"B": 2, "Q": 5, "D": 12, "K": 5}


NO_TRANSPOSE = """
class Mixed(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        B, T, C = x.size()
        q = self.to_q(x).view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = self.to_k(x).view(B, T, self.heads, C // self.heads).transpose(1, 2)
        scores = q @ k
        return scores
"""


def test_a_product_that_fits_by_chance_merges_no_names(dims):
    found = dims(NO_TRANSPOSE, "Mixed(24, 4)", torch.randn(2, 6, 24))
    assert found["q"] == "B heads T C/heads"
    assert found["scores"] == "B heads T C/heads"  # and not T T


def test_equal_sizes_that_nothing_ties_are_numbers(dims):
    source = """
    class Plain(nn.Module):
        def __init__(self, n_head, dropout_rows):
            super().__init__()
            self.n_head, self.dropout_rows = n_head, dropout_rows

        def forward(self, x):
            y = x * 2
            z = torch.linalg.pinv(y)
            return z
    """
    assert set(dims(source, "Plain(8, 6)", torch.randn(8, 6)).values()) == {""}


def test_a_cache_grows(dims):
    source = """
    def step(x, past):
        B, T, C = x.shape
        keys = torch.cat([past, x], dim=1)
        S = keys.size(1)
        scores = x @ keys.mT
        mask = torch.ones(T, S).tril(S - T)
        return scores * mask
    """
    x, past = torch.randn(2, 1, 8), torch.randn(2, 5, 8)
    found = dims(source, "step", x, past)
    assert (found["keys"], found["scores"], found["mask"]) == ("B S C", "B T S", "T S")


def test_code_that_is_no_size_is_left_alone(dims):
    source = """
    class Odd:
        @property
        def n_head(self):
            raise AssertionError("user code ran")

        def __call__(self, x, *rest, **more):
            shape = list(x.shape)
            first, *others = x.shape
            T = shape[1] if shape else 0
            y = x.view(-1).view(*shape)
            y = y.reshape(tuple(shape))[..., None][0]
            z = [y.split([2, T - 2]), y.chunk(2)]
            return y
    """
    found = dims(source, "Odd()", torch.randn(3, 5, 2))
    assert found["y"] == "5 2 1" or not found["y"].startswith("3")


def test_weights_have_the_sizes_that_the_constructor_says(dims):
    source = """
    class Base(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.to_q = nn.Linear(config.width, config.n_head * config.d_head, bias=False)


    class Block(Base):
        def __init__(self, config, inner, d_memory, times=4):
            super().__init__(config)
            self.times = times
            twice = 2 * inner
            self.to_k = nn.Linear(d_memory, config.n_head * config.d_head)
            self.mlp = nn.Sequential(nn.Linear(config.width, twice), nn.GELU(), nn.Linear(twice, inner))
            self.many = nn.ModuleList([nn.Linear(inner, inner * times) for _ in range(3)])
            self.norm = nn.LayerNorm(config.width)
            if times > 9:
                inner = 3
            self.back = nn.Linear(inner * times, config.width)

        def forward(self, x, y):
            q, k = self.to_q(x), self.to_k(y)
            h = self.mlp(self.norm(x))
            wide = self.many[2](h)
            back = self.back(wide)
            return q


    class Config:
        width, n_head, d_head = 24, 3, 8

        def __init__(self):
            self.width, self.n_head, self.d_head = 24, 3, 8
    """
    found = dims(source, "Block(Config(), 24, 24)", torch.randn(5, 24), torch.randn(5, 24))
    assert (found["x"], found["y"]) == ("5 width", "5 d_memory")
    assert (found["q"], found["k"]) == ("5 n_head·d_head", "5 24")  # two unknown sizes
    assert found["h"] == "5 24"  # the constructor changes `inner`
    assert found["back"] == "5 width"


def test_what_the_constructor_keeps_nowhere_follows_from_a_weight(dims):
    source = """
    class Inner(nn.Module):
        def __init__(self, dim, heads=4, dim_head=16):
            super().__init__()
            inner = heads * dim_head
            self.heads = heads
            self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
            self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(0.0))

        def forward(self, x):
            b, n, _, h = *x.shape, self.heads
            q, k, v = map(lambda t: t.reshape(b, n, h, -1).transpose(1, 2), self.to_qkv(x).chunk(3, dim=-1))
            scores = q @ k.transpose(-1, -2)
            out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1)
            return self.to_out(out)
    """
    found = dims(source, "Inner(64)", torch.randn(2, 16, 64))
    assert (found["x"], found["return"]) == ("b n dim", "b n dim")
    assert (found["q"], found["scores"]) == ("b heads n dim_head", "b heads n n")
    assert found["out"] == "b n heads·dim_head"


def test_letters_name_what_has_no_other_name(dims):
    source = """
    def attend(q, k, v):
        length = q.shape[2]
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        mixed = torch.einsum("b h i j, b h j e -> b h i e", scores.softmax(-1), v)
        folded = torch.einsum("hid,hjd->hij", mixed.flatten(0, 1), v.flatten(0, 1))  # h for b·h
        return mixed
    """
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 3)
    found = dims(source, "attend", q, k, v)
    assert found["scores"] == "b h length j"
    assert found["mixed"] == "b h length e"


HEADS_OF_ONE = """
class Heads(nn.Module):
    def __init__(self, width, n_head):
        super().__init__()
        self.n_head = n_head
        self.to_q, self.to_out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        q = self.to_q(x).view(*x.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        scores = q @ q.mT
        out = (scores @ q).transpose(1, 2).reshape(x.size(0), x.size(1), x.size(2))
        return out
"""


@pytest.mark.parametrize(
    ("n_head", "q"), [(1, "2 n_head 5 4"), (2, "2 n_head 5 width/n_head"), (4, "2 n_head 5 1")]
)
def test_one_head_or_heads_of_width_one_give_no_axis_a_wrong_name(dims, n_head, q):
    found = dims(HEADS_OF_ONE, f"Heads(4, {n_head})", torch.randn(2, 5, 4))
    assert (found["x"], found["out"]) == ("2 5 width", "2 5 width")
    assert (found["q"], found["scores"]) == (q, "2 n_head 5 5")


def test_tensors_without_elements_have_axes_too(dims):
    source = """
    def f(x):
        B, T, C = x.shape
        y = x.view(B, T, 2, C // 2).transpose(1, 2)
        z = y.reshape(B, T, C)
        return y
    """
    found = dims(source, "f", torch.randn(2, 0, 6))
    assert (found["y"], found["z"]) == ("B 2 T C/2", "B T C")


def test_slices_are_as_long_as_their_ends_say(dims):
    source = """
    def f(x, start):
        B, T, C = x.shape
        one, other = x[..., : C // 2], x[..., C // 2 :]
        turned = torch.cat((-other, one), dim=-1)
        first, rest = x[0, :2], x[:, 1:]
        picked = x[:, start : start + 2, None]
        back = x[:, ::2]
        by_tensor = x[torch.tensor([0, 1, 1]), : T - 1]
        return turned
    """
    found = dims(source, "f", torch.randn(2, 5, 8), 3)
    assert (found["one"], found["other"], found["turned"]) == ("B T C/2", "B T C/2", "B T C")
    assert (found["first"], found["rest"], found["picked"]) == ("2 C", "B T-1 C", "B 2 1 C")
    assert (found["back"], found["by_tensor"]) == ("B 3 C", "3 4 C")


MODULES = {
    "nanogpt.py": "CausalSelfAttention(GPTConfig(block_size=16, n_head={heads}, n_embd={width}))",
    "grouped.py": "GroupedQueryAttention({width}, {heads}, 2)",
    "windowed.py": "WindowAttention({width}, (2, 4), {heads})",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("file", MODULES)
def test_names_do_not_depend_on_sizes(dims, file):
    """Whatever sizes are equal by chance, an axis has the name that it has when none are."""
    source = (CODE / file).read_text(encoding="utf-8")
    target = MODULES[file]
    apart = dims(source, target.format(heads=6, width=84), torch.randn(5, 8, 84))
    assert sum(name.isdigit() for each in apart.values() for name in each.split()) <= 3
    for batch, width, heads in ((8, 64, 8), (4, 16, 4), (2, 16, 8), (1, 32, 4), (64, 64, 8)):
        equal = dims(source, target.format(heads=heads, width=width), torch.randn(batch, 8, width))
        for name, each in equal.items():
            for one, other in zip(each.split(), apart[name].split(), strict=True):
                assert one == other or one.isdigit(), (name, each, apart[name])
