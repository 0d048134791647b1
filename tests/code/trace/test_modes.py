"""Tracing changes nothing where values must not be read: function transforms, fake tensors, subclasses."""

import sys
from pathlib import Path

import pytest
import torch

from attnscope import inspect, trace, trace_script
from tests.code.trace import modes

FILE = Path(modes.__file__)
PROGRAMS = [
    name
    for name, each in vars(modes).items()
    if getattr(each, "__module__", "") == modes.__name__
    and not isinstance(each, type)
    and each.__code__.co_varnames[:1] == ("x",)
    and name[0] != "_"
    and name != "scale_of"
]
FIRST = [
    *("vmap", "grad_of_a_scale", "grad_of_each_example", "hessian", "jvp", "linearize", "backward"),
    *("fake", "fake_with_symbolic_sizes", "make_fx_with_fake_tensors", "export", "wrapper", "jagged"),
]
"""Those that `inspect` broke, or where it found mistakes that are none; each of another kind."""


def outcome(program):
    """Return what a program returns, and the random state after it."""
    torch.manual_seed(0)
    y = program(torch.randn(3, 4, 6))
    return y.detach().clone(), torch.get_rng_state()


def assert_equal(one, other):
    assert [each.dtype for each in one] == [each.dtype for each in other]
    assert all(
        torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(one, other, strict=True)
    )


ALL = {"stats": True, "keep": True, "subexpressions": True}


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_traced_program_computes_the_same(name):
    program = getattr(modes, name)
    plain = outcome(program)
    for target, options in ((program, ALL), (modes.attend, {}), (modes.attend_causally, ALL)):

        def traced(x, target=target, options=options):
            with trace(target, **options) as result:
                y = program(x)
            assert (result.findings or [], result.tracing_error) == ([], None)
            assert all(type(size) is int for step in result.steps for size in (*step.shape, step.bytes))
            return y

        assert_equal(outcome(traced), plain)


@pytest.mark.few(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [each if each in FIRST else pytest.param(each, marks=pytest.mark.sweep) for each in PROGRAMS],
)
def test_inspect_neither_breaks_it_nor_finds_a_mistake(name):
    result = inspect(getattr(modes, name), inputs=["x=b:3,l:4,d:6"], stats=True)
    assert (result.crash, result.tracing_error, result.findings) == (None, None, [])
    assert result["x"].dims == ("b", "l", "d")


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", ["attend", "attend_causally"])
def test_a_program_that_runs_all_of_them_prints_the_same(tmp_path, monkeypatch, capfd, target):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attention_in_modes.py").write_text(FILE.read_text())
    (tmp_path / "program.py").write_text(
        "import torch, attention_in_modes as modes\n"
        f"for name in {FIRST!r}:\n"
        "    torch.manual_seed(0)\n"
        "    y = getattr(modes, name)(torch.randn(3, 4, 6)).detach()\n"
        "    print(name, y.sum().item(), y.abs().max().item())\n"
    )
    printed = []
    for watched in ("wrapper", target):
        sys.modules.pop("attention_in_modes", None)
        watch = f"attention_in_modes.py:{watched}"
        run = trace_script("program.py", watch=watch, calls=1 if watched == "wrapper" else 1000)
        assert run.status == 0
        assert not any(each.crash or each.tracing_error or each.findings for each in run.traces)
        printed.append(capfd.readouterr().out)
    sys.modules.pop("attention_in_modes")
    assert len(run.traces) > 3
    assert printed[0] == printed[1]


def test_shapes_inside_vmap_are_those_of_one_example():
    with trace(modes.attend, stats=True) as result:
        torch.vmap(modes.attend)(*torch.randn(3, 5, 4, 6))
    shapes = {step.name: step.shape for step in result.steps}
    assert (shapes["q"], shapes["attention"]) == ((4, 6), (4, 4))
    assert all(step.stats is None for step in result.steps)
