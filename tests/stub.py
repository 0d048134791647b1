"""The types of `attnscope`'s public names, for editors and type checkers.

    python -m tests.stub        writes them into attnscope/__init__.pyi

Classes, and functions as they are written, are imported. A function that is written with groups of options
is declared with a keyword for each.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import attnscope

FILE = Path(attnscope.__file__).with_suffix(".pyi")
HEAD = '"""See attention. Generated from the declarations of options: `python -m tests.stub`."""\n\n'


def stub() -> str:
    """Return the stub."""
    imports: set[str] = set()
    functions = []
    for name in sorted(attnscope.__all__):
        home = attnscope._HOMES[name]
        found = getattr(import_module(home), name)
        if hasattr(found, "declared"):
            functions.append(declaration(name, found, imports))
        else:
            imports.add(f"from {home} import {name} as {name}")
    imports.add(f"from {attnscope._HOMES['load']} import load as load")
    for each in ("load_ipython_extension", "unload_ipython_extension"):
        imports.add(f"from {attnscope._HOMES[each]} import {each} as {each}")
    imports -= {each.rpartition(" as ")[0] for each in imports}
    return "\n".join([HEAD + "\n".join(sorted(imports)), "", "__version__: str", "", *functions, ""])


def declaration(name: str, function: Any, imports: set[str]) -> str:
    """Return the declaration of a function, and add the imports that its annotations need."""
    parameters, by_name = [], False
    for each in signature(function).parameters.values():
        declared = function.declared.get(each.name)
        names = declared.names if declared else function.grouped.__globals__
        annotation = with_choices(each.annotation, names)
        imports |= set(imports_of(annotation, names["__name__"]))
        default = "" if each.default is Parameter.empty else " = ..."
        star = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(each.kind, "")
        if each.kind is Parameter.KEYWORD_ONLY and not by_name:
            parameters += [] if any(p.startswith("*") for p in parameters) else ["*"]
            by_name = True
        parameters.append(f"{star}{each.name}: {annotation}{default}")
    returned = function.grouped.__annotations__["return"]
    imports |= set(imports_of(returned, function.grouped.__module__))
    lines = "".join(f"    {each},\n" for each in parameters)
    return f"def {name}(\n{lines}) -> {returned}: ..."


def with_choices(annotation: str, names: Any) -> str:
    """Return an annotation with the values of an enumeration, which users write as texts."""
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        named = names.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(named, type) and issubclass(named, StrEnum):
            values = ", ".join(f'"{each}"' for each in named)
            annotation = re.sub(rf"\b{named.__name__}\b", f"Literal[{values}]", annotation)
    return annotation


def imports_of(annotation: str, module: str) -> Iterator[str]:
    """Yield an import for each name in an annotation, as its module has it."""
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            home = "typing" if node.id == "Literal" else imported(module).get(node.id, module)
            yield f"from {home} import {node.id}"


def formatted(text: str) -> str:
    """Return a text as ruff formats it."""
    for words in (["check", "--select", "I", "--fix", "-q"], ["format"]):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", FILE.name, "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


@cache
def imported(module: str) -> dict[str, str]:
    """Return the names that a module imports, and from where."""
    tree = ast.parse(Path(sys.modules[module].__file__ or "").read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {each.name: str(node.module) for node in nodes for each in node.names}


if __name__ == "__main__":
    FILE.write_text(formatted(stub()), encoding="utf-8")
