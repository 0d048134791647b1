"""Code that fails only when it is traced is not blamed, and a mistake of ours does not reach it."""

import random
import sys

import pytest
import torch

import attnscope
from attnscope.cli.app import main
from attnscope.observe.diagnose.findings import Watcher

SOURCE = """
import random
import torch
from torch import nn
from torch.utils import _python_dispatch


DRAWN = []


class FailsUnderModes(nn.Module):
    def __init__(self, d_feat):
        super().__init__()
        self.lin = nn.Linear(d_feat, d_feat)
        self.fixed = random.random()

    def forward(self, x):
        q = self.lin(x)
        if _python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("there is a mode")
        return q @ x.mT


class FailsDifferentlyUnderModes(nn.Module):
    def forward(self, x):
        y = x * 2
        if _python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("there is a mode")
        return x @ y


class FailsAtRandom(nn.Module):
    def forward(self, x):
        y = x * 2
        DRAWN.append((x.shape, random.random(), torch.rand(()).item()))
        raise ValueError("unlucky")


class ChangesItsArguments(nn.Module):
    def forward(self, x):
        y = x @ x.mT
        if x[0, 0, 0] > 0:
            x.neg_()
            raise ValueError("positive")
        return y


class ReadsAnIterator(nn.Module):
    def forward(self, x, rows):
        y = x * next(rows)
        if _python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("there is a mode")
        return y


def attention(q):
    scores = q @ q.mT / q.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    out = weights @ q
    return out


def wrong_attention(q):
    out = attention(q)
    return out @ q


def endless(x):
    y = x * 2
    return endless(y)
"""


@pytest.fixture
def mine(module_of):
    return module_of(SOURCE)


MESSAGE = "tracing failed, but the code itself runs: RuntimeError: there is a mode (line 20 of"


def test_what_fails_only_when_traced_is_said_to(mine):
    trace = attnscope.inspect(mine.FailsUnderModes, init={"d_feat": 6}, inputs=["x=b:3,l:4,d_feat"])
    assert trace.crash is None
    assert trace.tracing_error.startswith("RuntimeError: there is a mode (line 20 of ")
    assert [step.name for step in trace.steps] == ["x", "q"]
    assert trace.notices[-1].startswith(MESSAGE)
    assert trace.to_dict()["tracing_error"] == trace.tracing_error


@pytest.mark.usefixtures("with_torch")
def test_the_status_is_2_and_the_rows_until_then_are_shown(mine, capsys):
    target = f"{mine.__file__}:FailsUnderModes"
    assert main(["trace", target, "--init", "d_feat=6", "--input", "x=b:3,l:4,d_feat"]) == 2
    printed = capsys.readouterr()
    assert "self.lin(x)" in printed.out
    assert "✗" not in printed.out
    assert MESSAGE in printed.err.replace("\n", " ")


def test_a_live_module_is_not_blamed_either(mine):
    module = mine.FailsUnderModes(6)
    trace = attnscope.inspect(module, torch.ones(3, 4, 6))
    assert (trace.crash, trace.tracing_error is None) == (None, False)


def test_of_two_failures_the_one_without_tracing_is_explained(mine):
    trace = attnscope.inspect(mine.FailsDifferentlyUnderModes, inputs=["x=b:3,l:4,d:6"])
    assert trace.tracing_error is None
    assert trace.crash.expression == "x @ y"
    assert [operand.shape for operand in trace.crash.operands] == [(3, 4, 6), (3, 4, 6)]
    assert "axis 2 of x (d 6)" in trace.crash.disagreement


@pytest.mark.parametrize("live", [False, True])
def test_the_second_run_draws_the_same_numbers(mine, live):
    before = random.getstate(), torch.get_rng_state()
    if live:
        trace = attnscope.inspect(mine.FailsAtRandom(), torch.ones(3, 4))
    else:
        trace = attnscope.inspect(mine.FailsAtRandom, inputs=["x=b:3,l:4"])
    assert "unlucky" in trace.crash.error
    traced, untraced = [drawn for shape, *drawn in mine.DRAWN if shape == (3, 4)]
    assert traced == untraced
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_call_that_changes_the_callers_arguments_is_not_repeated(mine):
    x = torch.ones(2, 3, 3)
    trace = attnscope.inspect(mine.ChangesItsArguments(), x)
    assert (trace.crash.error, trace.tracing_error) == ("ValueError: positive", None)
    assert x[0, 0, 0] == -1


def test_nor_is_one_that_may_have_consumed_them(mine):
    rows = iter([1, 2])
    trace = attnscope.inspect(mine.ReadsAnIterator(), torch.ones(3, 4), rows)
    assert (trace.crash.error, trace.tracing_error) == ("RuntimeError: there is a mode", None)
    assert next(rows) == 2


def test_endless_recursion_is_the_codes_failure_even_if_the_recording_meets_it_first(mine, monkeypatch):
    def operator(self, *args):
        raise RecursionError

    monkeypatch.setattr(Watcher, "operator", operator)
    trace = attnscope.inspect(mine.endless, torch.ones(2))
    assert trace.crash.error.startswith("RecursionError: maximum recursion depth exceeded")
    assert (trace.tracing_error, trace.notices) == (None, [])


class TestMistakesOfOurs:
    """An exception in the recording ends the recording, and the program goes on."""

    @pytest.fixture(autouse=True)
    def mistake(self, monkeypatch):
        count = 0

        def operator(self, *args):
            nonlocal count
            count += 1
            if count > 3:
                raise ZeroDivisionError("ours")

        monkeypatch.setattr(Watcher, "operator", operator)

    def test_a_traced_call_returns_what_it_returns(self, mine):
        q = torch.randn(3, 4)
        with attnscope.trace(mine.attention) as trace:
            out = mine.attention(q)
        assert torch.equal(out, (q @ q.mT / 2).softmax(-1) @ q)
        assert trace.tracing_error.startswith("ZeroDivisionError: ours")
        assert trace.notices == [
            f"tracing failed, but the code itself runs: {trace.tracing_error}; the rows end there"
        ]
        assert 1 <= len(trace.steps) < 5
        with attnscope.trace(mine.attention) as again:
            mine.attention(q)
        assert again.tracing_error

    def test_inspect_returns_the_rows_until_then(self, mine):
        trace = attnscope.inspect(mine.attention, inputs=["q=l:4,d:6"])
        assert trace.tracing_error.startswith("ZeroDivisionError: ours")
        assert trace.crash is None

    def test_code_that_fails_too_is_blamed_and_the_rows_end_before(self, mine):
        trace = attnscope.inspect(mine.wrong_attention, torch.ones(3, 4))
        assert trace.crash is not None
        assert trace.tracing_error is None
        notice = trace.notices[-1]
        assert notice.startswith("tracing failed before the code did: ZeroDivisionError: ours")

    def test_a_program_ends_as_it_would_and_the_status_is_2(self, mine, tmp_path, monkeypatch, capfd):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine_in_a_program.py").write_text(SOURCE)
        (tmp_path / "program.py").write_text(
            "import torch\nfrom mine_in_a_program import attention\n"
            "print(attention(torch.ones(3, 4)).sum().item())\n"
        )
        before = sys.argv, sys.path[:], sys.meta_path[:], sys.modules["__main__"]
        try:
            watch = "mine_in_a_program.py:attention"
            assert main(["run", "--watch", watch, "program.py"]) == 2
        finally:
            sys.argv, sys.path[:], sys.meta_path[:], sys.modules["__main__"] = before
            sys.modules.pop("mine_in_a_program", None)
        printed = capfd.readouterr()
        assert printed.out == "12.0\n"
        assert "tracing failed, but the code itself runs: ZeroDivisionError: ours" in printed.err
