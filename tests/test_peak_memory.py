"""The peak memory of runs, counted from the allocations of torch's operators, and its estimate."""

import pytest
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.formula.reference.naive import attended, inputs_of
from attnscope.formula.reference.run import VerifiedRun
from attnscope.observe.instrument.cost import storages_in

SIZES = ["--batch", "1", "--nq", "400", "--nk", "400", "--dk", "8", "--dv", "8"]


class Peak(TorchDispatchMode):
    """The peak of bytes that torch's operators allocate."""

    def __init__(self):
        super().__init__()
        self.storages, self.bytes = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for storage in storages_in(out):
            self.storages[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.storages = {key: each for key, each in self.storages.items() if not each[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self.storages.values()))
        return out


@pytest.fixture
def peak_of(attnscope, monkeypatch):
    """Return a function that runs a command and returns its peak and its estimate, without fixed costs."""
    estimates = []
    monkeypatch.setattr("attnscope.observe.contracts.memory.FIXED", 0)
    monkeypatch.setattr("attnscope.observe.contracts.memory.STATS", 0)
    check = "attnscope.base.process.devices.check_memory"
    monkeypatch.setattr(check, lambda needed, *_: estimates.append(needed))

    def run(*line):
        with Peak() as peak:
            r = attnscope(*line)
        assert r.exit_status == 0, r.err
        return peak.bytes, estimates[-1]

    return run


OPTIONS = [
    "",
    "--dtype bfloat16 --softcap 3",
    "--softmax-dtype float64",
    "--dtype bfloat16 --softmax-dtype float32",
    "--mask causal --mask window:9,9 --masked-rows zero",
    "--mask causal --mask-style additive --dtype float64",
    "--mask lengths:7 --layout columns",
    "--heads 4 --kv-heads 2 --past 10",
    "--rope --softcap 3",
    "--batch 2 --dk 2048 --rope --mask lengths:400,400 --align lengths",
]


@pytest.mark.few(3)
@pytest.mark.parametrize("options", OPTIONS)
def test_what_sdpa_takes_is_what_was_estimated(peak_of, options):
    peak, estimate = peak_of("sdpa", *SIZES, *options.split())
    assert 0.8 * estimate < peak < 1.1 * estimate


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options", ["", "--train --dropout 0.2", "--nk 300 --d-context 12 --mask causal --dtype bfloat16"]
)
def test_what_mha_takes_is_what_was_estimated(peak_of, options):
    sizes = ["--batch", "1", "--nq", "400", "--d-feat", "16", "--heads", "2"]
    peak, estimate = peak_of("mha", *sizes, *options.split())
    assert 0.8 * estimate < peak < 1.1 * estimate


def test_saving_copies_nothing_that_lies_in_order(peak_of, tmp_path):
    line = ["sdpa", *SIZES, "--force", "--save"]
    peak, estimate = peak_of(*line, tmp_path / "x.pt")
    assert 0.8 * estimate < peak < 1.1 * estimate


def test_the_loop_holds_the_weights_of_some_queries_at_a_time(monkeypatch):
    import torch

    from attnscope import trace_call
    from attnscope.attention.sdpa import sdpa

    monkeypatch.setattr("attnscope.formula.reference.naive.BLOCK", 20)
    trace = trace_call(sdpa, torch.rand(7, 2), torch.rand(9, 2), torch.rand(9, 2), keep=True)
    trace.options["scale"] = 2**-0.5
    run = VerifiedRun(trace, {})
    rows = list(attended(run, inputs_of(run)))
    assert [len(each.weights) for each in rows] == [2, 2, 2, 1]
