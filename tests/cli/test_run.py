"""`attnscope run`: a program runs as it does without attnscope, and its first calls are shown."""

import json
import os
import re
import subprocess
import sys
from textwrap import dedent

import pytest

from attnscope.base.process.script_words import options_first

ATTENTION = """\
    import math
    from torch import nn


    class CausalSelfAttention(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = self.qkv(x).split(C, dim=2)
            q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            scores = q @ k.mT / math.sqrt(C)
            attention = self.drop(scores.softmax(-1))
            return self.proj((attention @ v).transpose(1, 2).reshape(B, T, C))
    """
"""It has a mistake: the scale does not follow from a head's width."""

TRAINING = """\
    import argparse
    import multiprocessing
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from torch.utils.data import DataLoader, Dataset
    from model import CausalSelfAttention

    torch.manual_seed(0)


    class Data(Dataset):
        attention = CausalSelfAttention(12, 3)

        def __len__(self):
            return 4

        def __getitem__(self, i):
            with torch.no_grad():
                return self.attention(torch.full((1, 5, 12), i / 4))[0].detach()


    def in_child(i):
        print("child", i, flush=True)
        return CausalSelfAttention(12, 3).eval()(torch.ones(1, 2, 12)).shape


    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--depth", type=int, default=1)
        parser.add_argument("--checkpoint", action="store_true")
        parser.add_argument("--workers", type=int, default=0)
        parser.add_argument("--spawn", action="store_true")
        parser.add_argument("--compile", action="store_true")
        args = parser.parse_args()
        if args.workers:
            print([batch.sum().item() for batch in DataLoader(Data(), 2, num_workers=args.workers)])
        if args.spawn:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(in_child, [1]))
        layers = nn.ModuleList(CausalSelfAttention(12, 3) for _ in range(args.depth))
        if args.compile:
            for layer in layers:
                layer.compile(backend="eager")
        inputs = torch.randn(2, 5, 12)
        for step in range(3):
            x = inputs
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False) if args.checkpoint else layer(x)
            loss = (x - inputs).pow(2).mean()
            gradients = torch.autograd.grad(loss, [*layers.parameters()])
            with torch.no_grad():  # an optimizer of torch would import its compiler
                for parameter, gradient in zip(layers.parameters(), gradients):
                    parameter -= 0.1 * gradient
            gradient = sum(each.sum() for each in gradients)
            print(f"{loss.item():.17g} {gradient.item():.17g}")
        print(torch.rand(1).item())
    """

PLAIN = """\
    class Thing:
        def forward(self, x):
            y = x + 1
            return y
    """

NAMES = ["x", "q", "k", "v", "q", "k", "v", "scores", "attention", "return"]


@pytest.fixture
def program(tmp_path):
    """Return a function that writes files and runs a program in their folder: with Python, and with attnscope."""

    class Program:
        def write(self, **files):
            for name, text in files.items():
                (tmp_path / f"{name}.py").write_text(dedent(text), encoding="utf-8")

        def run(self, *command, **options):
            environment = {**os.environ, "COLUMNS": "120", **options}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            return subprocess.run(
                [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True
            )

        def python(self, *arguments):
            return self.run(*arguments)

        def watched(self, *arguments, **options):
            return self.run("-m", "attnscope", "run", *arguments, **options)

    return Program()


def assert_same_program(plain, watched):
    """Check that output and exit status are those of the program alone."""
    assert (watched.stdout, watched.returncode) == (plain.stdout, plain.returncode)


# The command line.

TAKES_VALUE = {
    "--watch": True, "--calls": True, "--dims": True, "--depth": True, "--wide": False,
    "-m": True, "-o": True, "--to": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "sorted_line"),
    [
        ("--watch m:C train.py", "--watch m:C -- train.py"),
        ("train.py a --lr 3 --watch m:C --calls 1", "--watch m:C --calls 1 -- train.py a --lr 3"),
        ("train.py --depth 3 --watch m:C --depth 0", "--watch m:C --depth 0 -- train.py --depth 3"),
        ("--watch m:C train.py --depth 3 --wide", "--watch m:C -- train.py --depth 3 --wide"),
        ("--watch m:C train.py x --calls=2 --lr 3", "--watch m:C --calls=2 -- train.py x --lr 3"),
        ("--watch m:C train.py -- --calls 3", "--watch m:C -- train.py --calls 3"),
        ("train.py --watch m:C -- --calls 3", "--watch m:C -- train.py --calls 3"),
        ("train.py a --watch m:C -- --calls 3", "--watch m:C -- train.py a -- --calls 3"),
        ("--watch m:C -- train.py --calls 3", "--watch m:C -- train.py --calls 3"),
        ("--watch m:C -o x.json train.py -o y", "--watch m:C -o x.json -- train.py -o y"),
        ("train.py -o y --watch m:C -o x.json -m", "--watch m:C -o x.json -- train.py -o y -m"),
        ("--watch m:C train.py --help -h", "--watch m:C -- train.py --help -h"),
        ("--watch m:C -m pack.age a --lr 3", "--watch m:C -m pack.age -- a --lr 3"),
        ("-mpack.age --lr 3 --watch m:C", "-mpack.age --watch m:C -- --lr 3"),
        ("-m pack.age -- --calls 3", "-m pack.age -- --calls 3"),
        ("--help", "--help --"),
    ],
)
def test_what_is_ours_and_what_is_the_scripts(line, sorted_line):
    assert options_first(line.split(), TAKES_VALUE) == sorted_line.split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.py"], "--watch is missing."),
        (["--watch", "m.py:C"], "there is no program to run."),
        (["--watch", "m.py:C", "none.py"], "there is no script none.py."),
        (["--watch", "m.py", "train.py"], "'m.py' does not name a class or function."),
        (["--watch", "m.py:C", "train.py"], "there is no file m.py."),
        (["--watch", "a-b:C", "train.py"], "'a-b' is neither a .py file nor the name of a module."),
        (["--watch", "model.py:Things", "train.py"], "model.py has no Things: it defines Thing."),
        (["--watch", "model.py:Thing", "--dims", "x", "train.py"], "--dims x does not name axes"),
        (["--watch", "model.py:Thing", "--dims", "x=B,B", "train.py"], "gives two axes the same name"),
        (["--watch", "model.py:Thing", "-f", "csv", "--calls", "2", "train.py"], "csv holds one table"),
        (["--watch", "model.py:Thing", "--to", "no/x", "train.py"], "there is no folder no to write x"),
        (["--watch", "model.py:Thing", "--to", "model.py", "train.py"], "model.py already exists."),
        (["--watch", "model.py:Thing", "--to", "", "train.py"], "the name of the file is empty."),
        (
            ["--watch", "model.py:Thing", "--calls", "0", "train.py"],
            "--calls is 0, but takes numbers from 1.",
        ),
    ],
)
def test_mistakes_are_told_before_the_program_runs(attnscope, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemError('it ran')")
    (tmp_path / "model.py").write_text(dedent(PLAIN))
    r = attnscope("run", *arguments)
    assert r.exit_status == 2
    assert message in r.err


# The program is left alone.


@pytest.mark.sweep
def test_a_program_runs_as_python_runs_it(program, tmp_path):
    program.write(
        helper=PLAIN,
        other="""\
            import sys
            def who(): return sys.modules["__main__"].Own
            """,
        program="""\
            import atexit, inspect, os, pickle, sys, threading, time, warnings
            from helper import Thing
            import helper, other

            class Own:
                pass

            def late():
                time.sleep(0.2)
                print("thread", flush=True)

            atexit.register(print, "at exit")
            print(sys.argv, __name__, os.path.basename(__file__), __spec__, __package__, sorted(vars()))
            print(os.path.basename(sys.path[0]), os.getcwd(), sys.excepthook, __builtins__, __loader__.name)
            print(type(pickle.loads(pickle.dumps(Own()))) is Own, other.who() is Own)
            print(inspect.getsource(Thing), helper.__spec__.origin, type(helper.__loader__), helper.__cached__)
            print(Thing().forward(1), sys.exc_info())
            warnings.warn("careful")
            threading.Thread(target=late).start()
            if __name__ == "__main__":
                print("main")
            """,
    )
    plain = program.python("program.py", "a", "--wide")
    watched = program.watched("program.py", "a", "--wide", "--watch", "helper.py:Thing")
    assert_same_program(plain, watched)
    assert "careful" in plain.stderr
    assert watched.stderr.endswith(plain.stderr)
    assert watched.stderr.removesuffix(plain.stderr).split("\n")[0] == "helper.py:Thing"


@pytest.mark.sweep
def test_a_module_runs_as_python_runs_it(program, tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "tool.py").write_text(
        dedent("""\
            import sys
            from . import __name__ as parent

            class Thing:
                def forward(self, x):
                    return x

            print(sys.argv, sys.path[0], __spec__.name, __package__, parent, Thing().forward(3))
            raise ValueError("as it is")
            """)
    )
    plain = program.python("-m", "pack.tool", "a")
    watched = program.watched("-m", "pack.tool", "a", "--watch", "pack.tool:Thing.forward")
    assert_same_program(plain, watched)
    assert watched.stderr.endswith(plain.stderr)
    assert "pack.tool:Thing.forward\n" in watched.stderr


ENDINGS = {
    "exit": "import sys; sys.exit(3)",
    "text": "import sys; sys.exit('a text')",
    "raise": """\
        from helper import Thing
        try:
            Thing().forward("a")
        except TypeError as error:
            raise ValueError("no number") from error
        """,
    "group": "raise ExceptionGroup('several', [ValueError('one'), TypeError('two')])",
    "syntax": "x = = 3",
    "import": "import broken",
    "hook": "import sys; sys.excepthook = lambda *e: print('hook', e[0]); 1 / 0",
    "base": "raise GeneratorExit('odd')",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_as_it_ends(program, ending):
    program.write(helper=PLAIN, broken="def f(:\n", program=ENDINGS[ending])
    plain = program.python("program.py")
    watched = program.watched("--watch", "helper.py:Thing", "program.py")
    assert_same_program(plain, watched)
    assert plain.stderr in watched.stderr


def test_an_interrupted_program_shows_pythons_traceback(program):
    program.write(program="raise KeyboardInterrupt", helper=PLAIN)
    plain = program.python("program.py")
    watched = program.watched("--watch", "helper.py:Thing", "program.py")
    assert (watched.returncode, plain.returncode) == (130, -2)
    assert watched.stderr.startswith(plain.stderr)


@pytest.mark.sweep
def test_no_bytecode_of_ours_is_written(program, tmp_path):
    program.write(helper=PLAIN, plain="", program="import helper, plain; helper.Thing().forward(1)")
    program.watched("--watch", "helper.py:Thing", "program.py")
    assert [path.name.split(".")[0] for path in tmp_path.glob("__pycache__/*")] == ["plain"]
    program.python("program.py")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in tmp_path.glob("__pycache__/*"))
    assert "helper.py:Thing\n" in program.watched("--watch", "helper.py:Thing", "program.py").stderr
    assert before == sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.glob("__pycache__/*"))


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("package:Thing", "--watch package.helper:Thing"),
        ("package:total", "watch the function that calls it; its tensors are recorded there"),
    ],
)
def test_a_target_that_a_package_takes_from_elsewhere_has_a_hint(program, tmp_path, target, hint):
    """As `torch.nn` takes MultiheadAttention from the file that defines it, by a star."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from .helper import *\ntotal = sum\n")
    (tmp_path / "package" / "helper.py").write_text(dedent(PLAIN))
    program.write(program="import package")
    watched = program.watched("--watch", target, "program.py")
    name = target.partition(":")[2]
    assert watched.stderr.startswith(f"attnscope: note: __init__.py has no {name}: it defines ")
    assert watched.stderr.endswith(f"\n  try  {hint}\n")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("target", "note"),
    [
        ("helper.py:Thing", "helper.py:Thing was not called"),
        (
            "unused.py:Thing",
            "unused.py:Thing was not called: unused.py was not imported by this program",
        ),
        ("no.such:Thing", "no.such:Thing was not called: no.such was not imported by this program"),
        ("helper:Thin", "helper.py has no Thin: it defines Thing.\n  try  --watch helper.py:Thing"),
    ],
)
def test_a_target_that_is_not_called_is_told(program, target, note):
    program.write(helper=PLAIN, unused=PLAIN, program="import helper, sys; sys.exit(5)")
    watched = program.watched("--watch", target, "program.py", "--strict")
    assert watched.returncode == 5
    assert watched.stderr == f"attnscope: note: {note}\n"


def test_torch_is_imported_when_the_program_does(program):
    program.write(helper=PLAIN, program="import helper, sys; print('torch' in sys.modules)")
    assert program.watched("--watch", "helper.py:Thing", "program.py").stdout == "False\n"


def test_forked_children_are_silent(program):
    program.write(
        program="""\
            import multiprocessing, os

            def thing(x):
                y = x
                return y

            if __name__ == "__main__":
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    print(pool.map(thing, range(3)))
                if os.fork() == 0:
                    thing(1)
                else:
                    os.wait()
                    print("parent")
            """
    )
    watched = program.watched("--watch", "program.py:thing", "program.py")
    assert watched.stdout.splitlines()[-1] == "parent"
    assert watched.stderr == (
        "attnscope: note: program.py:thing was called in another process: only calls in the main process are traced\n"
    )


# What is shown.


@pytest.mark.sweep
@pytest.mark.slow
def test_the_first_calls_are_shown_and_training_is_what_it_was(program):
    program.write(model=ATTENTION, train=TRAINING)
    plain = program.python("train.py", "--depth", "2")
    arguments = ["train.py", "--depth", "2", "--watch", "model.py:CausalSelfAttention"]
    json_options = ["--calls", "3", "--dims", "x=B,T,C", "--format", "json", "--source", "--stats"]
    watched = program.watched(*arguments, *json_options)
    assert_same_program(plain, watched)
    record = json.loads(watched.stderr)
    assert record["schema"] == "attnscope.traces/1"
    assert [trace["options"] for trace in record["traces"]] == [{"call": 1}, {"call": 2}, {"call": 3}]
    for trace in record["traces"]:
        assert trace["schema"] == "attnscope.trace/1"
        assert (trace["title"], trace["file"]) == ("model.py:CausalSelfAttention", "model.py")
        assert [step["name"] for step in trace["steps"]] == NAMES
        dims = {step["name"]: step["dims"] for step in trace["steps"]}
        assert (dims["x"], dims["scores"]) == (["B", "T", "C"], ["B", "heads", "T", "T"])
        assert "1/√12" in trace["findings"][0]["message"]
        assert trace["steps"][0]["stats"]["max"] > 0
        assert trace["source"][0]["function"] == "CausalSelfAttention.forward"


@pytest.mark.sweep
@pytest.mark.slow
def test_checkpointing_workers_and_children_are_what_they_were(program, tmp_path):
    program.write(model=ATTENTION, train=TRAINING)
    arguments = ["train.py", "--checkpoint", "--workers", "2", "--spawn"]
    plain = program.python(*arguments)
    watched = program.watched(
        "--watch", "model:CausalSelfAttention", "-o", "trace.txt", "--strict", "--calls", "2", *arguments
    )
    assert watched.stderr == plain.stderr
    assert (watched.stdout, watched.returncode, plain.returncode) == (plain.stdout, 1, 0)
    text = (tmp_path / "trace.txt").read_text(encoding="utf-8")
    assert re.findall("call . · float32", text) == ["call 1 · float32", "call 2 · float32"]
    assert not list(tmp_path.glob(".attnscope-*"))


@pytest.mark.sweep
@pytest.mark.slow
def test_what_is_compiled_runs_untraced_and_right(program):
    program.write(model=ATTENTION, train=TRAINING)
    arguments = ["train.py", "--depth", "2", "--compile"]
    plain = program.python(*arguments)
    watched = program.watched(*arguments, "--watch", "model.py:CausalSelfAttention")
    assert_same_program(plain, watched)
    assert watched.stderr == (
        "attnscope: note: model.py:CausalSelfAttention is compiled by torch.compile: it was not traced\n"
    )


@pytest.mark.sweep
@pytest.mark.slow
def test_what_is_compiled_inside_of_a_call_is_compiled_as_it_was(program):
    program.write(
        compiling="""\
            compilations = []

            def backend(graph, inputs):
                compilations.append(graph)
                return graph
            """,
        train="""\
            import torch
            from torch.nn.attention.flex_attention import flex_attention
            from compiling import backend, compilations

            @torch.compile(backend=backend)
            def act(x):
                y = x.relu()
                return y * 2

            def attend(x):
                def score_mod(score, b, h, i, j):
                    return score + (j - i)
                y = act(x)
                z = flex_attention(y, y, y, score_mod=score_mod)
                return z

            torch.manual_seed(0)
            for _ in range(3):
                print(attend(torch.randn(1, 1, 128, 16)).sum().item(), len(compilations))
            """,
    )
    plain = program.python("-W", "ignore", "train.py")
    watched = program.watched("--watch", "train.py:attend", "train.py")
    assert_same_program(plain, watched)
    rows = [line.split()[1] for line in watched.stderr.splitlines() if re.match(r" +\d+  ", line)]
    assert rows == ["x", "y", "z"]
    assert watched.stderr.endswith("\n\n"), "the program's output stands apart from the table"
    assert "\ncall 1 · float32" in watched.stderr


@pytest.mark.sweep
@pytest.mark.slow
def test_a_call_that_fails_is_shown_and_the_program_fails_as_it_did(program):
    program.write(
        train="""\
            import torch

            def attend(q, k):
                scores = q @ k
                return scores.softmax(-1)

            def again(q, k):
                try:
                    return attend(q, k)
                finally:
                    print("done")

            again(torch.ones(2, 5, 4), torch.ones(2, 7, 4))
            """
    )
    plain = program.python("train.py")
    watched = program.watched("train.py", "--watch", "train.py:attend", "--dims", "q=B,Q,D", "--wide")
    assert_same_program(plain, watched)
    assert watched.stderr.endswith(plain.stderr)
    shown = watched.stderr.removesuffix(plain.stderr)
    assert "line 4: q @ k" in shown
    assert "axis 2 of q (D 4) and axis 1 of k (7) disagree" in shown
    assert shown.count("input") == 2


# Messages about a target that has no trace.

SAYS = {
    "it was not called": ("import thing", "thing.py:Thing was not called"),
    "it was not imported": (
        "pass",
        "thing.py:Thing was not called: thing.py was not imported by this program",
    ),
    "it was loaded past all finders": (
        "import importlib.util as u; s = u.spec_from_file_location('other', 'thing.py');"
        " m = u.module_from_spec(s); s.loader.exec_module(m); m.Thing().forward(1)",
        "thing.py:Thing was not traced: thing.py was loaded in a way that cannot be watched",
    ),
    "it did not return": (
        "import thing, threading, time; wait = threading.Event();"
        " threading.Thread(target=thing.Thing().forward, args=[wait], daemon=True).start(); time.sleep(1)",
        "thing.py:Thing was called, but the program ended before it returned",
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("what", SAYS)
def test_that_a_target_was_not_called_is_said_only_if_it_was_not(program, what):
    code, note = SAYS[what]
    thing = """\
        class Thing:
            def forward(self, x):
                y = x.wait() if hasattr(x, "wait") else x
                return y
        """
    program.write(thing=thing, program=code)
    watched = program.watched("--watch", "thing.py:Thing", "program.py")
    assert (watched.returncode, watched.stderr) == (0, f"attnscope: note: {note}\n")


@pytest.mark.sweep
def test_a_program_that_ends_at_once_has_its_status_and_its_trace(program):
    program.write(helper=PLAIN, program="import helper, os; helper.Thing().forward(1); os._exit(5)")
    watched = program.watched("--watch", "helper.py:Thing", "--calls", "2", "program.py")
    assert watched.returncode == 5
    assert "helper.py:Thing was called 1 of 2 times" in watched.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize(("ending", "status", "err"), [("'bye'", 1, "bye\n"), ("3", 3, ""), ("", 0, "")])
def test_a_target_that_exits_has_its_status_its_text_and_its_trace(program, ending, status, err):
    thing = f"""\
        import sys, torch
        def f(x):
            y = x + 1
            sys.exit({ending})
        """
    program.write(thing=thing, program="import thing, torch; thing.f(torch.ones(3))")
    watched = program.watched("--watch", "thing.py:f", "program.py")
    assert watched.returncode == status
    assert "x + 1" in watched.stderr
    assert watched.stderr.endswith(err)
