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
def attnscope(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Return a function that runs a command line: `attnscope("sdpa", "--nq", 30)`."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        exit_status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(exit_status, captured.out, captured.err)

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
