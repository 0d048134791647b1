"""The meta device without torch's compiler, in processes of their own: what is imported stays imported."""

import subprocess
import sys
from textwrap import dedent

import pytest

HEAD = """
import sys
import torch
import torch.nn.functional as F
from attnscope.observe.torch_internals.compiler import without_compiler

COMPILER = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "sympy", "torch._inductor")

def loaded():
    return [name for name in COMPILER if name in sys.modules]

def attend():
    with torch.device("meta"):
        x = torch.randn(2, 3, 8)
        lin = torch.nn.Linear(8, 24)
        q, k, v = lin(x).chunk(3, -1)
        scores = (q @ k.mT / 8 ** 0.5).masked_fill(torch.ones(3, 3).triu(1) > 0, -1e9)
        attention = F.dropout(scores.softmax(-1), 0.1)
        x = torch.einsum("bqk,bkd->bqd", attention, v)
        x = x.reshape(2, 3, 2, 4).permute(0, 2, 1, 3).contiguous()
        x = F.layer_norm(x, (4,)).repeat_interleave(3, dim=1)
        x = torch.cat([x, x], dim=-1)[..., ::2]
        y = F.scaled_dot_product_attention(x, x, x)
        return torch.where(y > 0, y, torch.zeros(())).flatten(1)
"""


def ran(code):
    """What a process prints that runs the code."""
    result = subprocess.run(
        [sys.executable, "-c", HEAD + dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.sweep
def test_operators_on_meta_import_no_compiler():
    out = ran("""
        assert loaded() == []
        with without_compiler():
            y = attend()
        assert loaded() == [], loaded()
        try:  # it may be nested, and left by an exception
            with without_compiler(), without_compiler():
                attend()
                raise KeyError
        except KeyError:
            pass
        assert loaded() == [], loaded()
        print(tuple(y.shape), y.device)
    """)
    assert out == "(2, 72) meta\n"


@pytest.mark.sweep
def test_without_it_they_do():
    """Else all of this would be for nothing."""
    assert "torch._dynamo" in ran("attend()\nprint(loaded())")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(True, id="after runs on meta", marks=pytest.mark.sweep),
        pytest.param(False, id="between them", marks=pytest.mark.sweep),
    ],
)
def test_the_compiler_works_afterwards(before):
    out = ran(f"""
        with without_compiler():
            attend()
        assert loaded() == []
        import torch._dynamo

        def f(x, n):
            for _ in range(n):
                x = torch.sin(x) @ x.mT
            return x

        x = torch.randn(5, 5)
        compiled = torch.compile(f, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x, 3), f(x, 3))
        count = torch._dynamo.utils.counters["stats"]["calls_captured"]
        assert count > 0
        if not {before}:
            with without_compiler():
                attend()
            assert sys.modules["torch._dynamo"] is torch._dynamo
            assert torch.equal(compiled(x, 2), f(x, 2))
        print("works")
    """)
    assert out == "works\n"


@pytest.mark.sweep
def test_whoever_asks_for_more_gets_the_compiler_itself():
    out = ran("""
        with without_compiler():
            import torch._dynamo
            torch._dynamo.reset()
            x = torch.arange(6.0)
            assert torch.equal(torch.compile(torch.sin, backend="eager")(x), x.sin())
            from torch.fx.experimental.symbolic_shapes import ShapeEnv
            assert ShapeEnv.__module__ == "torch.fx.experimental.symbolic_shapes"
        assert type(sys.modules["torch._dynamo"]).__name__ == "module"
        assert sys.modules["torch._dynamo"].disable.__module__.startswith("torch._dynamo")
        print("works")
    """)
    assert out == "works\n"


@pytest.mark.sweep
def test_a_trace_on_meta_imports_no_compiler(tmp_path):
    path = tmp_path / "on_meta.py"
    path.write_text(
        "import torch\n\ndef f(Q, K):\n    scores = Q @ K.mT\n    attention = scores.softmax(-1)\n    y = attention.contiguous()\n",
        encoding="utf-8",
    )
    out = ran(f"""
        from attnscope.cli.app import main
        status = main(["trace", "{path}:f", "--device", "meta", "--input", "Q=n:5,d:4", "--input", "K=m:7,d"])
        print(status, loaded())
    """)
    assert out.endswith("0 []\n")
