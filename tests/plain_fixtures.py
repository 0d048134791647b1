"""Fixtures that need no torch, for tests that run under every Python."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from attnscope.cli.app import main
from tests.hints import faults_of_hint


@dataclass
class Ran:
    """The exit status and the output of a command."""

    exit_status: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def attnscope(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Ran]:
    """Return a function that runs a command line: `attnscope("sdpa", "--nq", 30)`.

    With `--paste-hints`, hints of mistakes are pasted, and must help; but no file is replaced.
    """
    monkeypatch.delenv("COLUMNS", raising=False)

    def ran(words: list[str]) -> Ran:
        capsys.readouterr()
        exit_status = main(words)
        captured = capsys.readouterr()
        return Ran(exit_status, captured.out, captured.err)

    def pasted(words: list[str]) -> str:
        replaces = {"--force", "--write"} & {*words}
        return "" if replaces or words[:1] == ["run"] else ran(words).err

    def run(*arguments: object) -> Ran:
        words = [str(argument) for argument in arguments]
        result = ran(words)
        if result.exit_status == 2 and request.config.getoption("--paste-hints", False):
            faults = [*faults_of_hint(words, result.err, pasted)]
            assert not faults, faults
        return result

    return run


_numbers = count()


@pytest.fixture
def module_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Makes a module of source text, in a file of its own: tracing works on source."""

    def make(source: str) -> ModuleType:
        name = f"traced_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(dedent(source), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return make
