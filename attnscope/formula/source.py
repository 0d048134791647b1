"""Read the source of the textbook's functions without importing their modules."""

from __future__ import annotations

from typing import Any

from attnscope.observe.trace import Source, Trace


def source_of(module: str, function: str) -> Source:
    """Return the source of one of attnscope's functions.

    Args:
        module: its module, such as `attnscope.attention.sdpa`.
        function: its qualified name in the module.
    """
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for name in function.split("."):
        node = next(child for child in node.body if getattr(child, "name", None) == name)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return Source(f"{module}.{function}", node.lineno, "\n".join(lines))


def add_lines(plan: Trace, source: Source) -> None:
    """Set the source line of each step of a plan: the line that binds its name."""
    import ast
    import textwrap

    tree: Any = ast.parse(textwrap.dedent(source.text)).body[0]
    bound = {argument.arg: tree.lineno for argument in tree.args.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = node.lineno
    for step in plan.steps:
        if step.line is None and step.name in bound:
            step.line = bound[step.name] + source.line - 1
