"""Ctrl-C: status 130, one line, no traceback, no temporary file."""

import os
import signal
import subprocess
import sys
from textwrap import dedent

import pytest

from attnscope.base.process import interrupt
from tests.cli.interrupted import GOOD, LINE, count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "interrupted"), [(3, 1), pytest.param(40, 21, marks=pytest.mark.sweep)]
)
def test_whenever_it_comes_a_command_ends_with_130_and_one_line(signals, interrupted):
    counts = count(signals=signals, seed=1)
    bad = {key: times for key, times in counts.items() if key[1] not in GOOD}
    assert not bad
    assert sum(times for (_, kind), times in counts.items() if kind == "130 and one line") >= interrupted


def ended(code, *arguments, handler=signal.SIG_DFL, **options):
    """A process that sends itself SIGINT somewhere."""
    command = [sys.executable, "-c", dedent(code), *map(str, arguments)]
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, handler)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_it_ends_a_command_also_where_an_exception_would_be_lost():
    r = ended("""
        import signal, sys
        from attnscope import __main__
        from attnscope.cli import app

        class Lost:
            def __del__(self):
                signal.raise_signal(signal.SIGINT)

        app.main = lambda: Lost() and 0
        sys.exit(__main__.entry())
    """)
    assert (r.returncode, r.stdout, r.stderr) == (130, "", f"{LINE}\n")


def test_it_ends_a_command_in_the_middle_of_importing_what_writes_files():
    r = ended("""
        import signal, sys
        from types import ModuleType
        from attnscope.base.process import interrupt

        interrupt.install()
        sys.modules["attnscope.base.process.files"] = ModuleType("attnscope.base.process.files")  # nothing is in it yet
        signal.raise_signal(signal.SIGINT)
    """)
    assert (r.returncode, r.stdout, r.stderr) == (130, "", f"{LINE}\n")


def test_it_ends_a_command_while_threads_are_waited_for_at_the_end():
    r = ended("""
        import os, signal, sys, threading, time
        from attnscope import __main__
        from attnscope.cli import app

        def interrupts(main=threading.main_thread()):
            while not main._is_stopped:  # it has ended, and waits for the others
                time.sleep(0.05)
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

        app.main = lambda: threading.Thread(target=interrupts).start() or 0
        sys.exit(__main__.entry())
    """)
    assert (r.returncode, r.stderr) == (130, f"{LINE}\n")


def test_it_comes_too_late_when_all_is_done():
    r = ended("""
        import signal, sys
        from attnscope import __main__
        from attnscope.cli import app

        class Late:
            def __del__(self, raise_signal=signal.raise_signal):
                raise_signal(2)

        app.late = Late()
        app.main = lambda: print("done") or 0
        sys.exit(__main__.entry())
    """)
    assert (r.returncode, r.stdout, r.stderr) == (0, "done\n", "")


def test_a_job_in_the_background_goes_on_ignoring_it():
    r = ended(
        """
        import signal, sys
        from attnscope import __main__
        from attnscope.cli import app
        app.main = lambda: signal.raise_signal(signal.SIGINT) or 0
        sys.exit(__main__.entry())
        """,
        handler=signal.SIG_IGN,
    )
    assert (r.returncode, r.stderr) == (0, "")


def test_of_several_processes_the_first_says_it():
    code = "from attnscope.base.process import interrupt; interrupt.install(); interrupt.end()"
    ranks = [{**os.environ, "RANK": rank, "WORLD_SIZE": "2"} for rank in "01"]
    assert [ended(code, env=each).stderr for each in ranks] == [f"{LINE}\n", ""]


def test_what_is_being_written_is_removed(tmp_path):
    r = ended(
        """
        import signal, sys
        from pathlib import Path
        from attnscope.base.process import interrupt
        from attnscope.base.process.files import whole_file
        interrupt.install()
        with whole_file(Path(sys.argv[1]), force=True) as unfinished:
            unfinished.write_text("half")
            signal.raise_signal(signal.SIGINT)
        """,
        tmp_path / "values.npz",
    )
    assert r.returncode == 130
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def installed(monkeypatch):
    """The handler, as `install` sets it; ending raises SystemExit here."""

    def leave(status):
        raise SystemExit(status)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(interrupt, "_exit", leave)
    signal.signal(signal.SIGINT, interrupt.end)
    yield
    signal.signal(signal.SIGINT, before)


def test_code_of_the_user_gets_an_exception_and_a_second_one_ends(installed, capfd):
    with interrupt.raised():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == f"{LINE}\n"


def test_a_handler_of_the_users_own_is_in_force_while_its_code_runs(installed):
    caught = []
    with interrupt.raised():
        signal.signal(signal.SIGINT, lambda *_: caught.append("theirs"))
        signal.raise_signal(signal.SIGINT)
    assert caught == ["theirs"]
    assert signal.getsignal(signal.SIGINT) is interrupt.end


def test_a_program_has_the_handler_of_python(installed):
    interrupt.restore_python_handler()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_command_nothing_changes():
    before = signal.getsignal(signal.SIGINT)
    with interrupt.raised():
        assert signal.getsignal(signal.SIGINT) is before


SLEEPER = """
import signal
import torch

def f(x):
    y = x + 1
    signal.raise_signal(signal.SIGINT)
    z = y * 2
    return z

def with_others(x):
    y = x + 1
    if x.shape != (5,):
        signal.raise_signal(signal.SIGINT)
    return y
"""


def test_what_was_traced_so_far_is_shown_and_no_file_is_written(tmp_path, attnscope):
    (tmp_path / "code.py").write_text(SLEEPER)
    r = attnscope("trace", f"{tmp_path}/code.py:f", "--input", "x=n:5", "--save", tmp_path / "x.npz")
    assert r.exit_status == 130
    assert "✗ line 7" in r.out
    assert r.err == f"{LINE}\n"
    assert [each.name for each in tmp_path.iterdir()] == ["code.py"]


def test_in_runs_with_other_sizes_it_ends_only_these(tmp_path, attnscope):
    (tmp_path / "code.py").write_text(SLEEPER)
    r = attnscope("trace", f"{tmp_path}/code.py:with_others", "--input", "x=n:5")
    assert r.exit_status == 0
    assert "x + 1" in r.out
    assert r.err.startswith("attnscope: the search for axis names stopped by Ctrl-C: ")
    assert len(r.err.splitlines()) == 1


def test_a_function_may_note_it_and_a_second_one_ends(installed, capfd):
    noted = []
    with interrupt.noted(lambda: noted.append("first")):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)
    assert noted == ["first"]
    assert capfd.readouterr().err == f"{LINE}\n"


def test_a_function_may_note_it_in_a_notebook_too():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    noted = []
    try:
        with interrupt.noted(lambda: noted.append("first")):
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert noted == ["first"]
