"""The allowed imports, according to docs/architecture.md."""

import ast
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "attnscope"

LOW = {"text", "units", "errors", "results", "attention_sinks", "arrays", "files", "contracts"}
READS = LOW | {"suggestions", "process", "sizes", "tensor_files"}
INTERNALS = "tracing/instrument/torch_internals"
TRACING = {"tracing", "tracing/instrument", INTERNALS, "tracing/axes", "tracing/diagnose"}

MAY_IMPORT = {
    # Plain data and small tools.
    "text": set(),
    "units": set(),
    "options": {"errors"},
    "suggestions": {"errors", "text"},
    "errors": {"text"},
    "results": set(),
    "completion": {"checkpoints", "errors", "models/heads", "suggestions"},
    "attention_sinks": set(),
    "arrays": {"results"},
    "files": {"errors", "text"},
    "process": {"errors", "files", "text", "units"},
    "sizes": {"contracts", "errors", "tensor_files"},
    "tensor_files": {"errors", "text"},
    # The textbook, and its descriptions.
    "contracts": {"errors", "results", "text"},
    "attention": {"errors", "text"},
    "textbook": READS | TRACING | {"options", "attention", "textbook/inputs", "textbook/reference"},
    "textbook/inputs": READS | {"attention", "checkpoints"},
    "textbook/reference": LOW,  # what proves shares nothing with what it proves
    # Tracing, for the textbook and for everybody's code.
    "tracing": READS | TRACING | {"options", "tracing/target", "tracing/comments"},
    INTERNALS: {"errors"},
    "tracing/instrument": LOW | {INTERNALS},
    "tracing/axes": LOW | {"tracing/instrument"},
    "tracing/diagnose": LOW | {"tracing/instrument", INTERNALS, "tracing/axes"},
    "tracing/target": READS | {"tracing/axes", INTERNALS},
    "tracing/comments": LOW | {"tracing/axes"},
    # Masks of models, of the textbook, and of functions.
    "masks": READS
    | {"options", "attention", "checkpoints", "textbook", "textbook/inputs", "tracing/target"}
    | {"models/running", "models/maps", "models/masks"},
    # Two attentions side by side.
    "comparison": READS
    | {"options", "models", "textbook"}
    | {f"comparison/{each}" for each in ("sides", "anatomy", "divergence", "causes")},
    "comparison/sides": READS
    | {"attention", "comparison/anatomy", "models", "tracing", "tracing/target"},
    "comparison/anatomy": set(),
    "comparison/divergence": {"comparison/anatomy"},
    "comparison/causes": {"comparison/anatomy", "comparison/divergence"},
    # Which positions influence which.
    "influence": READS
    | {"options", "checkpoints", "comparison/sides", "comparison/anatomy", "models/running"}
    | {"tracing/target"}
    | {f"influence/{each}" for each in ("measure", "models", "properties")},
    "influence/properties": LOW
    | {"influence/measure", "influence/models", "models/masks", "models/running"},
    "influence/models": LOW
    | {"influence/measure", "comparison/anatomy", "models/masks", "models/running", "process"},
    "influence/measure": {"results", "comparison/anatomy"},
    # What a model's attention costs, before it is loaded.
    "cost": LOW | {"checkpoints", "options", "process"},
    # Real models.
    "checkpoints": LOW | {"process"},
    "models": LOW
    | {
        "process",
        "attention",
        "checkpoints",
        "models/running",
        "models/masks",
        "models/maps",
        "models/heads",
        "tracing",
    },
    "models/running": LOW | {"process", "attention", "checkpoints"},
    "models/masks": LOW | {"process", "attention", "checkpoints", "models/running", "models/maps"},
    "models/heads": LOW | {"process", "attention", "checkpoints", "options", "models/running"},
    "models/maps": LOW
    | {"process", "attention", "checkpoints", "models/running", "models/heads", "tracing", "options"}
    | {"render/files", "render/page"},  # whole maps are written while they are computed
    # The magic of notebooks: like the command line, it reads options and calls the library.
    "magic": {"errors", "options", "text", "tracing"},
    # Results as text, files and pictures: they depend on results alone.
    "render": LOW,
    "render/records": LOW | {"render"},
    "render/terminal": LOW | {"render", "render/records"},
    "render/figures": LOW | {"render"},
    "render/page": LOW | {"render"},
    "render/notebook": LOW | {"render", "render/page", "render/terminal"},
    "render/files": LOW
    | {"render", "render/records", "render/figures", "render/page", "render/notebook"},
}
LOADS_VIEWS = PACKAGE / "results" / "common.py"
"""The only place below the views that imports them, when they are first used."""
EVERYTHING = {"cli", "__init__", "__main__"}
"""Their allowed imports are defined below."""


def package_of(parts: list[str]) -> str:
    """Return the innermost package, or the top-level file, that a module belongs to."""
    for n in range(len(parts), 0, -1):
        if PACKAGE.joinpath(*parts[:n], "__init__.py").exists():
            return "/".join(parts[:n])
    return parts[0]


def own_package(path: Path) -> str:
    return package_of(list(path.relative_to(PACKAGE).with_suffix("").parts))


def imports_of(path: Path) -> set[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    packages = {package_of(name.split(".")[1:]) for name in names if name.startswith("attnscope.")}
    return {each for each in packages if path != LOADS_VIEWS or not each.startswith("render")}


def test_packages_import_only_what_they_may():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if (own := own_package(path)) not in EVERYTHING
        for other in sorted(imports_of(path) - MAY_IMPORT[own] - {own})
    ]
    assert not wrong


def test_every_package_is_known():
    packages = {own_package(path) for path in PACKAGE.rglob("*.py")}
    assert packages == {*MAY_IMPORT, *EVERYTHING}


def test_imports_run_downwards():
    """No package indirectly imports a package that imports it."""
    left = {package: set(others) - {package} for package, others in MAY_IMPORT.items()}
    while free := [package for package, others in left.items() if not others & left.keys()]:
        for package in free:
            del left[package]
    # `tracing` is the room of what its parts make together, and its parts do not import it.
    assert not left, f"a circle: {sorted(left)}"


PRIVATE = re.compile(r"torch(\.\w+)*\._[a-z]\w*|\btorch\.\w+\._[A-Z]")
"""A private part of torch."""


def test_private_parts_of_torch_are_used_in_one_place():
    users = {
        path.parent.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if PRIVATE.search(path.read_text(encoding="utf-8"))
    }
    assert users == {INTERNALS}


def test_torch_is_bounded_by_the_release_that_these_tests_run_with():
    """A newer torch may have changed its private parts: it is allowed once the tests have run with it."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    [torch] = [each for each in project["project"]["dependencies"] if re.match(r"torch\b", each)]
    major, minor, *_ = map(int, re.findall(r"\d+", version("torch")))
    assert f"<{major}.{minor + 1}" in torch


def test_the_command_line_imports_public_functions_options_and_views():
    """A command parses, calls a public function and shows its result."""
    import attnscope

    public = {*attnscope._HOMES.values()}
    low = (
        "cli",
        "render",
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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            if not name or not name.startswith("attnscope.") or name in public:
                continue
            package, last = name.split(".")[1], name.split(".")[-1]
            if package not in low and last != "options":
                wrong.append(f"{path.name} imports {name}")
    assert not wrong


def test_the_command_line_is_small():
    from attnscope.cli import app

    lines = sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in (PACKAGE / "cli").glob("*.py")
    )
    assert lines <= 400 + 200 * len(app.COMMANDS)


LONGEST = 60
"""The lines of a function's body; a longer one has a comment with this word in it: `# long, because …`."""


def test_functions_fit_on_a_screen():
    long = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                text = source.splitlines()[node.lineno - 1 : node.end_lineno]
                length = body[-1].end_lineno - body[0].lineno + 1
                if length > LONGEST and not any("# long, because" in line for line in text):
                    long.append(f"{path.relative_to(PACKAGE)}: {node.name} has {length} lines")
    assert not long
