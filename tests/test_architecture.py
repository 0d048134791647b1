"""The allowed imports, according to docs/architecture.md."""

import ast
import re
import tomllib
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "attnscope"

ROOMS = {
    "textbook",
    "tracing",
    "comparison",
    "auditing",
    "masks",
    "weights",
    "answers",
    "maps",
    "heads",
    "head_effects",
    "model_card",
}
"""A package for each question: it imports what rooms share, and no other room."""

SHARED = [
    {"text", "units", "dtypes"},
    {"errors"},
    {"options", "suggestions", "process", "tensor_files", "attention"},
    {"document", "arrays"},
    {"arguments", "keywords", "checkpoints", "families"},
    {"contracts", "sizes", "observe", "user_code"},
    {"models"},
    {"implementations"},
]
"""What rooms share, from the bottom: a package imports those below it, and those beside it."""

EVERYTHING = {"cli", "comparisons", "magic", "load", "completion", "__init__", "__main__"}
"""What stands above all rooms."""


def package_of(path: Path) -> str:
    """Return the package, or the file, of the top level that a module belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> set[str]:
    """Return the packages of the top level that a module imports, wherever it does so."""
    names = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("attnscope.")} & PACKAGES


PACKAGES = {package_of(path) for path in PACKAGE.rglob("*.py")}


def allowed(package: str) -> set[str]:
    """Return what a package may import."""
    if package in EVERYTHING:
        return PACKAGES
    below: set[str] = set()
    for level in SHARED:
        below |= level
        if package in level:
            return below
    return below | {package}


def test_packages_import_only_what_they_may():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for other in sorted(imports_of(path) - allowed(package_of(path)))
        if other != package_of(path)
    ]
    assert not wrong


def test_every_package_is_known():
    assert ROOMS | EVERYTHING | set().union(*SHARED) == PACKAGES


def test_no_two_classes_have_one_name():
    names = [
        node.name
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert not {name for name in names if names.count(name) > 1}


PRIVATE = re.compile(r"torch(\.\w+)*\._[a-z]\w*|\btorch\.\w+\._[A-Z]")
"""A private part of torch."""


def test_private_parts_of_torch_are_used_in_one_place():
    users = {
        path.parent.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if PRIVATE.search(path.read_text(encoding="utf-8"))
    }
    assert users == {"observe/torch_internals"}


def test_torch_is_bounded_by_the_release_that_these_tests_run_with():
    """A newer torch may have changed its private parts: it is allowed once the tests have run with it."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    [torch] = [each for each in project["project"]["dependencies"] if re.match(r"torch\b", each)]
    major, minor, *_ = map(int, re.findall(r"\d+", version("torch")))
    assert f"<{major}.{minor + 1}" in torch


def test_the_command_line_imports_public_functions_options_and_views():
    """A command parses, calls a public function, shows its result and writes it to files."""
    import attnscope

    public = {*attnscope._HOMES.values()}
    low = (
        "cli",
        "document",
        "results",
        "process",
        "errors",
        "text",
        "units",
        "options",
        "completion",
        "suggestions",
        "files",
        "arrays",
    )
    wrong = []
    for path in sorted((PACKAGE / "cli").glob("*.py")):
        for node in ast.walk(parsed(path)):
            name = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            if not name or not name.startswith("attnscope.") or name in public:
                continue
            package, last = name.split(".")[1], name.split(".")[-1]
            if package not in low and last not in ("options", "request", "files", "result"):
                wrong.append(f"{path.name} imports {name}")
    assert not wrong


def test_the_command_line_is_small():
    from attnscope.cli import app

    lines = sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in (PACKAGE / "cli").glob("*.py")
    )
    assert lines <= 400 + 200 * len(app.COMMANDS)
