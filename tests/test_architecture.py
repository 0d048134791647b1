"""The allowed imports, according to docs/architecture.md."""

import ast
import re
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path

from attnscope.cli.app import PURPOSES, Commands

PACKAGE = Path(__file__).parent.parent / "attnscope"

ORDER = [
    {"base"},
    {"document"},
    {"attention"},
    {"observe"},
    {"model"},
    {"formula"},
    {"code"},
    {"masks", "auditing"},
    {"cli"},
    {"load", "notebook", "__init__", "__main__"},
]
"""The folders, in the direction of the data: each imports those above it."""

INSIDE = {
    "model": [
        {"files", "families"},
        {"run", "masks"},
        {"maps", "heads"},
        {"weights", "effects", "answers", "card"},
    ],
    "code": [{"load"}, {"pairs"}, {"trace", "compare"}],
}
"""The folders inside a folder, in the same way."""

ROOMS = {
    *("model.weights", "model.effects", "model.answers", "model.card"),
    *("code.trace", "code.compare", "masks", "auditing"),
}
"""Folders that answer a question each: none imports another that stands beside it."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> set[tuple[str, ...]]:
    """Return what a module imports of the package, wherever it does so, as paths inside it."""
    return imports_of_tree(parsed(path))


def imports_of_tree(tree: ast.Module) -> set[tuple[str, ...]]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {tuple(name.split(".")[1:]) for name in names if name.startswith("attnscope.")}


def levels(place: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the folders of a place that have an order, each with its level."""
    found = []
    for depth, order in enumerate([ORDER, INSIDE.get(place[0], [])]):
        of_place = place[depth : depth + 1]
        found += [
            (".".join(place[: depth + 1]), level)
            for level, names in enumerate(order)
            if names.intersection(of_place)
        ]
    return found


def may_import(importer: tuple[str, ...], imported: tuple[str, ...]) -> bool:
    """Whether a module may import another: from the same folder, one above it, or beside it if shared."""
    for (own, own_level), (other, other_level) in zip(levels(importer), levels(imported), strict=False):
        if own != other:
            return own_level > other_level or (own_level == other_level and other not in ROOMS)
    return True


def test_a_folder_imports_only_those_above_it():
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).with_suffix("").parts
        wrong += [
            f"{path.relative_to(PACKAGE)} imports {'.'.join(each)}"
            for each in sorted(imports_of(path))
            if len(each) > 1 and not may_import(place, each)
        ]
    assert not wrong


KNOWN_CIRCLE = ("attention", "masks"), ("attention", "mask_rules")
"""Rules are built from masks, which name what rules hide."""


def test_no_modules_import_each_other():
    modules = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
    imported = {}
    for place, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {each if each in modules else each[:-1] for each in imports_of_tree(without_types(tree))}
        imported[place] = (names & modules.keys()) - {place}
    imported[KNOWN_CIRCLE[0]].discard(KNOWN_CIRCLE[1])
    TopologicalSorter(imported).prepare()  # raises a CycleError, which names the circle


def without_types(tree: ast.Module) -> ast.Module:
    """Leave out what is imported for type checkers alone."""
    tree.body = [
        each
        for each in tree.body
        if not (isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
    ]
    return tree


def test_every_folder_has_its_place():
    known = set().union(*ORDER)
    assert known == {
        path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"
    } - {"__pycache__"}
    for name, order in INSIDE.items():
        inside = {path.name for path in (PACKAGE / name).iterdir() if path.is_dir()} - {"__pycache__"}
        assert set().union(*order) == inside


def test_an_import_of_a_folder_below_is_found():
    assert not may_import(("model", "run", "load"), ("code", "trace"))
    assert not may_import(("model", "run", "load"), ("model", "maps", "result"))
    assert not may_import(("model", "card", "card"), ("model", "effects", "grid"))
    assert may_import(("model", "card", "card"), ("model", "files", "config"))


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
    low = ("cli", "base", "document")
    wrong = []
    for path in sorted({*(PACKAGE / "cli").glob("*.py")} - {PACKAGE / "cli" / "completion.py"}):
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


READERS = {
    "base/process/error_record.py",
    "base/process/script_words.py",
    "base/spelling.py",
    "base/suggestions.py",
    "notebook.py",
    "model/card/result.py",
}
"""Files beside `cli` that read command lines or lines of `%%attnscope`, or have a flag as data."""

DECLARES = re.compile(r"option|Flag|_size|inputs_of_calls|alignment_of_queries")
"""Functions that declare an option: their texts are its help."""

A_FLAG = re.compile(r"(?<![\w/.-])--[a-z][a-z-]*")
OF_OTHERS = re.compile(r"\b(attnscope|torchrun|vLLM|llama\.cpp|pip)\b.*", re.DOTALL)
"""Commands as a shell takes them, and options of other programs."""


def texts_of(node: ast.AST) -> list[str]:
    """Return the texts that messages are made of, and those that may be: without docstrings and help."""
    if isinstance(node, ast.JoinedStr):
        values = [each for each in node.values if not isinstance(each, ast.Constant)]
        whole = "".join(each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
        return [whole, *(text for each in values for text in texts_of(each))]
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return []
    if isinstance(node, ast.keyword) and node.arg == "command_line":
        return []
    if isinstance(node, ast.Call) and DECLARES.search(ast.unparse(node.func)):
        return []
    return [text for each in ast.iter_child_nodes(node) for text in texts_of(each)]


def test_no_message_of_the_library_has_a_flag_in_it():
    """`spelled` names options, as flags or as keywords; texts for one side alone are those of `either`."""
    flags = {flag for name in PURPOSES for flag in Commands()[name].takes_value} - {"--help"}
    found = [
        f"{path}: {flag} in {text!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "cli"
        and path.relative_to(PACKAGE).as_posix() not in READERS
        for text in texts_of(parsed(path))
        for flag in A_FLAG.findall(OF_OTHERS.sub("", text))
        if flag in flags and "{%" not in text  # a template's styles
    ]
    assert found == []
