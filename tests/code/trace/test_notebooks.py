"""Functions that are defined at a prompt: in cells of IPython, and of other kernels."""

import ast
import atexit
import gc
import linecache
import sys
from textwrap import dedent

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import attnscope
from attnscope.base.errors import SourceError

Q, K, V = torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(2, 5, 6)


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """Return a function that runs a cell in a new IPython and returns what its last line evaluates to."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config, user_ns={"attnscope": attnscope, "q": Q, "k": K, "v": V})

    def run(source: str):
        result = shell.run_cell(dedent(source), store_history=True)
        result.raise_error()
        return result.result

    yield run
    shell.atexit_operations()
    atexit.unregister(shell.atexit_operations)


def names(trace):
    return [step.name for step in trace.steps]


ATTEND = """
    import math

    def attend(q, k, v):
        scores = q @ k.mT / math.sqrt(q.size(-1))
        weights = scores.softmax(-1)
        return weights @ v
"""


def test_a_cell_may_import_the_module_that_its_function_uses(cell):
    cell(ATTEND)
    trace = cell("attnscope.inspect(attend, q, k, v, source=True)")
    assert names(trace) == ["q", "k", "v", "scores", "weights", "return"]
    assert trace["scores"].dims == ("n_batch", "n_Q", "n_K")
    assert trace["scores"].line == 4
    assert trace.source[0].text.startswith("def attend(q, k, v):\n    scores = q @ k.mT")
    assert trace.findings == []


def test_a_cell_may_trace_what_it_defines(cell):
    assert names(cell(ATTEND + "    attnscope.trace_call(attend, q, k, v)"))[3:] == [
        "scores",
        "weights",
        "return",
    ]


def test_a_cell_may_define_a_module_and_helpers(cell):
    cell("""
        import torch.nn.functional as F
        from torch import nn

        def split(x, n_head):
            parts = x.unflatten(-1, (n_head, -1))
            return parts.transpose(1, 2)

        class Attention(nn.Module):
            def __init__(self, d_feat, n_head):
                super().__init__()
                self.n_head = n_head
                self.to_q = nn.Linear(d_feat, d_feat)

            def forward(self, x):
                heads = split(self.to_q(x), self.n_head)
                weights = F.softmax(heads @ heads.mT, -1)
                return weights @ heads
        """)
    trace = cell(
        "attnscope.inspect(Attention, init={'d_feat': 8, 'n_head': 2}, inputs={'x': 'b:3,n:5,d_feat'})"
    )
    assert trace["parts"].dims == ("b", "n", "n_head", "d_feat/n_head")
    assert trace["weights"].dims == ("b", "n_head", "n", "n")


def test_a_cell_that_ran_again_is_traced(cell):
    for _ in range(2):
        cell(ATTEND)
        assert "weights" in names(cell("attnscope.trace_call(attend, q, k, v)"))


def test_a_cell_inherits_the_flags_of_those_before_it(cell):
    cell("from __future__ import annotations\n")
    cell("""
        import math

        def attend(q, k, v):
            def weigh(scores: Undefined) -> Undefined:
                weights = scores.softmax(-1)
                return weights
            return weigh(q @ k.mT / math.sqrt(4)) @ v
        """)
    assert "weights" in names(cell("attnscope.trace_call(attend, q, k, v)"))


def test_a_cell_may_await_and_have_magics(cell):
    cell("import asyncio\nimport math\nawait asyncio.sleep(0)\n%env X=1\n" + dedent(ATTEND))
    assert "weights" in names(cell("attnscope.trace_call(attend, q, k, v)"))


def test_what_fails_in_a_cell_is_located(cell):
    cell("import torch\n\ndef attend(q, k):\n    return torch.softmax(q @ k, -1)\n")
    crash = cell("attnscope.inspect(attend, q, k)").crash
    assert (crash.line, crash.expression) == (4, "q @ k")


@pytest.mark.parametrize("piecewise", [False, True])
def test_other_kernels_need_only_tell_python_the_source(monkeypatch, piecewise):
    name, text, namespace = "/tmp/kernel_1/2.py", dedent(ATTEND), {}
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
    tree = ast.parse(text)
    for part in [ast.Module([each], []) for each in tree.body] if piecewise else [tree]:
        exec(compile(part, name, "exec"), namespace)
    assert "weights" in names(attnscope.trace_call(namespace["attend"], Q, K, V))


def test_a_source_that_is_another_is_refused_without_blame(monkeypatch):
    name, text, namespace = "/tmp/kernel_1/3.py", "def attend(x):\n    return x + 1\n", {}
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
    exec(compile(text.replace("+", "-"), name, "exec"), namespace)
    with pytest.raises(SourceError, match=r"does not match its source in /tmp/kernel_1/3\.py"):
        attnscope.trace_call(namespace["attend"], Q)


# Objects that `gc.freeze()` hides from Python's garbage collector.

FROZEN = """
    import functools

    def loud(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args)
        return wrapper

    def make():
        def inner(x):
            made = x * 2
            return made
        return inner

    made_by = {"make": [make()]}

    @loud
    def helper(x):
        helped = x + 1
        return helped

    class Attention:
        @staticmethod
        def split(x):
            halves = x.chunk(2)
            return halves

        @property
        def width(self):
            wide = torch.ones(3)
            return wide

        def __call__(self, x):
            split = self.split(helper(x))
            return made_by["make"][0](split[0]) + self.width

    attention = Attention()
"""


def test_functions_are_found_after_gc_freeze(module_of):
    module = module_of("    import torch\n" + FROZEN)
    rows = names(attnscope.trace_call(module.attention, torch.ones(2, 3)))
    assert {"helped", "halves[0]", "split[0]", "made", "wide"} <= {*rows}
    listed = gc.get_objects
    frozen = {id(each) for each in listed()}
    with pytest.MonkeyPatch.context() as patch:  # to freeze them would hide them from other tests
        patch.setattr(gc, "get_objects", lambda: [each for each in listed() if id(each) not in frozen])
        assert gc.get_freeze_count()
        assert names(attnscope.trace_call(module.attention, torch.ones(2, 3))) == rows


def test_a_cell_cannot_be_annotated_and_the_error_says_that_it_is_a_cell(cell):
    trace = cell("""
        def f(x):
            y = x.softmax(-1)
            return y

        attnscope.inspect(f, q)
        """)
    for change in (attnscope.annotate, attnscope.check_comments):
        with pytest.raises(SourceError, match="the code of f is in a cell of a notebook, not in a file"):
            change(trace)
