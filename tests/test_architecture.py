"""Who may import whom, as docs/architecture.md says."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "attnscope"
LOW = {"errors", "results", "sinks", "text", "units", "values", "whole_file", "contracts"}
MAY_IMPORT = {
    "errors": {"text"},
    "results": set(),
    "sinks": set(),
    "text": set(),
    "units": set(),
    "values": {"results"},
    "whole_file": {"errors", "text"},
    "contracts": {"errors", "results", "text"},
    "attention": {"errors", "text"},
    "comments": {"errors", "results", "text", "whole_file"},
    "tracing": LOW,
    "verification": LOW,
    "inputs": LOW | {"attention"},
    "models": LOW | {"attention"},
    "views": LOW,
}
EXCEPTIONS = {("models/verify.py", "tracing"), ("models/steps.py", "tracing")}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("attnscope.")}


@pytest.mark.parametrize(
    "path", [p for p in sorted(PACKAGE.rglob("*.py")) if room(p) in MAY_IMPORT], ids=lambda p: p.stem
)
def test_rooms_import_only_what_they_may(path):
    own = room(path)
    for other in imported_rooms(path) - {own}:
        exception = (path.relative_to(PACKAGE).as_posix(), other)
        assert other in MAY_IMPORT[own] or exception in EXCEPTIONS, f"{path} imports {other}"


def test_every_room_is_known():
    rooms = {room(path) for path in PACKAGE.rglob("*.py")}
    assert rooms == {*MAY_IMPORT, "cli", "__init__", "__main__"}
