"""Where the tests of pages find a browser, and what happens where there is none."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

NONE = "no chromium on the PATH: install Debian's chromium, or say where one is: CHROMIUM=/path/to/it"


def path_of_chromium() -> str:
    """Return the path of the browser. Without one the test is skipped; with `CI` set it fails."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(NONE)
    return path


def print_skipped(terminalreporter: Any) -> None:
    """Print in a line how many tests were skipped because there is no browser."""
    skipped = [each for each in terminalreporter.stats.get("skipped", []) if NONE in str(each.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests of pages were skipped: {NONE}")
