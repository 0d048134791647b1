"""Where a target begins, what its file is found as, and whose frames a traceback shows."""

import sys
import threading
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import attnscope
from attnscope.base.errors import SourceError
from attnscope.code.trace import program
from attnscope.code.trace.program import Finder, Target, Watching, line_of
from attnscope.observe.instrument.code_swap import Relay, Silence
from attnscope.observe.torch_internals.compiler import hide_from_compiler

SOURCE = """\
    import functools
    from torch import nn
    from other import Elsewhere, thing as Renamed

    def function(x):
        return x

    if True:
        @functools.lru_cache
        def decorated(x):
            return x

    class Base(nn.Module):
        def forward(self, x):
            y = x * 2
            return y

    class Derived(Base):
        def method(self, x):
            return x

        class Inner:
            def __call__(self, x):
                return x

    class Foreign(Elsewhere):
        pass

    class Idle(nn.Module):
        def other(self): ...

    def generator():
        yield 1

    async def coroutine(): ...
    """


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "watched_source.py"
    path.write_text(dedent(SOURCE))
    return str(path)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("function", 5),
        ("decorated", 9),
        ("Base", 14),
        ("Base.forward", 14),
        ("Derived", 14),
        ("Derived.method", 19),
        ("Derived.Inner", 23),
    ],
)
def test_the_line_where_a_target_begins(file, name, line):
    assert line_of(file, name) == line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Bass", "watched_source.py has no Bass: it defines"),
        ("Derived.forwards", "watched_source.py has no forwards: it defines method, Inner."),
        ("Elsewhere", "watched_source.py does not define Elsewhere: it imports it from other."),
        ("Renamed", "watched_source.py does not define Renamed: it imports it from other."),
        ("Foreign", "Foreign has no forward in watched_source.py: it inherits that of Elsewhere."),
        ("Idle", "Idle has neither forward nor __call__: it defines other."),
        ("generator", "cannot trace generator: it is a generator or a coroutine."),
        ("coroutine", "cannot trace coroutine: it is a generator or a coroutine."),
    ],
)
def test_a_target_that_cannot_be_watched(file, name, message):
    with pytest.raises(SourceError) as caught:
        line_of(file, name)
    assert caught.value.message.startswith(message)


@pytest.fixture
def import_watched(tmp_path, monkeypatch):
    """Imports a module of this source while its target is watched."""

    def make(source, name, calls=1, **options):
        (tmp_path / "watched_module.py").write_text(dedent(source))
        recordings = []
        target = Target(name, module="watched_module")
        watching = Watching(target, calls, recordings.append, lambda error: None, **options)
        monkeypatch.setattr(sys, "meta_path", [Finder(watching), *sys.meta_path])
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "watched_module", raising=False)
        import watched_module

        return watched_module, recordings

    return make


DOUBLE = """\
    def inner(x):
        if x.sum() < 0:
            raise ValueError("negative")
        return x * 2

    def double(x):
        y = inner(x)
        return y
    """


def rows(recording):
    return [(step.name, step.shape) for step in recording.recorder.steps]


def test_so_many_calls_are_recorded_and_then_nothing(import_watched):
    module, recordings = import_watched(DOUBLE, "double", calls=2)
    for size in (1, 2, 3):
        assert torch.equal(module.double(torch.ones(size)), torch.full((size,), 2.0))
    module.inner(torch.ones(4))
    assert [rows(each)[0] for each in recordings] == [("x", (1,)), ("x", (2,))]
    assert [each.error for each in recordings] == [None, None]
    assert [source.function for source in recordings[0].recorder.sources()] == ["double", "inner"]


def test_a_call_that_raises_is_recorded_with_its_error(import_watched):
    module, recordings = import_watched(DOUBLE, "double", calls=2)
    with pytest.raises(ValueError, match="negative") as caught:
        module.double(-torch.ones(3))
    try:
        raise KeyError("handled while the target runs")
    except KeyError:
        module.double(torch.ones(3))
    assert [each.error for each in recordings] == [caught.value, None]


def test_a_call_on_another_thread_is_recorded(import_watched):
    module, recordings = import_watched(DOUBLE, "double")
    threads = [threading.Thread(target=module.double, args=(torch.ones(5),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [rows(each) for each in recordings] == [
        [("x", (5,)), ("x", (5,)), ("return", (5,)), ("y", (5,))]
    ]


def test_followed_modules_have_rows_too(import_watched, tmp_path, monkeypatch):
    (tmp_path / "followed_module.py").write_text("def half(x):\n    z = x / 2\n    return z\n")
    monkeypatch.delitem(sys.modules, "followed_module", raising=False)
    source = """\
        def double(x):
            from followed_module import half
            y = half(x)
            return y
        """
    module, recordings = import_watched(source, "double", follow=["followed_module"])
    module.double(torch.ones(3))
    steps = recordings[0].recorder.steps
    assert [step.name for step in steps] == ["x", "x", "z", "y"]
    assert [step.file and step.file.endswith("followed_module.py") for step in steps[1:3]] == [
        True,
        True,
    ]


def test_code_that_is_pickled_by_value_is_silent_elsewhere():
    import pickle

    relay = pickle.loads(pickle.dumps(program.LocalRelay()))
    assert type(relay) is Relay
    assert relay.end(3, relay.begin(3), "value") == "value"


def test_a_traceback_is_shown_without_our_frames(import_watched):
    module, _ = import_watched("def product(a, b):\n    c = a @ b\n    return c\n", "product")
    try:
        module.product(torch.ones(2, 3), torch.ones(2, 3))
    except RuntimeError as error:
        tb = program._without_own_frames(error.__traceback__)
    names = []
    while tb is not None:
        names.append(tb.tb_frame.f_code.co_name)
        tb = tb.tb_next
    assert names == ["test_a_traceback_is_shown_without_our_frames", "product"]


def test_a_traceback_ends_where_the_trace_was_being_shown(monkeypatch):
    from attnscope.cli.report import Report

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnscope.cli.report.write_file", interrupted)
    report = Report("json", wide=False, calls=1, to=Path("trace.json"), force=False)
    try:
        report.show([attnscope.dry_run("sdpa")])
    except KeyboardInterrupt as error:
        tb = program._without_own_frames(error.__traceback__)
    assert tb.tb_frame.f_code.co_name == "test_a_traceback_ends_where_the_trace_was_being_shown"
    assert tb.tb_next is None


@pytest.mark.slow
def test_the_compiler_sees_no_recording_calls(import_watched, monkeypatch):
    import torch._dynamo.symbolic_convert as translator

    monkeypatch.setattr(
        translator.InstructionTranslatorBase,
        "_load_const",
        translator.InstructionTranslatorBase._load_const,
    )
    module, recordings = import_watched(DOUBLE.replace("x.sum() < 0", "x.dim() > 3"), "double")
    hide_from_compiler(translator, Relay, Silence, sys.meta_path[0].watching.is_compiled)
    graphs = []
    torch._dynamo.reset()

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(module.double, backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert [[each.__name__ for each in graph] for graph in graphs] == [["mul"]]
    assert not recordings
    assert sys.meta_path[0].watching.compiled
