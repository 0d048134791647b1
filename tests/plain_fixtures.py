"""Fixtures that need no torch, for tests that run under every Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

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
