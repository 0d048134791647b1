"""Attention in many forms, each as source text, with a line and the mistake that takes its place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

HEAD = """
import math

import torch
from einops import rearrange, repeat
from torch import nn
from torch.nn import functional as F
"""


@dataclass(frozen=True)
class Pair:
    """Correct code, and the same code with one line replaced.

    Attributes:
        source: the correct code, which defines `attention`, a function or a class.
        right: the text that is correct, once in the source.
        wrong: the text that takes its place.
        causes: by the tensor that differs, what the mistake is called where b has it; None: it has no
            name, and only its line is known.
        reversed_causes: what it is called where a has it; None: the same.
        inputs: of the call, as `--input`.
        init: of the class, as `--init`.
        reported: the text of the line that is named; None: the wrong one.
        line_of: the side whose line shows the mistake: the right one, if the other leaves it out.
    """

    source: str
    right: str
    wrong: str
    causes: Mapping[str, str | None] = field(default_factory=dict)
    reversed_causes: Mapping[str, str | None] | None = None
    inputs: tuple[str, ...] = ()
    init: tuple[str, ...] = ()
    reported: str | None = None
    line_of: str = "wrong"

    def text(self, side: str) -> str:
        """Return the code of a side, `right` or `wrong`."""
        source = HEAD + dedent(self.source)
        assert source.count(self.right) == 1, self.right
        return source if side == "right" else source.replace(self.right, self.wrong)

    def written(self, folder: Path, side: str) -> str:
        """Write the code of a side, and return it as a target."""
        path = folder / f"{side}.py"
        path.write_text(self.text(side))
        return f"{path}:attention"

    def line(self, side: str) -> int:
        """Return the number of the line in which the mistake is, or its correction."""
        text = self.reported or (self.right if side == "right" else self.wrong).splitlines()[0]
        return self.text(side)[: self.text(side).index(text)].count("\n") + 1


FLAT_HEADS = """
class attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width)

    def flat(self, t):
        batch, length, _ = t.shape
        t = t.reshape(batch, length, self.heads, self.size).transpose(1, 2)
        return t.reshape(batch * self.heads, length, self.size)

    def forward(self, x, memory, padding):
        batch, length, _ = x.shape
        keys, values = self.to_kv(memory).chunk(2, -1)
        q, k, v = self.flat(self.to_q(x)), self.flat(keys), self.flat(values)
        scores = torch.bmm(q, k.transpose(1, 2)) * self.size ** -0.5
        hidden = padding.repeat_interleave(self.heads, 0)
        scores = scores.masked_fill(hidden[:, None, :], float("-inf"))
        probs = torch.softmax(scores, dim=2)
        out = torch.bmm(probs, v)
        out = out.view(batch, self.heads, length, self.size).transpose(1, 2)
        return self.to_out(out.reshape(batch, length, -1))
"""
FLAT = {
    "source": FLAT_HEADS,
    "init": ("width=24", "heads=3"),
    "inputs": ("x=2,5,24", "memory=2,7,24", "padding=2,7@bool"),
}  # fmt: skip

GROUPED = """
class attention(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * groups) * self.size)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        n = x.shape[1]
        sizes = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        q, k, v = self.qkv(x).split(sizes, -1)
        q = rearrange(q, "b n (g r d) -> b g r n d", g=self.groups, d=self.size)
        k = rearrange(k, "b n (g d) -> b g n d", d=self.size)
        v = rearrange(v, "b n (g d) -> b g n d", d=self.size)
        q = q / self.size**0.5
        sim = torch.einsum("bgrid,bgjd->bgrij", q, k)
        allowed = torch.ones(n, n, dtype=torch.bool).tril()
        sim = sim.where(allowed, -torch.inf)
        attn = sim.softmax(-1)
        out = torch.einsum("bgrij,bgjd->bgrid", attn, v)
        out = rearrange(out, "b g r n d -> b n (g r d)")
        return self.proj(out)
"""
GQA = {"source": GROUPED, "init": ("width=48", "heads=6", "groups=2"), "inputs": ("x=3,7,48",)}

COMPLEX = """
def rotate(t, start):
    n, d = t.shape[-2:]
    freq = 10000.0 ** (-torch.arange(0, d, 2, dtype=t.dtype) / d)
    angle = torch.outer(torch.arange(start, start + n, dtype=t.dtype), freq)
    turn = torch.polar(torch.ones_like(angle), angle)
    t = torch.view_as_complex(t.unflatten(-1, (-1, 2)))
    return torch.view_as_real(t * turn).flatten(-2)


class attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x, past):
        n, n_past = x.shape[1], past.shape[1]
        total = torch.cat([past, x], 1)
        q = self.wq(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.wk(total).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = self.wv(total).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q = rotate(q, n_past)
        k = rotate(k, 0)
        hidden = torch.ones(n, n + n_past, dtype=torch.bool).triu(n_past + 1)
        scores = (q @ k.mT) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(hidden, -1e9).softmax(-1)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))
"""
CACHED = {"source": COMPLEX, "init": ("width=24", "heads=3"), "inputs": ("x=2,5,24", "past=2,6,24")}

ALIBI = """
def slopes(heads):
    return torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])


def attention(q, k, v):
    heads, n = q.shape[1], q.shape[2]
    place = torch.arange(n)
    distance = (place[:, None] - place[None, :]).clamp(min=0)
    bias = -slopes(heads).view(-1, 1, 1) * distance
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.size(-1) ** 0.5
    logits = logits + bias
    logits = logits + torch.full((n, n), float("-inf")).triu(1)
    return F.softmax(logits, -1) @ v
"""
SLOPED = {"source": ALIBI, "inputs": ("q=2,3,7,8", "k=2,3,7,8", "v=2,3,7,6")}

RELATIVE = """
class attention(nn.Module):
    def __init__(self, width, heads, reach):
        super().__init__()
        self.heads, self.reach = heads, reach
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width, bias=False)
        self.table = nn.Embedding(2 * reach + 1, heads)

    def forward(self, h):
        b, n, _ = h.shape
        q = self.q(h).view(b, n, self.heads, -1).permute(0, 2, 1, 3)
        k = self.k(h).view(b, n, self.heads, -1).permute(0, 2, 1, 3)
        v = self.v(h).view(b, n, self.heads, -1).permute(0, 2, 1, 3)
        at = torch.arange(n)
        step = (at[None, :] - at[:, None]).clamp(-self.reach, self.reach) + self.reach
        bias = self.table(step).permute(2, 0, 1)
        scores = torch.matmul(q, k.transpose(2, 3))
        scores = scores + bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        context = torch.matmul(weights, v)
        context = context.permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.o(context)
"""
T5 = {"source": RELATIVE, "init": ("width=24", "heads=3", "reach=2"), "inputs": ("h=2,7,24",)}

WINDOWS = """
class attention(nn.Module):
    def __init__(self, width, heads, side):
        super().__init__()
        self.heads, self.side = heads, side
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, rows, cols, c = x.shape
        s = self.side
        x = torch.roll(x, (-1, -1), (1, 2))
        x = x.view(b, rows // s, s, cols // s, s, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
        q, k, v = self.qkv(x).reshape(-1, s * s, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        w = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(-1)
        y = self.proj((w @ v).transpose(1, 2).reshape(-1, s * s, c))
        y = y.view(b, rows // s, cols // s, s, s, c).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(b, rows, cols, c)
        return torch.roll(y, (1, 1), (1, 2))
"""
SWIN = {"source": WINDOWS, "init": ("width=24", "heads=4", "side=3"), "inputs": ("x=2,6,9,24",)}

EDGES = """
class attention(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.lin = nn.Linear(width, out, bias=False)
        self.score_src = nn.Parameter(torch.randn(out))
        self.score_dst = nn.Parameter(torch.randn(out))

    def forward(self, x):
        src = torch.tensor([0, 1, 2, 3, 4, 0, 2, 5, 5, 1])
        dst = torch.tensor([1, 2, 3, 4, 5, 2, 0, 0, 1, 4])
        h = self.lin(x)
        e = (h @ self.score_src)[src] + (h @ self.score_dst)[dst]
        e = F.leaky_relu(e, 0.2)
        e = (e - e.max()).exp()
        total = torch.zeros(x.shape[0]).index_add(0, dst, e)
        alpha = e / total[dst]
        message = alpha[:, None] * h[src]
        return torch.zeros_like(h).index_add(0, dst, message)
"""
GAT = {"source": EDGES, "init": ("width=8", "out=5"), "inputs": ("x=6,8",)}

LINEAR = """
def feature(t):
    return F.elu(t) + 1


def attention(q, k, v):
    q = feature(q)
    k = feature(k)
    state = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
    normaliser = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2))
    return torch.einsum("bhnd,bhnde->bhne", q, state) / normaliser[..., None]
"""
KERNEL = {"source": LINEAR, "inputs": ("q=2,3,7,8", "k=2,3,7,8", "v=2,3,7,6")}

DIFFERENTIAL = """
class attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads // 2
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.lam = nn.Parameter(torch.tensor(0.3))
        self.norm = nn.RMSNorm(2 * self.size)

    def forward(self, x):
        q = rearrange(self.q(x), "b n (h two d) -> two b h n d", h=self.heads, two=2)
        k = rearrange(self.k(x), "b n (h two d) -> two b h n d", h=self.heads, two=2)
        v = rearrange(self.v(x), "b n (h d) -> b h n d", h=self.heads)
        first, second = ((q @ k.mT) * self.size**-0.5).softmax(-1)
        weights = first - self.lam * second
        out = self.norm(weights @ v)
        out = out * (1 - 0.2)
        return self.o(rearrange(out, "b h n d -> b n (h d)"))
"""
DIFF = {"source": DIFFERENTIAL, "init": ("width=24", "heads=2"), "inputs": ("x=3,7,24",)}

LATENT = """
def rotate(t):
    n, d = t.shape[-2], t.shape[-1]
    freq = 1.0 / 10000 ** (torch.arange(0, d, 2) / d)
    angle = torch.arange(n)[:, None] * freq
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    left, right = t.chunk(2, -1)
    return t * cos + torch.cat([-right, left], -1) * sin


class attention(nn.Module):
    def __init__(self, width, heads, latent, nope, rope, value):
        super().__init__()
        self.heads, self.nope, self.rope, self.value = heads, nope, rope, value
        self.q = nn.Linear(width, heads * (nope + rope), bias=False)
        self.down = nn.Linear(width, latent + rope, bias=False)
        self.norm = nn.RMSNorm(latent)
        self.up = nn.Linear(latent, heads * (nope + value), bias=False)
        self.out = nn.Linear(heads * value, width, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        q_nope, q_rope = q.split([self.nope, self.rope], -1)
        c, k_rope = self.down(x).split([self.down.out_features - self.rope, self.rope], -1)
        kv = self.up(self.norm(c)).view(b, n, self.heads, -1).transpose(1, 2)
        k_nope, v = kv.split([self.nope, self.value], -1)
        k_rope = rotate(k_rope[:, None])
        q = torch.cat([q_nope, rotate(q_rope)], -1)
        k = torch.cat([k_nope, k_rope.expand(-1, self.heads, -1, -1)], -1)
        scale = (self.nope + self.rope) ** -0.5
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * scale
        scores = scores + torch.full((n, n), -torch.inf).triu(1)
        out = scores.softmax(-1) @ v
        return self.out(out.transpose(1, 2).reshape(b, n, -1))
"""
MLA = {"source": LATENT, "init": ("width=20", "heads=3", "latent=9", "nope=8", "rope=4", "value=5"),
       "inputs": ("x=2,7,20",)}  # fmt: skip

GATED = """
class attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.sinks = nn.Parameter(torch.randn(heads))
        self.warmth = nn.Parameter(torch.randn(heads, 1, 1))

    def forward(self, x):
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        q = F.normalize(q, dim=-1)
        k = F.normalize(k, dim=-1)
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.warmth.exp()
        n = x.shape[1]
        place = torch.arange(n)
        near = (place[:, None] - place < 3) & (place[:, None] >= place)
        dots = dots.masked_fill(~near, float("-inf"))
        sinks = repeat(self.sinks, "h -> b h i 1", b=x.shape[0], i=n)
        attn = torch.cat([dots, sinks], -1).softmax(-1)[..., :-1]
        y = rearrange(attn @ v, "b h n d -> b n (h d)")
        y = y * torch.sigmoid(self.gate(x))
        return self.out(y)
"""
GATE = {"source": GATED, "init": ("width=24", "heads=3"), "inputs": ("x=2,7,24",)}

FUSED = """
class attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(heads, heads, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens, real):
        batch, n, width = tokens.shape
        x = self.norm(tokens)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(batch, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
        out = out.transpose(1, 2).reshape(batch, n, width)
        return tokens + self.proj(out)
"""
SDPA = {"source": FUSED, "init": ("width=24", "heads=3"),
        "inputs": ("tokens=2,7,24", "real=2,7@bool")}  # fmt: skip

TALKING = """
class attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.before = nn.Parameter(torch.randn(heads, heads))
        self.after = nn.Parameter(torch.randn(heads, heads))
        self.proj = nn.Linear(width, width)

    def forward(self, x, context):
        b, n, c = x.shape
        q = self.q(x).view(b, n, self.heads, -1)
        k, v = self.kv(context).view(b, context.shape[1], 2, self.heads, -1).unbind(2)
        dots = torch.einsum("bihd,bjhd->bijh", q, k) / (c / self.heads) ** 0.5
        dots = torch.einsum("bijh,hg->bijg", dots, self.before)
        attn = dots.softmax(2)
        attn = torch.einsum("bijh,hg->bijg", attn, self.after)
        out = torch.einsum("bijh,bjhd->bihd", attn, v).reshape(b, n, c)
        return self.proj(out)
"""
TALK = {"source": TALKING, "init": ("width=24", "heads=3"), "inputs": ("x=2,5,24", "context=2,7,24")}

TIME_FIRST = """
class attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense = nn.Linear(width, width)
        self.drop = 0.1

    def forward(self, hidden):
        time, batch, width = hidden.shape
        q = self.query(hidden).view(time, batch * self.heads, self.size).transpose(0, 1)
        k = self.key(hidden).view(time, batch * self.heads, self.size).transpose(0, 1)
        v = self.value(hidden).view(time, batch * self.heads, self.size).transpose(0, 1)
        logits = torch.baddbmm(torch.zeros(1), q, k.transpose(1, 2), alpha=self.size**-0.5)
        keep = torch.tril(torch.ones(time, time))
        logits = logits * keep - 1e4 * (1 - keep)
        probs = F.dropout(logits.softmax(-1), self.drop, self.training)
        out = torch.bmm(probs, v).transpose(0, 1)
        return self.dense(out.reshape(time, batch, width))
"""
TIME = {"source": TIME_FIRST, "init": ("width=24", "heads=3"), "inputs": ("hidden=7,2,24",)}

MIXED = "sequences and heads mixed"
SHARED = "shared heads in another order"
PAIRS = {
    "padding repeated for the wrong heads": Pair(
        **FLAT, right="padding.repeat_interleave(self.heads, 0)", wrong="padding.repeat(self.heads, 1)",
        causes={"scores_masked": "another mask"}),
    "softmax over the flattened batch": Pair(
        **FLAT, right="torch.softmax(scores, dim=2)", wrong="torch.softmax(scores, dim=0)",
        causes={"attention": "another argument"}),
    "merge of flattened heads as batches last": Pair(
        **FLAT, right="out.view(batch, self.heads, length, self.size)",
        wrong="out.view(self.heads, batch, length, self.size).transpose(0, 1)",
        causes={"x_merged": MIXED}),
    "keys and values exchanged": Pair(
        **FLAT, right="keys, values = self.to_kv(memory)", wrong="values, keys = self.to_kv(memory)",
        causes={"K_feat": "another projection", "V_feat": "another projection"}),
    "groups of queries taken across": Pair(
        **GQA, right='"b n (g r d) -> b g r n d"', wrong='"b n (r g d) -> b g r n d"',
        causes={"K": SHARED}, reported='k = rearrange(k, "b n (g d)'),
    "groups merged the other way": Pair(
        **GQA, right='"b g r n d -> b n (g r d)"', wrong='"b g r n d -> b n (r g d)"',
        causes={"x_merged": "heads mixed"}),
    "fill with a small number": Pair(
        **GQA, right="sim.where(allowed, -torch.inf)", wrong="sim.where(allowed, -1e-9)",
        causes={"scores_masked": "another fill"}),
    "a key later than the query": Pair(
        **GQA, right=".tril()", wrong=".tril(1)", causes={"scores_masked": "causal mask shifted"}),
    "queries rotated from position 0": Pair(
        **CACHED, right="rotate(q, n_past)", wrong="rotate(q, 0)", causes={"Q": "rotary offset"}),
    "mask aligned at the top left": Pair(
        **CACHED, right="triu(n_past + 1)", wrong="triu(1)",
        causes={"scores_masked": "causal mask aligned otherwise"}),
    "frequencies of half the exponent": Pair(
        **CACHED, right="dtype=t.dtype) / d)", wrong="dtype=t.dtype) / (2 * d))",
        causes={"Q": "rotary base", "K": "rotary base"}),
    "slopes from exponent 0": Pair(
        **SLOPED, right="(i + 1) / heads", wrong="i / heads",
        causes={"scores_masked": "position bias scaled"}),
    "slopes that favour the far": Pair(
        **SLOPED, right="bias = -slopes", wrong="bias = slopes",
        causes={"scores_masked": "position bias scaled"}),
    "relative positions reversed": Pair(
        **T5, right="at[None, :] - at[:, None]", wrong="at[:, None] - at[None, :]",
        causes={"scores_masked": "position bias reversed"}),
    "bias of the wrong axis as heads": Pair(
        **T5, right="self.table(step).permute(2, 0, 1)", wrong="self.table(step).reshape(-1, n, n)",
        causes={"scores_masked": "another function"}),
    "windows that mix rows": Pair(
        **SWIN, right="x.permute(0, 1, 3, 2, 4, 5).reshape(-1", wrong="x.reshape(-1",
        causes=dict.fromkeys(("Q_feat", "K_feat", "V_feat"), "tokens in another order")),
    "windows rolled on": Pair(
        **SWIN, right="roll(y, (1, 1)", wrong="roll(y, (-1, -1)", causes={"output": "another argument"}),
    "edges normalised over those that send": Pair(
        **GAT, right="index_add(0, dst, e)", wrong="index_add(0, src, e)",
        causes={"edge_attention": "another operand"}),
    "messages of those that receive": Pair(
        **GAT, right="* h[src]", wrong="* h[dst]", causes={"messages": "another operand"}),
    "keys without a feature map": Pair(
        **KERNEL, right="k = feature(k)", wrong="k = k", causes={"output": "operations missing"},
        reversed_causes={"output": "operations added"}, line_of="right"),
    "a normaliser of all keys": Pair(
        **KERNEL, right="k.cumsum(2))", wrong="k.sum(2, keepdim=True).expand_as(k))",
        causes={"output": None}),
    "a second map that is added": Pair(
        **DIFF, right="first - self.lam * second", wrong="first + self.lam * second",
        causes={"attention_drop": "another function"}),
    "scale of the features without positions": Pair(
        **MLA, right="(self.nope + self.rope) ** -0.5", wrong="self.nope ** -0.5",
        causes={"scores": "another scale"}, reported='torch.einsum("bhid,bhjd->bhij", q, k) * scale'),
    "shared key not rotated": Pair(
        **MLA, right="rotate(k_rope[:, None])", wrong="k_rope[:, None]",
        causes={"K": "rotary positions missing"}, reversed_causes={"K": "rotary positions added"},
        line_of="right"),
    "norm along positions": Pair(
        **GATE, right="F.normalize(k, dim=-1)", wrong="F.normalize(k, dim=-2)",
        causes={"K": "another argument"}),
    "temperature not exponentiated": Pair(
        **GATE, right="* self.warmth.exp()", wrong="* self.warmth",
        causes={"scores_masked": "exp missing"}, reversed_causes={"scores_masked": "exp added"}),
    "a window of both sides": Pair(
        **GATE, right="(place[:, None] >= place)", wrong="(place - place[:, None] < 3)",
        causes={"scores_masked": "another mask"}),
    "a sink without a share": Pair(
        **GATE, right="torch.cat([dots, sinks], -1).softmax(-1)[..., :-1]", wrong="dots.softmax(-1)",
        causes={"attention": "sink missing"}, reversed_causes={"attention": "sink added"}),
    "gate of the output": Pair(
        **GATE, right="self.gate(x)", wrong="self.gate(y)", causes={"x_merged": "another operand"}),
    "padded queries hidden": Pair(
        **SDPA, right="real[:, None, None, :]", wrong="real[:, None, :, None].expand(-1, -1, -1, n)",
        causes={"scores_masked": "another mask"}),
    "residual of the norm": Pair(
        **SDPA, right="tokens + self.proj", wrong="x + self.proj", causes={"output": "another operand"}),
    "heads mixed by the transpose": Pair(
        **TALK, right='"bijh,hg->bijg", dots', wrong='"bijh,gh->bijg", dots',
        causes={"output": "another argument"}),
    "softmax over heads": Pair(
        **TALK, right="dots.softmax(2)", wrong="dots.softmax(3)", causes={"output": "another argument"}),
    "batch read as heads": Pair(
        **TIME, right="self.value(hidden).view(time, batch * self.heads, self.size)",
        wrong="self.value(hidden).view(time, self.heads, batch, self.size).transpose(1, 2).reshape("
              "time, -1, self.size)", causes={"V": MIXED}),
    "mask multiplied": Pair(
        **TIME, right="logits * keep - 1e4 * (1 - keep)", wrong="logits * keep",
        causes={"scores_masked": "mask multiplied"}),
    "dropout in evaluation": Pair(
        **TIME, right="self.drop, self.training)", wrong="self.drop)",
        causes={"attention_drop": "dropout active"}),
    "scaled by the width": Pair(
        **TIME, right="alpha=self.size**-0.5", wrong="alpha=width**-0.5",
        causes={"scores": "another scale"}),
}  # fmt: skip
"""Each mistake, by what it is."""

OTHER_WAYS = {
    "flattened heads by einsum": Pair(
        **FLAT,
        right="""        hidden = padding.repeat_interleave(self.heads, 0)
        scores = scores.masked_fill(hidden[:, None, :], float("-inf"))
        probs = torch.softmax(scores, dim=2)
        out = torch.bmm(probs, v)
        out = out.view(batch, self.heads, length, self.size).transpose(1, 2)
""",
        wrong="""        scores = scores.unflatten(0, (batch, self.heads))
        exponentials = scores.exp() * ~padding[:, None, None]
        probs = exponentials / exponentials.sum(-1, keepdim=True)
        out = torch.einsum("bhij,bhjd->bihd", probs, v.unflatten(0, (batch, self.heads)))
"""),
    "slopes in a kernel's mask": Pair(
        **SLOPED,
        right="""    logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.size(-1) ** 0.5
    logits = logits + bias
    logits = logits + torch.full((n, n), float("-inf")).triu(1)
    return F.softmax(logits, -1) @ v
""",
        wrong="""    hidden = place[:, None] < place
    mask = bias.masked_fill(hidden, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(len(q), -1, -1, -1))
"""),
    "a sink by its logarithm": Pair(
        **GATE,
        right="attn = torch.cat([dots, sinks], -1).softmax(-1)[..., :-1]",
        wrong="attn = (dots - dots.logsumexp(-1, keepdim=True).logaddexp(sinks)).exp()"),
    "groups repeated": Pair(
        **GQA,
        right="""        sim = torch.einsum("bgrid,bgjd->bgrij", q, k)
""",
        wrong="""        sim = q @ k[:, :, None].expand(-1, -1, q.shape[2], -1, -1).mT
"""),
}  # fmt: skip
"""Correct code, and the same computed in another way."""
