"""An axis has the name of a size that no run changes only if the code says that it is this axis."""

import pytest

import attnscope
from tests.observe.sources import written

THIRDS = """
class Thirds(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        B, n, d = x.shape
        assert n == 24 and d == 288
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        t, h, w = q.split(24, dim=-1)
        rotated = torch.cat([h, t, w], dim=-1)
        scores = rotated @ k.mT
"""

GROUPED = """
class Grouped(nn.Module):
    def __init__(self, d_model, n_query_head, n_group):
        super().__init__()
        assert (d_model, n_query_head, n_group) == (64, 8, 4)
        self.heads, self.groups, self.head_dim = n_query_head, n_group, d_model // n_query_head
        self.to_q = nn.Linear(d_model, n_query_head * self.head_dim)
        self.to_k = nn.Linear(d_model, n_group * self.head_dim)
        self.to_o = nn.Linear(d_model, d_model)

    def forward(self, x, cos):
        B, L, _ = x.shape
        q = self.to_q(x).view(B, L, self.heads, self.head_dim).transpose(1, 2)
        k = self.to_k(x).view(B, L, -1, self.head_dim).transpose(1, 2)
        half, rest = k.chunk(2, dim=-1)
        turned = q * cos
        out = self.to_o(turned.transpose(1, 2).flatten(2))
        copies = torch.stack([k, k, k, k])
"""

WIDE = """
class Wide(nn.Module):
    def __init__(self, n_head):
        super().__init__()
        self.n_head = n_head

    def forward(self, x):
        n, d = x.shape
        assert self.n_head == 4
        wide = torch.cat([x, x, x, x], dim=-1)
        parts = x.view(n, self.n_head, -1)
        tiled = torch.zeros(n, self.n_head * d)
"""


EQUAL = """
class Equal(nn.Module):
    def __init__(self, n_head, n_kv, nope, rope):
        super().__init__()
        self.n_head, self.n_kv, self.nope, self.rope = n_head, n_kv, nope, rope

    def forward(self, x):
        B, n, _ = x.shape
        assert (self.n_head, self.n_kv, self.nope, self.rope) == (8, 4, 16, 16)
        q = x.view(B, n, self.n_head, self.nope + self.rope)
        q_nope, q_rope = q.split([self.nope, self.rope], dim=-1)
        k = q[:, :, :4].reshape(B, n, self.n_kv, self.nope + self.rope)
        wide = k.repeat_interleave(self.n_head // self.n_kv, dim=2)
        wider = torch.repeat_interleave(k, self.n_head // self.n_kv, 2)
        half = q_rope[..., 0::2]
        first, second = q_rope.chunk(2, dim=-1)
"""


@pytest.fixture
def dims(tmp_path):
    """Traces the class of a source text: `dims(source, "n_head=4", "x=n:5,d:7")`, by name."""

    def trace(source, init, inputs):
        name = source.split("class ")[1].split("(")[0]
        target = f"{written(tmp_path, source)}:{name}"
        found = attnscope.inspect(target, init=init.split(), inputs=inputs.split())
        return {step.name: " ".join(step.dims) for step in found.steps}

    return trace


@pytest.mark.sweep
def test_a_third_of_a_head_is_not_the_sequence_that_is_as_long(dims):
    found = dims(THIRDS, "dim=288 n_head=4", "x=B:2,n:24,d:288")
    assert found["q"] == found["rotated"] == "B n_head n 72"
    assert found["t"] == found["h"] == found["w"] == "B n_head n 24"
    assert found["scores"] == "B n_head n n"


@pytest.mark.sweep
def test_a_part_that_is_as_long_as_the_sequence_because_the_code_says_so_has_its_name(dims):
    source = THIRDS.replace("q.split(24, dim=-1)", "q.split(n, dim=-1)")
    found = dims(source, "dim=288 n_head=4", "x=B:2,n:24,d:288")
    assert found["scores"] == "B n_head n n"
    assert found["t"] == "B n_head n n"
    cut = THIRDS.replace("t, h, w = q.split(24, dim=-1)", "t = h = w = q[..., :n]")
    assert dims(cut, "dim=288 n_head=4", "x=B:2,n:24,d:288")["t"] == "B n_head n n"


@pytest.mark.sweep
def test_heads_are_not_the_width_of_one_nor_groups_half_of_it(dims):
    found = dims(GROUPED, "d_model=64 n_query_head=8 n_group=4", "x=B:3,L:10,64 cos=10,8")
    assert found["q"] == found["turned"] == "B n_query_head L 8"  # kept as `self.heads`
    assert found["k"] == "B n_group L 8"  # a projection to `n_group * self.head_dim`
    assert found["half"] == "B n_group L 4"
    assert found["copies"] == "4 B n_group L 8"
    assert found["out"] == "B L d_model"  # a width that layers keep
    assert found["cos"] == "L 8"  # a product aligns it with a named axis


def test_four_copies_of_a_width_are_not_as_many_as_heads(dims):
    found = dims(WIDE, "n_head=4", "x=n:6,d:20")
    assert found["wide"] == "n 4·d"
    assert found["parts"] == "n n_head d/n_head"
    assert found["tiled"] == "n n_head·d"


@pytest.mark.sweep
def test_an_attribute_of_a_live_module_names_its_axes():
    import torch

    layer, x = torch.nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 7, 16)
    trace = attnscope.inspect(layer, x, x, x, depth=0)
    assert trace.steps[-1].dims == ("n_batch", "n_Q", "embed_dim")


@pytest.mark.sweep
def test_parts_of_equal_sizes_and_repeated_heads_are_what_the_code_says(dims):
    found = dims(EQUAL, "n_head=8 n_kv=4 nope=16 rope=16", "x=B:2,n:5,256")
    assert found["q"] == "B n n_head nope+rope"
    assert found["q_nope"] == "B n n_head nope"
    assert found["q_rope"] == "B n n_head rope"
    assert found["k"] == "B n n_kv nope+rope"
    assert found["wide"] == found["wider"] == "B n n_head nope+rope"
    assert found["first"] == found["second"] == "B n n_head rope/2"
    assert found["half"] == "B n n_head 8"  # what a step leaves over is not followed
