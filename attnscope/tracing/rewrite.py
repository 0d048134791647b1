"""Rewrites functions so that they tell a recorder what they name.

The source of a file is parsed, every expression whose value gets a name is wrapped in a
recording call, and the tree is compiled with the original file name and positions, so that
tracebacks stay exact. Only the code objects are used: they are lent to the functions that
are already there, and taken back afterwards. So whoever holds such a function (a class, a
decorator, another module) runs the rewritten one, and nothing is imported twice.

    Q_feat = self.W_Q(Q)

runs as

    Q_feat = <recorder>.end(7, <recorder>.begin(7), self.W_Q(Q))

where 7 is the number of the `Site`. `begin` is evaluated before the expression and `end`
after it, so what is computed between the two was computed for this name. The recorder is a
constant of the code: no name is needed for it, traces may be nested, and a closure that
outlives the trace that it was made in goes on to work.
"""

from __future__ import annotations

import ast
import gc
import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from attnscope.errors import SourceError

if TYPE_CHECKING:
    from attnscope.tracing.recorder import Recorder

RECORDER = "<the recorder of this trace>"
"""Stands for the recorder in a tree; the compiled code has the recorder itself in its place."""

Target: TypeAlias = "str | Star | tuple[Target, ...]"
"""What a value is bound to: a name, or a pattern of names that it is unpacked into."""


@dataclass(frozen=True)
class Star:
    """The `*rest` of an unpacking."""

    name: str


@dataclass(frozen=True)
class Site:
    """A place in a source file where a value gets a name, or where a function begins.

    Attributes:
        targets: what the value is bound to; several in `a = b = …`.
        how: the expression as it stands in the source, on one line.
        file, line: where.
    """

    targets: tuple[Target, ...]
    how: str
    file: str
    line: int


def rewrite(file: str, sites: list[Site]) -> dict[tuple[str, int], CodeType]:
    """Compile a source file with recording calls in its functions.

    Args:
        file: the file's name, as its code objects give it.
        sites: the sites found are appended here; recording calls name them by their index.

    Returns:
        The rewritten code of every function of the file, by qualified name and first line.

    Raises:
        SourceError: the source is not to be had, or is not what the running code came from.
    """
    lines = linecache.getlines(file)
    if not lines:
        raise SourceError(
            f"cannot read the source of {file}, and tracing works on source.",
            hint="put the code into a file: what is typed at a prompt or exec'd has no source",
        )
    tree = _Rewriter(file, lines, sites).visit(ast.parse("".join(lines), filename=file))
    module = compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)
    return dict(_codes_in(module))


@contextmanager
def rewritten(file: str, recorder: Recorder) -> Iterator[None]:
    """Run the functions of a file rewritten, reporting to `recorder`, while the context lasts.

    Args:
        file: the file's name, as its code objects give it.
        recorder: gets the sites, and every `begin` and `end`.

    Raises:
        SourceError: as `rewrite`.
    """
    codes = {key: _with(recorder, code) for key, code in rewrite(file, recorder.sites).items()}
    originals: list[tuple[FunctionType, CodeType]] = []
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == file:
            code = function.__code__
            new_code = codes.get((code.co_qualname, code.co_firstlineno))
            if new_code is not None and new_code.co_freevars == code.co_freevars:
                originals.append((function, code))
                function.__code__ = new_code
    try:
        yield
    finally:
        for function, code in originals:
            function.__code__ = code


def _with(recorder: Recorder, code: CodeType) -> CodeType:
    """The code, and all code in it, with a recorder in its place."""
    constants: list[Any] = list(code.co_consts)
    for i, constant in enumerate(constants):
        if isinstance(constant, CodeType):
            constants[i] = _with(recorder, constant)
        elif isinstance(constant, str) and constant == RECORDER:
            constants[i] = recorder
    return code.replace(co_consts=tuple(constants))


def _codes_in(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _codes_in(constant)


_Function = TypeVar("_Function", ast.FunctionDef, ast.AsyncFunctionDef)
_Loop = TypeVar("_Loop", ast.For, ast.AsyncFor)
_With = TypeVar("_With", ast.With, ast.AsyncWith)


class _Rewriter(ast.NodeTransformer):
    """Puts recording calls into the functions of a module's tree."""

    def __init__(self, file: str, lines: list[str], sites: list[Site]) -> None:
        self.file = file
        self.lines = [line.encode() for line in lines]
        self.sites = sites

    # Functions: the arguments get their names first, and leaving is told however it happens.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return self._function(node)

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self._functions_in(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Only a class's functions: what its body binds are attributes, not intermediates."""
        self._functions_in(node)
        return node

    def _functions_in(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.visit(child)  # changes it in its place
            else:
                self._functions_in(child)

    def _function(self, node: _Function) -> _Function:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        suspends = any(_suspends(child) for child in node.body)
        has_docstring = ast.get_docstring(node, clean=False) is not None
        docstring, body = node.body[:has_docstring], node.body[has_docstring:]

        arguments = node.args.posonlyargs + node.args.args
        arguments += [node.args.vararg] if node.args.vararg else []
        arguments += node.args.kwonlyargs
        arguments += [node.args.kwarg] if node.args.kwarg else []
        names = tuple(argument.arg for argument in arguments)
        loaded = ast.Tuple([ast.Name(name, ast.Load()) for name in names], ast.Load())
        start: list[ast.stmt] = [
            ast.Expr(self._wrap(loaded, self._site((names,), "input", node.lineno)))
        ]
        body = start + [statement for child in body for statement in self._visited(child)]

        # A generator's frame outlives the call that it was made in: it gets no enter and leave.
        if not suspends:
            enter = self._site((), node.name, first)
            body = [
                ast.Expr(_call("enter", ast.Constant(enter))),
                ast.Try(body, [], [], [ast.Expr(_call("leave"))]),
            ]
        for statement in body:
            _locate(statement, node.body[0])
        node.body = docstring + body
        return node

    def _visited(self, node: ast.stmt) -> list[ast.stmt]:
        result = self.visit(node)
        return result if isinstance(result, list) else [result]

    # Bindings. An expression that suspends (`await`, `yield`) is not wrapped, because others are
    # evaluated before it ends: what it binds is recorded by a statement that follows it.

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | list[ast.stmt]:
        if _suspends(node.value):
            bind = [self._bind(target, self._text(node.value)) for target in node.targets]
            self.generic_visit(node)
            return [node, *(statement for each in bind for statement in each)]
        targets = tuple(self._target(target) for target in node.targets)
        site = self._site(targets, self._text(node.value), node.lineno)
        self.generic_visit(node)
        node.value = self._wrap(node.value, site)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign | list[ast.stmt]:
        if node.value is None:
            return node
        if _suspends(node.value):
            bind = self._bind(node.target, self._text(node.value))
            self.generic_visit(node)
            return [node, *bind]
        site = self._site((self._target(node.target),), self._text(node.value), node.lineno)
        node.value = self._wrap(self.visit(node.value), site)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.NamedExpr:
        if not _suspends(node.value):
            site = self._site((self._target(node.target),), self._text(node.value), node.lineno)
            node.value = self._wrap(self.visit(node.value), site)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        """`x += y` has no expression that yields the new x: it is read again, where that is safe."""
        if _suspends(node):
            bind = self._bind(node.target, self._text(node))
            self.generic_visit(node)
            return [node, *bind]
        site = self._site((self._target(node.target),), self._text(node), node.lineno)
        target = deepcopy(node.target)
        calls = any(isinstance(part, ast.Call | ast.NamedExpr) for part in ast.walk(target))
        result: ast.expr = ast.Constant(None) if calls else target
        result.ctx = ast.Load()  # type: ignore[attr-defined]
        self.generic_visit(node)
        before = ast.Expr(_call("begin", ast.Constant(site)))
        after = ast.Expr(_call("end", ast.Constant(site), ast.Constant(None), result))
        return [_locate(before, node), node, _locate(after, node)]

    def visit_Return(self, node: ast.Return) -> ast.Return:
        """A returned name has its row already; a returned expression gets one."""
        if isinstance(node.value, ast.Tuple):
            for i, element in enumerate(node.value.elts):
                node.value.elts[i] = self._returned(element, f"return[{i}]")
        elif node.value is not None:
            node.value = self._returned(node.value, "return")
        return node

    def _returned(self, value: ast.expr, name: str) -> ast.expr:
        if isinstance(value, ast.Name | ast.Constant | ast.Starred) or _suspends(value):
            return value
        site = self._site((name,), self._text(value), value.lineno)
        return self._wrap(self.visit(value), site)

    def visit_For(self, node: ast.For) -> ast.For:
        return self._loop(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AsyncFor:
        return self._loop(node)

    def _loop(self, node: _Loop) -> _Loop:
        bind = self._bind(node.target, f"in {self._text(node.iter)}")
        self.generic_visit(node)
        node.body = bind + node.body
        return node

    def visit_With(self, node: ast.With) -> ast.With:
        return self._with(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AsyncWith:
        return self._with(node)

    def _with(self, node: _With) -> _With:
        bind: list[ast.stmt] = []
        for item in node.items:
            if item.optional_vars is not None:
                bind += self._bind(item.optional_vars, self._text(item.context_expr))
        self.generic_visit(node)
        node.body = bind + node.body
        return node

    def _bind(self, target: ast.expr, how: str) -> list[ast.stmt]:
        """A statement that records names which have just been bound."""
        parts = list(ast.walk(target))
        if not all(isinstance(p, ast.Name | ast.Tuple | ast.List | ast.expr_context) for p in parts):
            return []
        loaded = deepcopy(target)
        for part in ast.walk(loaded):
            if isinstance(part, ast.Name | ast.Tuple | ast.List):
                part.ctx = ast.Load()
        site = self._site((self._target(target),), how, target.lineno)
        return [_locate(ast.Expr(self._wrap(loaded, site)), target)]

    # The pieces of a recording call.

    def _site(self, targets: tuple[Target, ...], how: str, line: int) -> int:
        self.sites.append(Site(targets, how, self.file, line))
        return len(self.sites) - 1

    def _wrap(self, value: ast.expr, site: int) -> ast.expr:
        begin = _call("begin", ast.Constant(site))
        return _locate(_call("end", ast.Constant(site), begin, value), value)

    def _target(self, node: ast.expr) -> Target:
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self._target(element) for element in node.elts)
        if isinstance(node, ast.Starred):
            return Star(self._text(node.value))
        return self._text(node)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        """The node's source, on one line."""
        assert node.end_lineno is not None
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b"".join(lines).decode().split())


def _suspends(node: ast.AST) -> bool:
    """Whether running this node can suspend the function it stands in."""
    if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return False
    return any(_suspends(child) for child in ast.iter_child_nodes(node))


def _call(method: str, *arguments: ast.expr) -> ast.Call:
    function = ast.Attribute(ast.Constant(RECORDER), method, ast.Load())
    return ast.Call(function, list(arguments), [])


_Node = TypeVar("_Node", bound=ast.AST)


def _locate(new: _Node, old: ast.AST) -> _Node:
    """Give the nodes that have no position yet the position of `old`."""
    for node in ast.walk(new):
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            ast.copy_location(node, old)
    return new
