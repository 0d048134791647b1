"""What several tests need: the command line as a function, and the real bundled model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from safetensors.torch import load_file

from attnscope.cli.app import main
from attnscope.models.checkpoint import find_checkpoint

# Speed is measured in benchmarks, never by a test: machines are noisy.
settings.register_profile("attnscope", deadline=None)
settings.load_profile("attnscope")


@dataclass
class Ran:
    """How a command ended, and what it wrote."""

    exit_status: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def attnscope(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs a command line through the entry point: `attnscope("sdpa", "--nq", 30)`."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        exit_status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(exit_status, captured.out, captured.err)

    return run


@pytest.fixture
def read_tensors() -> Callable[[Path], dict[str, torch.Tensor]]:
    """Reads a file of tensors as its format's own library reads it."""

    def read(path: Path) -> dict[str, torch.Tensor]:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".npz":
            return {name: torch.from_numpy(array) for name, array in np.load(path).items()}
        return torch.load(path, weights_only=True)

    return read


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the bundled model. It is never skipped: without it, half of this tests nothing."""
    folder = find_checkpoint("minilm").folder
    assert folder is not None
    return folder
