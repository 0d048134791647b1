"""A target's code is rewritten once, and recorded as often as one likes; what is compiled is left alone."""

import functools
import subprocess
import sys
from textwrap import dedent

import pytest
import torch

import attnscope
from attnscope.base.errors import SourceError
from attnscope.observe.calls import trace
from attnscope.observe.instrument.session import Session, function_of

SOURCE = """
import functools
import torch
from torch import nn

def attend(Q, K, V):
    scores = Q @ K.mT
    attention = scores.softmax(-1)
    return attention @ V

def outer(Q, K, V):
    doubled = Q * 2
    x = attend(doubled, K, V)
    y = inner(x)
    return y

def inner(x):
    z = deepest(x) + 1
    return z

def deepest(x):
    w = x * 3
    return w

class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)

    def forward(self, x):
        y = self.lin(x)
        scores = y @ x.mT
        return scores

class Method:
    def run(self, x):
        made = x + 1
        return made

    @classmethod
    def make(cls, x):
        made = x + 2
        return made

    @staticmethod
    def bare(x):
        made = x + 3
        return made
"""

Q, K, V = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 6)
x = torch.randn(3, 4)


@pytest.fixture
def code(module_of):
    return module_of(SOURCE)


def names(steps):
    return [step.name for step in steps]


# One session, many recordings.


def test_a_session_records_again_and_again(code):
    with Session(code.attend) as session:
        counts = []
        for n in (2, 3, 7):
            with session.recording() as recorder:
                out = code.attend(torch.ones(n, 4), K, V)
            torch.testing.assert_close(out, (torch.ones(n, 4) @ K.mT).softmax(-1) @ V)
            counts.append([(step.name, step.shape) for step in recorder.steps])
        assert counts == [
            [("Q", (n, 4)), ("K", (5, 4)), ("V", (5, 6)), ("scores", (n, 5)), ("attention", (n, 5)), ("return", (n, 6))]
            for n in (2, 3, 7)
        ]  # fmt: skip


def test_between_recordings_nothing_is_recorded(code):
    with Session(code.attend) as session:
        with session.recording() as first:
            code.attend(Q, K, V)
        code.attend(Q, K, V)
        assert len(first.steps) == 6
        with session.recording() as second:
            pass
        assert second.steps == []


def test_a_recording_after_one_that_failed_is_whole(code):
    with Session(code.attend) as session:
        with session.recording() as recorder, pytest.raises(RuntimeError):
            code.attend(Q, V, V)
        assert names(recorder.steps) == ["Q", "K", "V"]
        with session.recording() as recorder:
            code.attend(Q, K, V)
        assert names(recorder.steps) == ["Q", "K", "V", "scores", "attention", "return"]


def test_afterwards_the_code_is_as_it_was(code):
    before = [code.attend.__code__, code.inner.__code__, code.Attention.forward.__code__]
    with Session(code.attend):
        assert code.attend.__code__ is not before[0]
    assert [code.attend.__code__, code.inner.__code__, code.Attention.forward.__code__] == before


def test_after_an_exception_the_code_is_as_it_was(code):
    before = code.attend.__code__
    with pytest.raises(KeyError), Session(code.attend) as session, session.recording():
        raise KeyError
    assert code.attend.__code__ is before


def test_the_source_of_what_ran_is_known(code):
    with Session(code.outer) as session:
        with session.recording() as recorder:
            code.outer(Q, K, V)
        sources = {source.function: source for source in recorder.sources()}
    assert set(sources) == {"outer", "attend", "inner", "deepest"}
    assert sources["inner"].text == "def inner(x):\n    z = deepest(x) + 1\n    return z"
    lines = SOURCE.splitlines()
    assert all(lines[s.line - 1].startswith(f"def {name}(") for name, s in sources.items())


# Targets of all kinds.


@pytest.mark.parametrize(
    "target",
    [
        lambda code: functools.partial(code.attend, K=K, V=V),
        lambda code: functools.partial(functools.partial(code.attend, K=K), V=V),
        lambda code: functools.partial(code.attend, Q, K),
    ],
)
def test_a_partial_is_what_it_calls(code, target):
    assert function_of(target(code)) is code.attend


def test_methods_are_functions_and_traced(code):
    assert function_of(code.Method().run) is code.Method.run
    assert function_of(code.Method.make) is code.Method.__dict__["make"].__func__
    assert function_of(code.Method.bare) is code.Method.bare
    assert function_of(code.Attention) is code.Attention.forward
    assert function_of(code.Attention(4)) is code.Attention.forward
    assert function_of(Slotted()) is Slotted.__call__
    for method in (code.Method().run, code.Method.make, code.Method.bare):
        with trace(method) as result:
            method(x)
        assert names(result.steps) == ["x", "made"]


def test_a_forward_of_an_instance_is_the_one_that_runs(code):
    module = code.Attention(4)
    module.forward = code.deepest
    assert function_of(module) is code.deepest
    with trace(module) as result:
        assert torch.equal(module(x), x * 3)
    assert names(result.steps) == ["x", "w"]


class Slotted:
    __slots__ = ()

    def __call__(self, x):
        return x


class Iterates:
    def forward(self, x):
        yield x

    async def awaits(self, x):
        return x

    async def streams(self, x):
        yield x


COMPILED = "it is compiled from C or a similar language, and has no Python lines to record."
LAMBDA = "it assigns no names, so there is nothing to record."
GENERATOR = "it is a generator, whose code runs while another function iterates."
COROUTINE = "it is a coroutine, whose code runs when another function awaits it."


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        (torch.matmul, f"matmul: {COMPILED}", "trace the Python function or module that calls it"),
        (torch.Tensor.softmax, f"softmax: {COMPILED}", "trace the Python function or module that calls it"),
        (len, f"len: {COMPILED}", "trace the Python function or module that calls it"),
        (lambda x: x, f"a lambda: {LAMBDA}", "write it as a function with def, or trace the function that calls it"),
        (Iterates, f"Iterates.forward: {GENERATOR}", "trace the function that iterates over it; the generator's tensors are recorded there"),
        (Iterates().streams, f"Iterates.streams: {GENERATOR}", "trace the function that iterates over it; the generator's tensors are recorded there"),
        (Iterates.awaits, f"Iterates.awaits: {COROUTINE}", "trace a function that runs it with asyncio.run"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced_is_told(target, message, hint):
    with pytest.raises(SourceError) as caught:
        function_of(target)
    assert (caught.value.message, caught.value.hint) == (f"cannot trace {message}", hint)


def test_a_module_is_nothing_to_trace():
    with pytest.raises(SourceError, match="it is not callable"):
        function_of(torch.nn.functional)


SCRIPTED = """
import torch
from torch import nn

double = lambda x: x * 2

@torch.jit.script
def scripted(x):
    y = x * 2
    return y

class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inner = torch.jit.script(nn.Linear(d, d))
        self.traced = torch.jit.trace(nn.Linear(d, d), torch.ones(2, d))

    def forward(self, x):
        y = scripted(x)
        z = double(self.inner(y))
        w = self.traced(z) + torch.jit.script(self.late)(z)
        return w

    @staticmethod
    def late(x):
        y = x + 1
        return y
"""


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_is_told_if_it_is_the_target_and_runs_untouched_otherwise(module_of):
    module = module_of(SCRIPTED)
    attention = module.Attention(4)
    for target, name in [
        (module.scripted, "scripted"),
        (attention.inner, "Linear"),
        (attention.inner.forward, "forward"),
        (attention.traced, "Linear"),
    ]:
        with pytest.raises(SourceError) as caught:
            function_of(target)
        assert caught.value.message.startswith(
            f"cannot trace {name}: it is TorchScript, which does not run"
        )
    expected = attention(x)
    with trace(attention) as result:
        assert torch.equal(attention(x), expected)
    assert names(result.steps) == ["x", "y", "z", "w"]
    made = attnscope.inspect(module.Attention, init=["d=4"], inputs=["x=n:3,d"])
    assert [" ".join(step.dims) for step in made.steps] == ["n d"] * 4


# As a decorator.

DECORATED = """
import attnscope
import torch
from torch import nn

@attnscope.trace
def attend(Q, K, V):
    "Attends."
    scores = Q @ K.mT
    return scores.softmax(-1) @ V

@attnscope.trace(stats=True, keep="scores")
def measured(Q, K):
    scores = Q @ K.mT
    return scores

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2

    @attnscope.trace
    def forward(self, x):
        y = x * self.factor
        return y

@attnscope.trace
def outside(Q, K, V):
    x = attend(Q, K, V)
    z = x + 1
    return z

@attnscope.trace
def failing(x):
    y = x * 2
    if x.size(0) > 3:
        raise ValueError("too many")
    return y
"""


@pytest.fixture
def decorated(module_of):
    return module_of(DECORATED)


def test_a_decorated_function_is_traced_on_every_call(decorated):
    assert decorated.attend.trace is None
    for n in (2, 7):
        out = decorated.attend(torch.ones(n, 4), K, V)
        torch.testing.assert_close(out, (torch.ones(n, 4) @ K.mT).softmax(-1) @ V)
        assert decorated.attend.trace["scores"].shape == (n, 5)
    assert decorated.attend.__name__ == "attend"
    assert decorated.attend.__doc__ == "Attends."


def test_a_decorator_takes_options(decorated):
    decorated.measured(Q, K)
    step = decorated.measured.trace["scores"]
    assert torch.equal(step.tensor, Q @ K.mT)
    assert step.stats.mean == pytest.approx((Q @ K.mT).double().mean().item(), abs=1e-7)


def test_a_decorated_method_is_traced(decorated):
    module = decorated.Attention()
    assert torch.equal(module(x), x * 2)
    assert names(decorated.Attention.forward.trace.steps) == ["x", "y"]
    other = decorated.Attention()
    other.factor = 5
    assert torch.equal(other(x[:2]), x[:2] * 5)
    assert decorated.Attention.forward.trace["y"].shape == (2, 4)


def test_decorated_functions_may_call_each_other(decorated):
    out = decorated.outside(Q, K, V)
    torch.testing.assert_close(out, (Q @ K.mT).softmax(-1) @ V + 1)
    assert {"x", "z"} <= set(names(decorated.outside.trace.steps))
    assert "scores" in names(decorated.attend.trace.steps)


def test_a_decorated_function_that_raises_goes_on_to_work(decorated):
    with pytest.raises(ValueError, match="too many"):
        decorated.failing(torch.ones(4))
    assert names(decorated.failing.trace.steps) == ["x", "y"]
    decorated.failing(torch.ones(2))
    assert decorated.failing.trace["y"].shape == (2,)


# What is recorded.


def steps_of(target, *arguments, **options):
    with trace(target, **options) as result:
        target(*arguments)
    return result.steps


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (0, ["Q", "K", "V", "doubled", "x", "y"]),
        (1, ["Q", "K", "V", "doubled", "Q", "K", "V", "scores", "attention", "return", "x", "x", "z", "y"]),
        (None, ["Q", "K", "V", "doubled", "Q", "K", "V", "scores", "attention", "return", "x", "x", "x", "w", "z", "y"]),
    ],
)  # fmt: skip
def test_calls_may_be_folded_below_a_depth(code, depth, expected):
    steps = steps_of(code.outer, Q, K, V, depth=depth)
    assert names(steps) == expected
    assert max(step.depth for step in steps) <= (2 if depth is None else depth)
    total = sum(step.flops for step in steps)
    assert total == 2 * 3 * 5 * 4 + 2 * 3 * 5 * 6  # whatever is folded, nothing is lost


@pytest.mark.sweep
@pytest.mark.usefixtures("with_torch")
def test_a_module_that_is_followed_is_recorded_too(code):
    module = code.Attention(4)
    assert "input" not in names(steps_of(module, x))
    steps = steps_of(module, x, follow=["torch.nn.modules.linear"])
    assert names(steps) == ["x", "input", "return", "y", "scores"]
    assert [bool(step.file) for step in steps] == [False, True, True, False, False]
    assert steps[1].file == sys.modules["torch.nn.modules.linear"].__file__


BASE = """
from torch import nn

class Base(nn.Module):
    def forward(self, x):
        q = self.project(x)
        scores = self.attention(q)
        return self.finish(scores @ x)

    def finish(self, x):
        done = x / 2
        return done
"""

HEIR = """
from {base} import Base
from {mixin} import Mixin

def helper(x):
    doubled = x * 2
    return doubled

class Heir(Mixin, Base):
    def project(self, x):
        return helper(x)

class Alone(Base):
    project = staticmethod(helper)

    def attention(self, q):
        w = q @ q.mT
        return w
"""

MIXIN = """
class Mixin:
    def attention(self, q):
        mixed = q @ q.mT
        return mixed
"""


@pytest.mark.sweep
def test_methods_that_an_inherited_forward_calls_are_recorded(module_of):
    base, mixin = module_of(BASE), module_of(MIXIN)
    heirs = module_of(HEIR.format(base=base.__name__, mixin=mixin.__name__))
    expected = {
        heirs.Heir: "x x x doubled return q q mixed scores x done return",
        heirs.Alone: "x x doubled q q w scores x done return",
    }
    for heir, rows in expected.items():
        instance, names_of_rows = heir(), rows.split()
        before = instance(x)
        with trace(instance) as result:
            assert torch.equal(instance(x), before)
        assert names(result.steps) == names_of_rows
        made = attnscope.inspect(heir, inputs=["x=n:3,d:4"])
        assert names(made.steps) == names_of_rows
        assert all("n" in step.dims for step in made.steps)
        called = attnscope.inspect(heir, inputs=["x=n:3,d:4"], call="finish")
        assert names(called.steps) == ["x", "done"]
        assert {step.file for step in made.steps} >= {None, heirs.__file__}


@pytest.mark.sweep
def test_an_heir_of_a_library_is_recorded_with_it(module_of):
    heirs = module_of("""
        from torch import nn

        class Scaled(nn.Linear):
            def extra(self, x):
                return x

        class Normed(nn.TransformerEncoderLayer):
            def _sa_block(self, x, *args, **kwargs):
                attended = x * 2
                return attended
    """)
    layer = heirs.Normed(4, 2, 8, dropout=0.0)
    with trace(layer.train()) as result:
        layer(torch.ones(1, 3, 4))
    assert "attended" in names(result.steps)
    assert "return" in names(result.steps)
    with trace(heirs.Scaled(4, 4)) as result:
        pass
    assert result.steps == []


def test_a_module_that_is_not_there_cannot_be_followed(code):
    with pytest.raises(SourceError, match="no module nowhere to follow"):
        Session(code.attend, follow=["nowhere"])


def test_parts_of_expressions_get_rows(code):
    steps = steps_of(code.attend, Q, K, V, subexpressions=True)
    assert [(step.name, step.how) for step in steps[3:]] == [
        ("…", "K.mT"), ("scores", "Q @ K.mT"), ("attention", "scores.softmax(-1)"), ("return", "attention @ V"),
    ]  # fmt: skip


def test_traces_of_one_file_may_be_nested_and_afterwards_the_code_is_as_it_was(code):
    before = code.attend.__code__, code.outer.__code__
    with trace(code.outer) as outside, trace(code.attend) as inside:
        code.outer(Q, K, V)
    assert "doubled" in names(outside.steps)
    assert names(inside.steps) == ["Q", "K", "V", "scores", "attention", "return"]
    assert (code.attend.__code__, code.outer.__code__) == before


# What is compiled, in a process of its own.


def ran(tmp_path, code):
    (tmp_path / "compiled_code.py").write_text(dedent(SOURCE), encoding="utf-8")
    head = """
import torch, attnscope
import compiled_code as code
from attnscope.observe.instrument.session import Session
Q, K, V = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 6)
x = torch.randn(3, 4)
"""
    result = subprocess.run(
        [sys.executable, "-c", head + dedent(code)], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.sweep
def test_what_is_compiled_runs_untraced_and_right_and_what_calls_it_is_traced_around_it(tmp_path):
    out = ran(tmp_path, """
        def check(compiled, expected, *inputs):
            for _ in range(2):
                with attnscope.trace(compiled) as trace:
                    out = compiled(*inputs)
                torch.testing.assert_close(out, expected)
                assert trace.steps == []
            print(*trace.notices)

        check(torch.compile(code.attend, backend="eager"), code.attend(Q, K, V), Q, K, V)
        module = code.Attention(4)
        check(torch.compile(module, backend="eager"), module(x), x)
        itself = code.Attention(4)
        expected = itself(x)
        itself.compile(backend="eager")
        check(itself, expected, x)

        code.attend = torch.compile(code.attend, backend="eager")
        expected = code.outer(Q, K, V)
        with attnscope.trace(code.outer) as trace:
            out = code.outer(Q, K, V)
        torch.testing.assert_close(out, expected)
        print(*(step.name for step in trace.steps))
    """)  # fmt: skip
    assert out.splitlines() == [
        "attend is compiled by torch.compile: it is not traced",
        "Attention is compiled by torch.compile: it is not traced",
        "Attention is compiled by torch.compile: it is not traced",
        "Q K V doubled x x x w z y",
    ]


@pytest.mark.sweep
def test_inspect_runs_a_compiled_target_uncompiled_and_what_it_calls_compiled(tmp_path):
    out = ran(tmp_path, """
        def show(target, *args, **kwargs):
            trace = attnscope.inspect(target, *args, **kwargs)
            print(*(step.name for step in trace.steps), *trace.notices, sep=", ")

        attend = code.attend
        compiled = torch.compile(attend, backend="eager")
        show(compiled, Q, K, V)
        show(compiled, inputs=["Q=n:3,d:4", "K=m:5,d", "V=m,d_V:6"])
        show(torch.compile(code.Attention(4), backend="eager"), x)
        itself = code.Attention(4)
        itself.compile(backend="eager")
        show(itself, x)
        assert itself._compiled_call_impl is not None

        class Decorated(code.Attention):
            forward = torch.compile(code.Attention.forward, backend="eager")
        show(Decorated, init=["d=4"], inputs=["x=n:3,d"])
        show(Decorated(4), x)
        show(code.Attention, init=["d=4"], inputs=["x=n:3,d"])  # compiled above, but not this one
        code.attend = compiled
        show(code.outer, Q, K, V)
    """)  # fmt: skip
    uncompiled = "is compiled by torch.compile: its uncompiled Python code was traced"
    rows = "x, y, scores"
    assert out.splitlines() == [
        f"Q, K, V, scores, attention, return, attend {uncompiled}",
        f"Q, K, V, scores, attention, return, attend {uncompiled}",
        f"{rows}, Attention {uncompiled}",
        f"{rows}, Attention {uncompiled}",
        f"{rows}, Decorated {uncompiled}",
        f"{rows}, Decorated {uncompiled}",
        rows,
        "Q, K, V, doubled, x, x, x, w, z, y, attend is compiled by torch.compile: it was not traced",
    ]
