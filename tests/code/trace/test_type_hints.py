"""Annotations of jaxtyping: written for what ran, changing nothing else, and true when they are checked."""

import ast
import importlib.util
import linecache
import sys
import typing

import jaxtyping
import pytest
import torch

import attnscope
from attnscope.base.errors import OptionError
from attnscope.code.trace.comments.type_hints import hint_source
from attnscope.observe.trace import Step

MINE = '''"""Mine."""
import torch
from torch import nn


def weigh(q, k, *, mask=None):
    scores = q @ k.mT
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1)


class Attention(nn.Module):
    def __init__(self, d_feat, n_head):
        super().__init__()
        self.n_head = n_head
        self.to_q, self.to_k, self.to_v = (nn.Linear(d_feat, d_feat) for _ in range(3))

    def split(self, x, twice=False):
        b, n, d = x.shape
        return x.view(b, n, self.n_head, d // self.n_head).transpose(1, 2)

    def forward(self, x: torch.Tensor, context: "torch.Tensor" = None, mask: torch.Tensor | None=None):
        q = self.split(self.to_q(x))
        k, v = self.split(self.to_k(context)), self.split(self.to_v(context))
        weights = weigh(q, k, mask=mask)
        return weights @ v, weights
'''
EXPECTED = {
    "def weigh(": 'def weigh(q: Float[torch.Tensor, "b n_head n d_head"], k: Float[torch.Tensor, "b n_head m d_head"],'
    ' *, mask: Float[torch.Tensor, "n m"] | None = None) -> Float[torch.Tensor, "b n_head n m"]:',
    "def split(": 'def split(self, x: Float[torch.Tensor, "b n d_feat"] | Float[torch.Tensor, "b m d_feat"], twice=False)'
    ' -> Float[torch.Tensor, "b n_head n d_head"] | Float[torch.Tensor, "b n_head m d_head"]:',
    "def forward(": 'def forward(self, x: Float[torch.Tensor, "b n d_feat"], context: Float[torch.Tensor, "b m d_feat"] = None,'
    ' mask: Float[torch.Tensor, "n m"] | None=None)'
    ' -> tuple[Float[torch.Tensor, "b n_head n d_head"], Float[torch.Tensor, "b n_head n m"]]:',
    "from jaxtyping": "from jaxtyping import Float",
}  # fmt: skip
CALL = {
    "init": {"d_feat": 12, "n_head": 3},
    "inputs": {"x": "b:2,n:4,d_feat", "context": "b,m:5,d_feat", "mask": "n,m"},
    "where": ["d_feat=n_head*d_head"],
}
ARGUMENTS = [
    *("--init", "d_feat=12", "--init", "n_head=3", "--where", "d_feat=n_head*d_head"),
    *("--input", "x=b:2,n:4,d_feat", "--input", "context=b,m:5,d_feat", "--input", "mask=n,m"),
]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine_to_hint.py"
    path.write_text(MINE)
    forget(path)
    yield path
    forget(path)


def loaded(path):
    spec = importlib.util.spec_from_file_location("hinted", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forget(path):
    """Make Python import a file anew, as another process would."""
    sys.modules.pop(path.stem, None)
    linecache.checkcache(str(path))


def test_functions_that_ran_get_annotations_and_the_imports_for_them(mine):
    trace = attnscope.inspect(f"{mine}:Attention", **CALL)
    annotation = attnscope.annotate(trace, "jaxtyping")
    before, after = MINE.splitlines(), annotation.new.decode().splitlines()
    assert [line.strip() for line in after if line not in before] == [
        EXPECTED[key] for key in ("from jaxtyping", "def weigh(", "def split(", "def forward(")
    ]
    assert after[:4] == [*before[:3], "from jaxtyping import Float"]
    assert annotation.changed_lines == 4


def test_the_annotated_file_runs_and_its_annotations_are_true(mine):
    trace = attnscope.inspect(f"{mine}:Attention", **CALL)
    attnscope.annotate(trace, "jaxtyping").write()
    module = loaded(mine)
    attention = module.Attention(12, 3)
    x, context, mask = torch.ones(2, 4, 12), torch.ones(2, 5, 12), torch.ones(4, 5)
    out = attention(x, context, mask)
    hints = typing.get_type_hints(module.Attention.forward)
    with jaxtyping.jaxtyped("context"):
        assert isinstance(x, hints["x"])
        assert isinstance(context, hints["context"])
        assert not isinstance(torch.ones(2, 5, 13), hints["context"])
        assert isinstance(mask, hints["mask"])
        assert all(map(isinstance, out, typing.get_args(hints["return"])))


@pytest.mark.sweep
def test_a_second_time_nothing_changes_and_the_check_holds(mine, attnscope):
    run = ["trace", "mine_to_hint.py:Attention", *ARGUMENTS]
    r = attnscope(*run, "--annotate=jaxtyping", "--write")
    assert (r.exit_status, r.err) == (0, "attnscope: wrote the axes into 4 lines of mine_to_hint.py\n")
    for option in ("--annotate", "--check"):  # the file is imported again, because it has changed
        r = attnscope(*run, option)
        assert (r.exit_status, "has changed since it was imported" in r.err) == (0, False)
    r = attnscope(*run, "--annotate=jaxtyping")
    assert (r.exit_status, r.out, r.err) == (
        0,
        "",
        "attnscope: mine_to_hint.py says all of it already\n",
    )
    assert attnscope(*run, "--check", "-f", "json").json["checks"][-1]["note"] == "11 true"


def test_annotate_alone_means_comments(mine, attnscope):
    run = ["trace", "--annotate", "mine_to_hint.py:Attention", *ARGUMENTS]
    r = attnscope(*run)
    assert "+        weights = weigh(q, k, mask=mask)  # [b, n_head, n, m]" in r.out
    assert r.out == attnscope(*run, "--annotate=comments").out
    r = attnscope("trace", "mine_to_hint.py:Attention", *ARGUMENTS, "--annotate=numpy")
    assert (r.exit_status, "numpy" in r.err) == (2, True)


# In detail.


def step(name, line, *dims, how="f(x)", dtype="float32") -> Step:
    return Step(name, dims, (2,) * len(dims), dtype, how, 0, line=line)


def argument(name, *dims, line=1, **more) -> Step:
    return step(name, line, *dims, how="input", **more)


IMPORTED = "from torch import Tensor\nfrom jaxtyping import {}\n"


@pytest.mark.parametrize(
    ("text", "steps", "expected"),
    [
        ("def f(x): return x\n", [argument("x", "n")], 'def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]: return x\n'),
        ("def f(x=None, *a, y, **k):\n    pass\n", [argument("x", "b", "n"), argument("y", "b")], 'def f(x: Float[Tensor, "b n"] | None = None, *a, y: Float[Tensor, " b"], **k):\n    pass\n'),
        ("def f(x = (None)):\n    pass\n", [argument("x", "b", "n")], 'def f(x: Float[Tensor, "b n"] | None = (None)):\n    pass\n'),
        ("def f(x, y):\n    return x + y\n", [argument("x", "b", "n*h"), argument("y", "b", "n"), step("return", 2, "b", "n*h")],
         'def f(x: Float[Tensor, "b n_h"], y: Float[Tensor, "b n"]) -> Float[Tensor, "b n_h"]:\n    return x + y\n'),
        ("def f(x, y):\n    pass\n", [argument("x", "n_Q", "n_K"), argument("y", "n_Q·n_K", "n_Q/n_K", "2·n_Q-1", "3", "n_past+n_new")],
         'def f(x: Float[Tensor, "n_Q n_K"], y: Float[Tensor, "n_Q*n_K n_Q//n_K 2*n_Q-1 3 n_past_plus_n_new"]):\n    pass\n'),
        ("def f(x, *, y=2):\n    z = [x]\n    return z\n", [argument("x", "n"), step("z[0]", 2, "n")], 'def f(x: Float[Tensor, " n"], *, y=2):\n    z = [x]\n    return z\n'),
        ("def f(x):\n    if x:\n        return x\n    return g(x)\n", [argument("x", "n"), step("return", 4, "n")], 'def f(x: Float[Tensor, " n"]):\n    if x:\n        return x\n    return g(x)\n'),
        ("def f(x):\n    yield x\n", [argument("x", "n")], 'def f(x: Float[Tensor, " n"]):\n    yield x\n'),
        ("def f(\n    x,  # ü\n    y='ü)',\n):\n    return x\n", [argument("x", "n")], 'def f(\n    x: Float[Tensor, " n"],  # ü\n    y=\'ü)\',\n) -> Float[Tensor, " n"]:\n    return x\n'),
        ("def f(ü='ü', x=1):\n    pass\n", [argument("x", "n")], 'def f(ü=\'ü\', x: Float[Tensor, " n"] = 1):\n    pass\n'),
        ("def f(x: Optional[Tensor], y: int, z: 'Tensor', w: Tensor[1]) -> Tensor:\n    return x\n", [argument(n, "n") for n in "xyzw"],
         'def f(x: Optional[Float[Tensor, " n"]], y: int, z: Float[Tensor, " n"], w: Tensor[1]) -> Float[Tensor, " n"]:\n    return x\n'),
        ("def f(x) -> Tuple[Tensor, int]:\n    return x, g(x)\n", [argument("x", "n"), step("return[1]", 2, "n")], 'def f(x: Float[Tensor, " n"]) -> Tuple[Float[Tensor, " n"], int]:\n    return x, g(x)\n'),
    ],
)  # fmt: skip
def test_annotations_are_put_where_python_has_them(text, steps, expected):
    uses_tensor = "Tensor" in text
    text, expected = (
        IMPORTED.format("Float") + each if uses_tensor else each for each in (text, expected)
    )
    steps = [Step(**{**vars(each), "line": each.line + 2 * uses_tensor}) for each in steps]
    new = hint_source(text, steps)
    assert new == (expected if uses_tensor else IMPORTED.format("Float") + expected)
    ast.parse(new)
    steps = [Step(**{**vars(each), "line": each.line + 2 * (not uses_tensor)}) for each in steps]
    assert hint_source(new, steps) == new


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float16", "Float"), ("bfloat16", "Float"), ("float8_e4m3fn", "Float"), ("bool", "Bool"), ("int64", "Int"), ("uint8", "UInt"), ("complex64", "Complex"), ("qint8", "Shaped")],
)  # fmt: skip
def test_the_type_is_that_of_the_dtype(dtype, kind):
    new = hint_source("def f(x):\n    pass\n", [argument("x", "n", "m", dtype=dtype)])
    assert new == IMPORTED.format(kind) + f'def f(x: {kind}[Tensor, "n m"]):\n    pass\n'
    assert hasattr(jaxtyping, kind)


@pytest.mark.parametrize(
    ("head", "type", "added"),
    [
        ("import torch\n", "Float[torch.Tensor, ", "from jaxtyping import Float\n"),
        ("import torch as th\n\nX = 1\n", "Float[th.Tensor, ", "from jaxtyping import Float\n"),
        ("from torch import Tensor, nn\nimport jaxtyping as jt\n", "jt.Float[Tensor, ", ""),
        ("from torch import Tensor as T\nfrom jaxtyping import Float, Int\n", "Float[T, ", ""),
        ("import torch\nFloat = float\n", "jaxtyping.Float[torch.Tensor, ", "import jaxtyping\n"),
        ("class Tensor:\n    pass\n", "Float[torch.Tensor, ", "import torch\nfrom jaxtyping import Float\n"),
        ('"""Doc."""\nfrom __future__ import annotations\n', "Float[Tensor, ", IMPORTED.format("Float")),
        ("#!/usr/bin/python\n# ü\n@d\n", "Float[Tensor, ", IMPORTED.format("Float")),
        ("import torch\r\n", "Float[torch.Tensor, ", "from jaxtyping import Float\r\n"),
        ('"""Doc."""\n', "Float[Tensor, ", IMPORTED.format("Float")),
    ],
)  # fmt: skip
def test_imports_are_those_that_are_missing(head, type, added):
    text = head + "def f(x):\n    pass\n"
    line = text.count("\n") - 1
    new = hint_source(text, [argument("x", "n", "m", line=line)])
    assert f'def f(x: {type}"n m"]):' in new
    ast.parse(new)
    assert added in new
    assert len(new) == len(text) + len(added) + len(f': {type}"n m"]')
    assert sorted(new.splitlines()[:-2]) == sorted(text.splitlines()[:-2] + added.splitlines())


def test_what_is_not_known_in_each_call_gets_no_annotation():
    text = "def f(x):\n    y = g(x)\n    return y\n"
    two = [argument("x", "n", "m"), argument("x", "m", "n")]
    assert hint_source(text, [*two, argument("x", "m", "m")]) == text
    assert hint_source(text, [argument("x", "n"), argument("x", "n", dtype="int64")]) == text
    assert hint_source(text, [Step("x", None, (2,), "float32", "input", 0, line=1)]) == text
    assert hint_source(text, [argument("x[0]", "n")]) == text
    assert hint_source(text, []) == text
    assert "->" not in hint_source(text, [argument("x", "n"), step("y", 2, "n"), argument("x", "n")])
    assert "->" in hint_source(text, [argument("x", "n"), step("y", 2, "n")] * 2)


def test_an_unknown_style_is_refused_in_python_too(mine):
    trace = attnscope.inspect(f"{mine}:Attention", **CALL)
    with pytest.raises(OptionError, match="style is 'numpy', but takes 'comments' or 'jaxtyping'"):
        attnscope.annotate(trace, "numpy")
