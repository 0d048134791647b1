"""Correct attention in several styles, as source text, and common mistakes that can be planted in it.

Each line that can be wrong ends with a tag: `# scale`. A mistake replaces the lines of one tag, in all
styles or in each by its own words.
"""

from dataclasses import dataclass
from pathlib import Path

HEAD = '''
import math

import torch
from torch import nn
from torch.nn import functional as F
{imports}

def rotated(x):
    """Rotate `… n d`."""
    n, d = x.shape[-2:]
    half = d // 2
    position = torch.arange(n, dtype=x.dtype)  # offset
    angle = position[:, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)  # base
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]  # pairs
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)  # together


class Attention(nn.Module):
    def __init__(self, d_feat, n_head, n_kv_head):
        super().__init__()
        self.h, self.g, self.d = n_head, n_head // n_kv_head, d_feat // n_head
        self.W_Q = nn.Linear(d_feat, d_feat)
        self.W_K = nn.Linear(d_feat, n_kv_head * self.d)
        self.W_V = nn.Linear(d_feat, n_kv_head * self.d)
        self.W_O = nn.Linear(d_feat, d_feat)

    def forward(self, x, y):
        b, n, m = x.shape[0], x.shape[1], y.shape[1]
        hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)  # mask
        q = self.W_Q(x)  # W_Q
        k = self.W_K(y)  # W_K
        v = self.W_V(y)  # W_V
'''

MATMUL_TAIL = """
        scores = scores.masked_fill(hidden, float("-inf"))  # fill
        weights = scores.softmax(-1)  # softmax
        weights = F.dropout(weights, 0.5, self.training)  # dropout
"""

STYLES = {
    "heads first": HEAD
    + """
        q = q.view(b, n, self.h, self.d).transpose(1, 2)  # split
        k = k.view(b, m, -1, self.d).transpose(1, 2)
        v = v.view(b, m, -1, self.d).transpose(1, 2)  # split_v
        q = rotated(q)  # rotate_q
        k = rotated(k)  # rotate_k
        k = k.repeat_interleave(self.g, 1)  # share_k
        v = v.repeat_interleave(self.g, 1)  # share_v
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(self.d)  # scale
"""
    + MATMUL_TAIL
    + """
        out = weights @ v
        out = out.transpose(1, 2).reshape(b, n, -1)  # merge
        return self.W_O(out)  # W_O
""",
    "heads last": HEAD
    + """
        q = q.view(b, n, self.h, self.d)  # split
        k = k.view(b, m, -1, self.d)
        v = v.view(b, m, -1, self.d)  # split_v
        q = rotated(q.transpose(1, 2)).transpose(1, 2)  # rotate_q
        k = rotated(k.transpose(1, 2)).transpose(1, 2)  # rotate_k
        k = k.repeat_interleave(self.g, 2)  # share_k
        v = v.repeat_interleave(self.g, 2)  # share_v
        q = q / math.sqrt(self.d)  # scale
        scores = torch.matmul(q.transpose(1, 2), k.permute(0, 2, 3, 1))
"""
    + MATMUL_TAIL
    + """
        out = torch.matmul(weights, v.transpose(1, 2))
        out = out.permute(0, 2, 1, 3).contiguous().view(b, n, self.h * self.d)  # merge
        return self.W_O(out)  # W_O
""",
    "einsum": HEAD
    + """
        q = q.view(b, n, self.h, self.d)  # split
        k = k.view(b, m, -1, self.d)
        v = v.view(b, m, -1, self.d)  # split_v
        q = rotated(q.transpose(1, 2)).transpose(1, 2)  # rotate_q
        k = rotated(k.transpose(1, 2)).transpose(1, 2)  # rotate_k
        k = k.repeat_interleave(self.g, 2)  # share_k
        v = v.repeat_interleave(self.g, 2)  # share_v
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
        scores *= self.d**-0.5  # scale
        scores[:, :, hidden] = float("-inf")  # fill
        weights = torch.softmax(scores, dim=-1)  # softmax
        weights = F.dropout(weights, 0.5, self.training)  # dropout
        out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        out = out.flatten(2)  # merge
        return self.W_O(out)  # W_O
""",
    "einops": HEAD
    + """
        q = rearrange(q, "b n (h d) -> b h n d", h=self.h)  # split
        k = rearrange(k, "b n (h d) -> b h n d", d=self.d)
        v = rearrange(v, "b n (h d) -> b h n d", d=self.d)  # split_v
        q = rotated(q)  # rotate_q
        k = rotated(k)  # rotate_k
        k = repeat(k, "b h n d -> b (h g) n d", g=self.g)  # share_k
        v = repeat(v, "b h n d -> b (h g) n d", g=self.g)  # share_v
        scores = einsum(q, k, "b h i d, b h j d -> b h i j")
        scores = scores / math.sqrt(self.d)  # scale
"""
    + MATMUL_TAIL
    + """
        out = einsum(weights, v, "b h i j, b h j d -> b h i d")
        out = rearrange(out, "b h n d -> b n (h d)")  # merge
        return self.W_O(out)  # W_O
""",
    "folded batch": HEAD
    + """
        q = q.view(b, n, self.h, self.d).transpose(1, 2)  # split
        k = k.view(b, m, -1, self.d).transpose(1, 2)
        v = v.view(b, m, -1, self.d).transpose(1, 2)  # split_v
        q = rotated(q)  # rotate_q
        k = rotated(k)  # rotate_k
        k = k.repeat_interleave(self.g, 1)  # share_k
        v = v.repeat_interleave(self.g, 1)  # share_v
        q = q.transpose(0, 1).reshape(self.h * b, n, self.d)
        k = k.transpose(0, 1).reshape(self.h * b, m, self.d)
        v = v.transpose(0, 1).reshape(self.h * b, m, self.d)
        scores = torch.bmm(q, k.mT)
        scores = scores / math.sqrt(self.d)  # scale
"""
    + MATMUL_TAIL
    + """
        out = torch.bmm(weights, v).view(self.h, b, n, self.d)
        out = out.permute(1, 2, 0, 3).reshape(b, n, -1)  # merge
        return self.W_O(out)  # W_O
""",
    "fused": HEAD
    + """
        q = q.view(b, n, self.h, self.d).transpose(1, 2)  # split
        k = k.view(b, m, -1, self.d).transpose(1, 2)
        v = v.view(b, m, -1, self.d).transpose(1, 2)  # split_v
        q = rotated(q)  # rotate_q
        k = rotated(k)  # rotate_k
        k = k.repeat_interleave(self.g, 1)  # share_k
        v = v.repeat_interleave(self.g, 1)  # share_v
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden)  # scale
        out = out.transpose(1, 2).reshape(b, n, -1)  # merge
        return self.W_O(out)  # W_O
""",
}


@dataclass(frozen=True)
class Mistake:
    """A mistake to plant.

    Attributes:
        role: the first tensor that differs.
        cause: how `compare` calls it.
        tag: the lines that it replaces.
        lines: the wrong lines, by style; "" for all styles that have no own.
    """

    role: str
    cause: str
    tag: str
    lines: dict[str, str]


SPLIT = {
    "heads first": "q = q.view(b, n, self.d, self.h).permute(0, 3, 1, 2)",
    "heads last": "q = q.view(b, n, self.d, self.h).transpose(2, 3)",
    "einsum": "q = q.view(b, n, self.d, self.h).transpose(2, 3)",
    "einops": 'q = rearrange(q, "b n (d h) -> b h n d", h=self.h)',
    "folded batch": "q = q.view(b, n, self.d, self.h).permute(0, 3, 1, 2)",
    "fused": "q = q.view(b, n, self.d, self.h).permute(0, 3, 1, 2)",
}
SHARED = {
    "heads first": "{0} = {0}.repeat(1, self.g, 1, 1)",
    "heads last": "{0} = {0}.repeat(1, 1, self.g, 1)",
    "einsum": "{0} = {0}.repeat(1, 1, self.g, 1)",
    "einops": '{0} = repeat({0}, "b h n d -> b (g h) n d", g=self.g)',
    "folded batch": "{0} = {0}.repeat(1, self.g, 1, 1)",
    "fused": "{0} = {0}.repeat(1, self.g, 1, 1)",
}


def _shared(name: str) -> dict[str, str]:
    return {style: line.format(name) for style, line in SHARED.items()}


def _scale(factor: str, divide: str, fused: str) -> dict[str, str]:
    q = divide.replace("scores", "q")
    return {"": divide, "heads last": q, "einsum": f"scores *= {factor}", "fused": fused}


FUSED = "out = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden, scale={})"
MISTAKES = {
    "scale of d_feat": Mistake(
        "scores", "another scale", "scale",
        _scale("(self.h * self.d)**-0.5", "scores = scores / math.sqrt(self.h * self.d)", FUSED.format("(self.h * self.d)**-0.5")),
    ),
    "no scale": Mistake("scores", "scale missing", "scale", _scale("1", "scores = scores * 1", FUSED.format("1.0"))),
    "scaled twice": Mistake(
        "scores", "scaled twice", "scale", _scale("1 / self.d", "scores = scores / self.d", FUSED.format("1 / self.d"))
    ),
    "soft cap": Mistake(
        "scores", "soft cap", "scale",
        dict.fromkeys(("heads first", "einsum", "einops", "folded batch"), "scores = 2.0 * torch.tanh(scores / math.sqrt(self.d) / 2.0)"),
    ),
    "softmax over queries": Mistake(
        "attention", "softmax over another axis", "softmax",
        dict.fromkeys(("heads first", "heads last", "einsum", "einops", "folded batch"), "weights = scores.softmax(-2)"),
    ),
    "softmax in half precision": Mistake(
        "attention", "softmax in lower precision", "softmax",
        dict.fromkeys(("heads first", "heads last", "einsum", "einops", "folded batch"), "weights = scores.half().softmax(-1).to(scores.dtype)"),
    ),
    "dropout": Mistake(
        "attention_drop", "dropout active", "dropout",
        dict.fromkeys(("heads first", "heads last", "einsum", "einops", "folded batch"), "weights = F.dropout(weights, 0.5)"),
    ),
    "mask inverted": Mistake(
        "scores_masked", "mask inverted", "mask", {"": "hidden = ~torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)"}
    ),
    "mask missing": Mistake(
        "scores_masked", "mask missing", "mask", {"": "hidden = torch.zeros(n, m, dtype=torch.bool)"}
    ),
    "mask top-left": Mistake(
        "scores_masked", "causal mask aligned otherwise", "mask", {"": "hidden = torch.ones(n, m, dtype=torch.bool).triu(1)"}
    ),
    "mask shifted": Mistake(
        "scores_masked", "causal mask shifted", "mask", {"": "hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 2)"}
    ),
    "mask hides the query itself": Mistake(
        "scores_masked", "causal mask shifted", "mask", {"": "hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n)"}
    ),
    "mask added as numbers": Mistake(
        "scores_masked", "boolean mask added", "fill",
        dict.fromkeys(("heads first", "heads last", "einsum", "einops", "folded batch"), "scores = scores + hidden"),
    ),
    "small fill": Mistake(
        "scores_masked", "another fill", "fill",
        dict.fromkeys(("heads first", "heads last", "einsum", "einops", "folded batch"), "scores = scores.masked_fill(hidden, -1.0)"),
    ),
    "rotary interleaved": Mistake(
        "Q", "rotary interleaved", "together",
        {"": "first, second = x[..., ::2], x[..., 1::2]; return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)"},
    ),
    "rotary base": Mistake(
        "Q", "rotary base", "base",
        {"": "angle = position[:, None] * 500000.0 ** (-torch.arange(half, dtype=x.dtype) / half)"},
    ),
    "rotary missing": Mistake("Q", "rotary positions missing", "rotate_q", {"": "q = q * 1"}),
    "rotary missing in K": Mistake("K", "rotary positions missing", "rotate_k", {"": "k = k * 1"}),
    "keys shared interleaved": Mistake("K", "shared heads in another order", "share_k", _shared("k")),
    "values shared interleaved": Mistake("V", "shared heads in another order", "share_v", _shared("v")),
    "heads split as (d, h)": Mistake("Q_split", "heads split as (d_head, n_head)", "split", SPLIT),
    "weight transposed": Mistake("Q_feat", "weight transposed", "W_Q", {"": "q = x @ self.W_Q.weight + self.W_Q.bias"}),
    "bias missing in Q": Mistake("Q_feat", "bias missing", "W_Q", {"": "q = F.linear(x, self.W_Q.weight)"}),
    "bias missing in V": Mistake("V_feat", "bias missing", "W_V", {"": "v = F.linear(y, self.W_V.weight)"}),
    "bias missing in the output": Mistake("x", "bias missing", "W_O", {"": "return F.linear(out, self.W_O.weight)"}),
    "V with W_K": Mistake("V_feat", "another projection", "W_V", {"": "v = self.W_K(y)"}),
    "merge without moving": Mistake(
        "x_merged", "heads merged without moving them back", "merge",
        {"heads first": "out = out.reshape(b, n, -1)", "heads last": "out = out.reshape(b, n, -1)", "einops": "out = out.reshape(b, n, -1)", "fused": "out = out.reshape(b, n, -1)"},
    ),
}  # fmt: skip
MISTAKES["scaled rotation of V"] = Mistake(
    "V", "rotary positions added", "split_v",
    dict.fromkeys(("heads first", "folded batch", "fused"), "v = rotated(v.view(b, m, -1, self.d).transpose(1, 2))"),
)  # fmt: skip


def source(style: str, *mistakes: str) -> str:
    """Return the text of a style with mistakes."""
    imports = "from einops import einsum, rearrange, repeat\n" if style == "einops" else ""
    text = STYLES[style].replace("{imports}", imports)
    for name in mistakes:
        mistake = MISTAKES[name]
        wrong = mistake.lines.get(style, mistake.lines.get(""))
        assert wrong is not None
        lines = []
        for line in text.splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(
                f"{indent}{wrong}  # {mistake.tag}" if line.endswith(f"  # {mistake.tag}") else line
            )
        assert lines != text.splitlines()
        text = "\n".join(lines)
    return text


def has(style: str, mistake: str) -> bool:
    """Return whether a mistake can be planted in a style."""
    lines = MISTAKES[mistake].lines
    return style in lines or "" in lines


def written(folder: Path, name: str, style: str, *mistakes: str) -> str:
    """Write a style with mistakes to a file, and return the target in it."""
    path = folder / f"{name}.py"
    path.write_text(source(style, *mistakes))
    return f"{path}:Attention"
