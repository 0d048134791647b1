"""Attention modules as Hypothesis draws them: their source, and the dims of every tensor in them.

Each axis has a letter: b (batch), n (queries), m (keys), c (the width of the inputs), h (heads), d (the width of
a head), k (heads of keys and values), g (heads of queries for each of those); a digit is a size itself. A layout
has one word for each axis: in `bh n d`, the first axis is batch times heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import mul

from hypothesis import strategies as st

from attnscope.observe.axes.expressions import Expression, of_number, of_word

NAMES = {
    "b": ["B", "batch", "n_batch"],
    "n": ["T", "N", "seq_len", "n_q"],
    "m": ["S", "M", "n_context", "n_k"],
    "c": ["C", "dim", "d_model", "hidden_size"],
    "h": ["H", "n_head", "num_heads"],
    "d": ["D", "d_head", "head_dim"],
    "k": ["G", "n_kv_head", "kv_heads"],
}
TENSORS = [("q", "k", "v"), ("Q", "K", "V"), ("query", "key", "value")]
APART = ["b h n d", "b n h d", "h b n d"]  # for einsum, they may differ
FOLDED = ["bh n d", "hb n d"]
HEADS_APART = [{f"b {n} hd", layout.format(n)} for n in "nm" for layout in ("b h {} d", "hb {} d")]
ATTRIBUTES = {"h": "self.heads", "k": "self.kv", "d": "self.d", "g": "self.group"}

Row = tuple[str, tuple[str, ...]]


@dataclass
class Module:
    """A class `Attention`, and what is true of it by construction.

    Attributes:
        source: the text of its file.
        init, inputs: the arguments of the class, and the specifications of those of the call.
        rows: the name and the dims of each tensor, in order.
        conditions: what is true of its sizes.
        checks: whether the code asserts that.
    """

    source: str
    init: dict[str, int]
    inputs: dict[str, str]
    rows: list[Row]
    conditions: set[str]
    checks: bool


@st.composite
def modules(draw: st.DrawFn, *, einops: bool = False) -> Module:
    """Draw a module, which uses einops where it can if that is allowed."""
    is_cross, is_grouped, has_d = (draw(st.booleans()) for _ in range(3))
    names = {letter: draw(st.sampled_from(texts)) for letter, texts in NAMES.items()}
    if not is_cross:
        names["m"] = names["n"]
    numbers = {letter: draw(st.integers(2, 4 if letter in "bk" else 8)) for letter in "bnmkdh"}
    numbers["h"] = numbers["k"] * draw(st.integers(2, 3)) if is_grouped else numbers["h"]
    numbers["c"] = draw(st.integers(2, 40)) if has_d else numbers["h"] * numbers["d"]
    writer = Writer(draw, names, numbers, has_d, einops, checks=draw(st.booleans()))
    attention(writer, is_cross, is_grouped)
    return writer.module(is_grouped)


@dataclass
class Writer:
    """Writes a module line by line, and the dims of its tensors with it.

    Attributes:
        draw: draws from a strategy.
        names, numbers: the name and the value of each letter's size.
        has_d: whether the width of a head is an argument; otherwise it is the inputs' width over the heads.
        einops: whether einops may be used.
        checks: whether `__init__` asserts that sizes divide each other.
        inputs: the specifications of the inputs.
        parts, lines: the lines of `__init__` and `forward`.
        rows: the name and the dims of each tensor.
    """

    draw: st.DrawFn
    names: dict[str, str]
    numbers: dict[str, int]
    has_d: bool
    einops: bool
    checks: bool
    inputs: dict[str, str] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def one_of(self, *choices):
        return self.draw(st.sampled_from(choices))

    def module(self, is_grouped: bool) -> Module:
        names = self.names
        arguments = [names[letter] for letter in ("c", "h", *"k" * is_grouped, *"d" * self.has_d)]
        d_head = names["d"] if self.has_d else f"{names['c']} // {names['h']}"
        known = [f"self.heads, self.d = {names['h']}, {d_head}"]
        known += [f"self.kv, self.group = {names['k']}, {names['h']} // {names['k']}"] * is_grouped
        multiples = [("c", "h")] * (not self.has_d) + [("h", "k")] * is_grouped
        if self.checks:
            known += [f"assert {names[one]} % {names[other]} == 0" for one, other in multiples]
        init = "\n        ".join(["super().__init__()", *known, *self.parts])
        forward = "\n        ".join(self.lines)
        source = f"""\
import math
import torch
import torch.nn.functional as F
from torch import nn
{"from einops import rearrange" * self.einops}

class Attention(nn.Module):
    def __init__(self, {", ".join(arguments)}):
        {init}

    def forward(self, {", ".join(self.inputs)}):
        {forward}
"""
        return Module(
            source=source,
            init={names[letter]: n for letter, n in self.numbers.items() if names[letter] in arguments},
            inputs=self.inputs,
            rows=self.rows,
            conditions={f"{names[one]} is a multiple of {names[other]}" for one, other in multiples},
            checks=self.checks,
        )

    # Sizes.

    def expression(self, letter: str) -> Expression:
        """The size of a letter's axis as an expression of names."""
        if letter.isdecimal():
            return of_number(int(letter))
        if letter == "g":
            return self.expression("h") * self.expression("k").inverse()
        if letter == "d" and not self.has_d:
            return self.expression("c") * self.expression("h").inverse()
        return of_word(self.names[letter])

    def size(self, axis: str) -> str:
        """The size of an axis in the code."""
        known = {**ATTRIBUTES, "c": self.names["c"]}
        return " * ".join(known.get(letter, letter) for letter in axis)

    def view(self, layout: str) -> str:
        """The sizes of a layout, one of which may be -1."""
        axes = layout.split()
        free = self.one_of(None, *range(len(axes)))
        return ", ".join("-1" if place == free else self.size(axis) for place, axis in enumerate(axes))

    # Lines and rows.

    def row(self, name: str, layout: str, value: str | None = None) -> str:
        """Add a tensor, and its line if it has a value."""
        if value is not None:
            self.lines.append(f"return {value}" if name == "return" else f"{name} = {value}")
        dims = (str(reduce(mul, map(self.expression, axis))) for axis in layout.split())
        self.rows.append((name, tuple(dims)))
        return name

    def input(self, name: str, layout: str, more: str = "") -> None:
        """Add an argument of `forward`."""
        before, axes = ",".join(self.inputs.values()), []
        for letter in layout.split():
            axis = self.names[letter]
            is_new = letter in "bnm" and f"{axis}:" not in f"{before},{','.join(axes)}"
            axes.append(f"{axis}:{self.numbers[letter]}" if is_new else axis)
        self.inputs[name] = ",".join(axes) + more
        self.row(name, layout)

    def linear(self, name: str, before: str, after: str) -> str:
        """Add a linear layer between axes of two sizes."""
        bias = self.one_of("", ", bias=False")
        self.parts.append(f"self.{name} = nn.Linear({self.size(before)}, {self.size(after)}{bias})")
        return f"self.{name}"

    def weight(self, name: str, layout: str) -> str:
        """Add a parameter."""
        sizes = ", ".join(map(self.size, layout.split()))
        self.parts.append(f"self.{name} = nn.Parameter(torch.randn({sizes}))")
        return f"self.{name}"

    # The axes of one tensor.

    def arrange(self, name: str, value: str, before: str, after: str) -> str:
        """Split, reorder and merge the axes of an expression, and assign the result."""
        ways = [self._by_views]
        if self.einops and before != after:
            ways.append(self._by_einops)
        if {before, after} in HEADS_APART:
            ways.append(self._by_heads)
        self.one_of(*ways)(name, value, before, after)
        return name

    def _by_views(self, name: str, value: str, before: str, after: str) -> None:
        split, moved = (" ".join(each.replace(" ", "")) for each in (before, after))
        steps = (
            (self._split, before, split),
            (self._permuted, split, moved),
            (self._merged, moved, after),
        )
        for how, old, new in steps:
            if old != new:
                value = how(value, old, new)
                if new != after and self.draw(st.booleans()):
                    value = self.row(name, new, value)
        if value != name:
            self.row(name, after, value)

    def _split(self, value: str, before: str, after: str) -> str:
        axes = before.split()
        kind = self.one_of("view", "reshape", "unflatten")
        if kind == "unflatten":
            (place,) = (place for place, axis in enumerate(axes) if axis[1:])
            return f"{value}.unflatten({place}, ({self.view(' '.join(axes[place]))}))"
        return f"{value}.{kind}({self.view(after)})"

    def _permuted(self, value: str, before: str, after: str) -> str:
        order = [before.split().index(axis) for axis in after.split()]
        moved = [place for place, axis in enumerate(order) if place != axis]
        if len(moved) == 2 and self.draw(st.booleans()):
            return f"{value}.transpose({moved[0]}, {moved[1]})"
        return f"{value}.permute({', '.join(map(str, order))})"

    def _merged(self, value: str, before: str, after: str) -> str:
        axes = after.split()
        kind = self.one_of("reshape", "flatten", "contiguous().view")
        if kind == "flatten":
            (place,) = (place for place, axis in enumerate(axes) if axis[1:])
            return f"{value}.flatten({place}, {place + len(axes[place]) - 1})"
        return f"{value}.{kind}({self.view(after)})"

    def _by_einops(self, name: str, value: str, before: str, after: str) -> None:
        texts = (
            " ".join(f"({' '.join(axis)})" if axis[1:] else axis for axis in layout.split())
            for layout in (before, after)
        )
        known = dict.fromkeys(letter for axis in before.split() for letter in axis[:-1])
        sizes = "".join(f", {letter}={self.size(letter)}" for letter in known)
        self.row(name, after, f"rearrange({value}, '{' -> '.join(texts)}'{sizes})")

    def _by_heads(self, name: str, value: str, before: str, after: str) -> None:
        """Divide a tensor into its heads and put them together along another axis, or back."""
        if before.startswith("b ") and before.endswith(" hd"):
            heads = f"{value}.chunk(self.heads, dim={self.one_of(-1, 2)})"
            joined = f"cat({heads}, dim=0)" if after[:2] == "hb" else f"stack({heads}, dim=1)"
        else:
            heads = f"{value}.chunk(self.heads, dim=0)" if before[:2] == "hb" else f"{value}.unbind(1)"
            joined = f"cat({heads}, dim=-1)"
        self.row(name, after, f"torch.{joined}")

    # Two tensors.

    def product(self, one: str, before: str, other: str, also: str, after: str) -> str:
        """Multiply two tensors, each followed by its layout."""
        left, right, result = before.split(), also.split(), after.split()
        is_stacked = left[:-2] == right[:-2] == result[:-2] and left[-2] == result[-2]
        kind = self.one_of("einsum", *["@", "matmul", *["bmm"] * (len(left) == 3)] * is_stacked)
        if kind == "einsum":
            equation = f"{before},{also}->{after}".replace("bh", "z").replace("hb", "z").replace(" ", "")
            return f"torch.einsum('{equation}', {one}, {other})"
        if left[-1] == right[-1]:
            other += self.one_of(".transpose(-2, -1)", ".mT")
        return f"({one} @ {other})" if kind == "@" else f"torch.{kind}({one}, {other})"


# The stages of a module.


def attention(w: Writer, is_cross: bool, is_grouped: bool) -> None:
    """Write the whole `forward`."""
    is_first = w.one_of("batch", "length") == "length"
    outer = "n b c" if is_first else "b n c"
    w.input("x", outer)
    context = "context" if is_cross else "x"
    if is_cross:
        w.input("context", outer.replace("n", "m"))
    tensors = w.one_of(*TENSORS)
    inner, layouts = heads(w, is_grouped)
    mask = mask_input(w, is_cross, layouts)
    if is_first:
        for name in dict.fromkeys(("x", context)):
            w.row(name, "b n c" if name == "x" else "b m c", f"{name}.transpose(0, 1)")
    w.lines += ["b, n, _ = x.shape", f"m = {context}.shape[1]"]
    project = w.one_of(
        separate, *[pair] * is_cross, *[fused, *[stacked] * (not is_grouped)] * (not is_cross)
    )
    if inner == ("hd", "hd") and w.draw(st.booleans()):
        project = parameters
    project(w, context, tensors, inner, layouts)
    if layouts[:2] == ("b h n d", "b k m d"):
        for name in tensors[1:]:
            w.row(name, "b h m d", f"{name}.repeat_interleave(self.group, dim=1)")
        layouts = layouts[0], "b h m d", "b h m d"
    if set(layouts) == {"b h n d", "b h m d"} and w.draw(st.booleans()):
        value, layout = kernel(w, tensors, mask), "b h n d"
    else:
        value, layout = product_of_weights(w, tensors, layouts, mask)
    output(w, value, layout, inner[0], is_first)


def mask_input(w: Writer, is_cross: bool, layouts: tuple[str, str, str]) -> str | None:
    """Draw a kind of mask or bias, and add its input."""
    layout_of = {"keys": "b m", "added": "n m", "bias": "h n m"}
    has_heads = layouts[0] in APART
    kind = w.one_of(None, "keys", "added", *["bias"] * has_heads, *["causal"] * (not is_cross))
    if kind in layout_of:
        w.input("mask", layout_of[kind], "@bool" * (kind == "keys"))
    return kind


def heads(w: Writer, is_grouped: bool) -> tuple[tuple[str, str], tuple[str, str, str]]:
    """Draw the order of heads in the projections of queries and of keys, and the three layouts."""
    if is_grouped:
        if w.draw(st.booleans()):
            return ("kgd", "kd"), ("b k g n d", "b k m d", "b k m d")
        return ("hd", "kd"), ("b h n d", "b k m d", "b k m d")
    order = w.one_of("hd", "dh")
    one = w.one_of(*APART, *FOLDED)
    others = [w.one_of(one, *APART) if one in APART else one for _ in range(2)]
    return (order, order), (one, *(each.replace("n", "m") for each in others))


def separate(w, context, tensors, inner, layouts):
    """Project queries, keys and values each by a linear layer."""
    sources = ("x", "n", inner[0]), (context, "m", inner[1]), (context, "m", inner[1])
    for name, (source, length, width), layout in zip(tensors, sources, layouts, strict=True):
        value = f"{w.linear(f'to_{name}', 'c', width)}({source})"
        if w.draw(st.booleans()):
            value = w.row(name, f"b {length} {width}", value)
        w.arrange(name, value, f"b {length} {width}", layout)


def pair(w, context, tensors, inner, layouts):
    """Project queries by a linear layer, and keys and values by another."""
    q, k, v = tensors
    w.arrange(q, f"{w.linear('to_q', 'c', inner[0])}(x)", f"b n {inner[0]}", layouts[0])
    w.lines.append(f"{k}, {v} = {w.linear('to_kv', 'c', f'2{inner[1]}')}(context).chunk(2, dim=-1)")
    arrange_all(w, (k, v), [f"b m {inner[1]}"] * 2, layouts[1:])


def fused(w, context, tensors, inner, layouts):
    """Project to queries, keys and values by one linear layer, and cut its output in three."""
    sizes = [w.size(each) for each in (inner[0], inner[1], inner[1])]
    bias = w.one_of("", ", bias=False")
    w.parts.append(f"self.to_qkv = nn.Linear({w.size('c')}, {' + '.join(sizes)}{bias})")
    cut = f"split([{', '.join(sizes)}], dim=-1)"
    cut = w.one_of("chunk(3, dim=-1)", cut) if inner[0] == inner[1] else cut
    w.lines.append(f"{', '.join(tensors)} = self.to_qkv(x).{cut}")
    arrange_all(w, tensors, [f"b n {inner[0]}", *[f"b m {inner[1]}"] * 2], layouts)


def stacked(w, context, tensors, inner, layouts):
    """Project to queries, keys and values by one linear layer, and view its output with an axis of three."""
    one, other = inner[0]
    order = w.one_of(f"3 {one} {other}", f"{one} 3 {other}", f"{one} {other} 3")
    together, apart = order.replace(" ", ""), f"b n {order}"
    w.row("qkv", f"b n {together}", f"{w.linear('to_qkv', 'c', together)}(x)")
    w.row("qkv", apart, f"qkv.view({w.view(apart)})")
    axes = apart.split()
    if w.draw(st.booleans()):
        one = w.one_of(*APART)
        order = ", ".join(str(axes.index(each)) for each in ["3", *one.split()])
        w.lines.append(f"{', '.join(tensors)} = qkv.permute({order})")
    else:
        one = apart.replace(" 3", "")
        w.lines.append(f"{', '.join(tensors)} = qkv.unbind({axes.index('3')})")
    arrange_all(w, tensors, [one, *[one.replace("n", "m")] * 2], layouts)


def arrange_all(w, tensors, before, layouts):
    """Add tensors that one line assigned, and give each its layout."""
    for name, layout in zip(tensors, before, strict=True):
        w.row(name, layout)
    for name, old, new in zip(tensors, before, layouts, strict=True):
        w.arrange(name, name, old, new)


def parameters(w, context, tensors, inner, layouts):
    """Project by parameters that have an axis of heads."""
    for name, source, layout in zip(tensors, ("x", context, context), layouts, strict=True):
        length = "n" if name == tensors[0] else "m"
        apart = layout if all(len(axis) == 1 for axis in layout.split()) else f"b h {length} d"
        equation = f"b{length}c,chd->{apart.replace(' ', '')}"
        w.row(name, apart, f"torch.einsum('{equation}', {source}, {w.weight(f'w_{name}', 'c h d')})")
        w.arrange(name, name, apart, layout)


def kernel(w, tensors, mask):
    """Call PyTorch's attention for heads in the second axis."""
    shown = {None: "", "keys": ", attn_mask=mask[:, None, None, :]", "causal": ", is_causal=True"}
    return f"F.scaled_dot_product_attention({', '.join(tensors)}{shown.get(mask, ', attn_mask=mask')})"


def product_of_weights(w, tensors, layouts, mask):
    """Compute attention weights and their product with the values; return this and its layout."""
    q, k, v = tensors
    before, also, last = layouts
    is_apart = before in APART
    lead = " ".join(before.split()[:-2])
    layouts_of_heads = ["b h n m", "h b n m", *["b n h m", "b n m h"] * (mask != "bias")]
    layout = w.one_of(*layouts_of_heads) if is_apart else f"{lead} n m"
    scale = w.one_of("queries", "product", "scores", "both")
    factor = w.one_of("self.d ** -0.5", "(1 / math.sqrt(self.d))")
    if scale == "queries":
        w.row(q, before, f"{q} * {factor}")
    if scale == "both":
        w.row(q, before, f"{q} * self.d ** -0.25")
        w.row(k, also, f"{k} * self.d ** -0.25")
    value = w.product(q, before, k, also, layout)
    p = w.one_of("scores", "attn", "sim")
    w.row(p, layout, f"{value} * {factor}" if scale == "product" else value)
    if scale == "scores":
        w.row(p, layout, f"{p} / math.sqrt(self.d)")
    if mask is not None:
        masked(w, p, layout, mask)
    softmax(w, p, layout, p := w.one_of("attn", "weights", "p"))
    result = w.one_of(*APART) if is_apart else f"{lead} n d"
    return w.product(p, layout, v, last, result), result


def masked(w, scores, layout, mask):
    """Mask scores: some keys of each batch, later keys, or by a sum."""
    axes = layout.split()
    if mask == "causal":
        w.row("mask", "n m", "torch.ones(n, m, dtype=torch.bool).tril()")
    shown = {"keys": ("b", "m"), "bias": ("h", "n", "m")}.get(mask, ("n", "m"))
    if mask == "keys" and axes[0] in ("bh", "hb"):
        repeat = "repeat_interleave(self.heads, dim=0)" if axes[0] == "bh" else "repeat(self.heads, 1)"
        w.row("mask", f"{axes[0]} m", f"mask.{repeat}")
        shown = axes[0], "m"
    index = ", ".join(":" if axis in shown else "None" for axis in axes)
    masks = {"added": "{} + mask[{}]", "bias": "{} + mask[{}]"}
    w.row(scores, layout, masks.get(mask, "{}.masked_fill(~mask[{}], -1e9)").format(scores, index))


def softmax(w, scores, layout, name):
    """Normalize scores over the keys, and drop some weights out."""
    place = layout.split().index("m")
    dim = w.one_of(place, place - len(layout.split()))
    call = w.one_of(
        "{}.softmax({})", "{}.softmax(dim={})", "F.softmax({}, dim={})", "torch.softmax({}, dim={})"
    )
    w.row(name, layout, call.format(scores, dim))
    if w.draw(st.booleans()):
        w.parts.append("self.dropout = nn.Dropout(0.1)")
        w.row(name, layout, f"self.dropout({name})")


def output(w, value, layout, inner, is_first):
    """Merge the heads, and project."""
    if w.draw(st.booleans()):
        value = w.row("y", layout, value)
    w.arrange("y", value, layout, f"b n {inner}")
    projected = f"{w.linear('to_out', inner, 'c')}(y)"
    if is_first:
        projected = f"{projected}.transpose(0, 1)"
    result = "n b c" if is_first else "b n c"
    if w.draw(st.booleans()):
        w.row("return", result, projected)
    else:
        w.row("y", result, projected)
        w.lines.append("return y")
