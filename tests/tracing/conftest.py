"""Code to trace, written into real files: tracing works on source."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

_numbers = count()


@pytest.fixture
def module_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Makes a module of source text, in a file of its own."""

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
