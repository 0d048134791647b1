"""Runs with other sizes stay within a budget of memory and time, and what they do not show is not claimed."""

import subprocess
import sys

import pytest
import torch

import attnscope
from attnscope.code.trace.trials import Trials
from attnscope.observe.axes import budget
from attnscope.observe.axes.from_other_sizes import SizedRun

CODE = """
import weakref
import torch
from torch import nn


class Steep(nn.Module):
    # 4 MiB with n = 4 and d = 4, and 44 GiB with n = 11 and d = 5.
    def __init__(self, d=4, n=4):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d, n**9))

    def forward(self, x):
        scale = self.weight.mean(1)
        y = x * scale
        return y


class SteepWithValues(Steep):
    def __init__(self, d=4, n=4):
        super().__init__(d, n)
        self.rates = [rate.item() for rate in torch.arange(3.0)]


class Counted(nn.Module):
    alive, most = weakref.WeakSet(), 0

    def __init__(self, d=8, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.alive.add(self)
        Counted.most = max(Counted.most, len(self.alive))

    def forward(self, x):
        y = x.view(*x.shape[:2], self.n_head, -1)
        z = y.view(*y.shape[:3], 2, -1)
        return z


def double(x):
    y = x * 2
    return y


def interrupts(x):
    y = x * 2
    if x.shape != (2, 5):
        raise KeyboardInterrupt
    return y
"""

LIMITED = """
import resource, sys
import torch
import attnscope
from attnscope.observe.axes import budget
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 3 * 2**30,) * 2)
trace = attnscope.inspect(sys.argv[1], init={"n": 4, "d": 4}, inputs={"x": "B:3,T:5,d"})
print(trace["y"].dims, trace.crash, trace.findings, trace.options, trace.notices)
"""


@pytest.fixture
def code(tmp_path):
    file = tmp_path / "code.py"
    file.write_text(CODE)
    return file


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["Steep", "SteepWithValues"])
def test_sizes_that_would_need_20_gb_are_not_tried_and_nothing_is_claimed(code, name):
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, f"{code}:{name}"], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout == "('B', 'T', 'd') None [] {} []\n"


def test_with_less_memory_fewer_axes_vary_and_a_notice_says_so(code):
    arguments = {"init": {"n": 4, "d": 4}, "inputs": {"x": "B:3,T:5,d"}}
    trace = attnscope.inspect(f"{code}:SteepWithValues", **arguments, memory="2K")
    assert trace["x"].dims == ("B", "T", "d")
    assert trace["y"].dims == ("B", "T", "d")  # the code says so
    assert (trace.crash, trace.findings, trace.options) == (None, [], {})
    [notice] = trace.notices
    assert "more memory than their limit of 2.0 KiB. memory raises it" in notice


def test_no_run_takes_more_memory_than_allowed_however_quick_it_is():
    devices = []

    def run(device, sizes):
        devices.append(device)
        torch.empty(sizes["n"], device=device)
        return SizedRun([], {})

    estimate = budget.MemoryEstimate([((8,), 32)], {"n": 8})
    trials = Trials(run, estimate, budget.RunBudget(2048, 60), quick=True, report=lambda n_runs: None)
    for n in (8, 2**20):
        trials({"n": n})
    assert devices == ["cpu", "meta"]


def test_of_runs_that_fail_no_module_stays_in_memory(code):
    trace = attnscope.inspect(f"{code}:Counted", init={"d": 8, "n_head": 4}, inputs={"x": "B:3,T:5,d"})
    assert trace["y"].dims == ("B", "T", "n_head", "d/n_head")
    module = next(
        each for each in list(sys.modules.values()) if getattr(each, "__file__", "") == str(code)
    )
    assert module.Counted.most == 1


def test_after_its_time_a_search_shows_what_it_knows(code, monkeypatch):
    monkeypatch.setattr(budget, "SECONDS", 0)
    trace = attnscope.inspect(f"{code}:double", inputs={"x": "2,n:5"})
    assert trace["x"].dims == ("2", "n")
    assert (trace.crash, trace.findings, trace.options) == (None, [], {})
    [notice] = trace.notices
    assert notice.startswith("the search for axis names stopped after 0 seconds: ")


@pytest.mark.parametrize(("n_runs", "required"), [(5, False), (40, True)])
def test_a_condition_is_listed_once_however_early_the_search_ends(code, monkeypatch, n_runs, required):
    begin = budget.RunBudget.__init__
    monkeypatch.setattr(budget.RunBudget, "__init__", lambda *limits: begin(*limits, n_runs=n_runs))
    trace = attnscope.inspect(f"{code}:Counted", init={"d": 12, "n_head": 3}, inputs={"x": "B:2,T:7,d"})
    conditions = [(each.text, each.required) for each in trace.conditions]
    assert ("d is a multiple of n_head", required) in conditions
    assert len(conditions) == len({text for text, _ in conditions})


def test_ctrl_c_in_a_run_with_other_sizes_ends_only_the_search(code):
    trace = attnscope.inspect(f"{code}:interrupts", inputs={"x": "B:2,n:5"})
    assert [step.name for step in trace.steps] == ["x", "y"]
    [notice] = trace.notices
    assert notice.startswith("the search for axis names stopped by Ctrl-C: ")


@pytest.mark.parametrize("options", [(), ("--memory", "2G")])
def test_without_a_search_only_the_users_names_are_shown(code, attnscope, options):
    r = attnscope("trace", f"{code}:double", "--input", "x=2,n:5", "--no-search", *options)
    assert r.exit_status == 0
    assert "x     input  2 n" in r.out
    assert "x * 2  2 5" in r.out
    idle = "attnscope: --memory has no effect: the code is not run with other sizes\n"
    assert r.err == (idle if options else "")
