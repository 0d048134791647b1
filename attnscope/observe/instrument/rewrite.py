"""Rewriting of functions so that they report every named value to a recorder.

The source of a file is parsed, every expression whose value gets a name is wrapped in a
recording call, and the tree is compiled with the original file name and positions, so that
tracebacks stay exact.

    Q_feat = self.W_Q(Q)

runs as

    Q_feat = <relay>.end(7, <relay>.begin(7), self.W_Q(Q))

where 7 is the index of the `RecordingSite`. `begin` is evaluated before the expression and `end`
after it, so everything computed between the two belongs to this name. A subexpression is
passed through `<relay>.part(8, …)`, which stores its shape, so that the operands of
a failing expression are known. `code_swap` puts a relay into the code.
"""

from __future__ import annotations

import ast
import io
import linecache
import os
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType
from typing import TypeAlias, TypeVar

from attnscope.base.errors import SourceError

RELAY = "<the relay of this trace>"
"""The placeholder of the relay in a syntax tree; the code that runs has the relay itself instead."""

UNNAMED = "…"
"""The name of subexpressions."""

VIEWS = {"T", "mT", "H", "mH", "real", "imag", "data", "grad"}
"""Attributes of a tensor that are tensors themselves."""

Target: TypeAlias = "str | Star | tuple[Target, ...]"
"""The target of a binding: a name, or a pattern of names for unpacking."""

Place: TypeAlias = tuple[str, int, int, int, int]
"""The place of an expression: file, first line, last line, first column, end column (in bytes)."""


@dataclass(frozen=True)
class Star:
    """The `*rest` of an unpacking."""

    name: str


@dataclass(frozen=True)
class RecordingSite:
    """A place in a source file where a value gets a name or is passed on, or where a function begins."""

    #: the targets of the value: several in `a = b = …`, none where it is only passed on
    targets: tuple[Target, ...]
    how: str  #: the source of the expression, on one line; of a function, its qualified name
    place: Place
    line: int  #: the first line of the statement
    elements: tuple[str, ...] = ()  #: the source of each element of a list, tuple or dict display

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.place[0]


@dataclass(frozen=True)
class Rewritten:
    """Source files with recording calls in their functions."""

    sites: tuple[RecordingSite, ...]  #: the sites that recording calls refer to by index
    #: the rewritten code of every function, by file, qualified name and first line
    codes: dict[tuple[str, str, int], CodeType]
    #: the code of the same functions, in each way that Python may have compiled it
    originals: dict[tuple[str, str, int], list[CodeType]]
    modules: dict[str, CodeType]  #: the rewritten code of each whole file


def rewrite(files: Iterable[str], *, parts: bool = False, flags: int = 0) -> Rewritten:
    """Compile source files with recording calls in their functions.

    Args:
        parts: whether subexpressions get sites like bindings, named `…`.
        flags: the compiler's flags for code that is in no file, such as a notebook's cell: it inherits
            them from cells before it.

    Raises:
        SourceError: a source is not available.
    """
    return _rewrite(tuple((file, _source(file)) for file in files), parts, flags)


def _source(file: str) -> str:
    lines = linecache.getlines(file)
    if not lines:
        raise SourceError(
            f"cannot read the source of {file}, and tracing needs the source.",
            hint="put the code into a file: code typed at a prompt or run by exec has no source",
        )
    return "".join(lines)


@lru_cache(maxsize=16)
def _rewrite(sources: tuple[tuple[str, str], ...], parts: bool, flags: int) -> Rewritten:
    sites: list[RecordingSite] = []
    result = Rewritten((), {}, {}, {})
    for file, text in sources:
        is_cell = not os.path.exists(file)
        compiled = partial(
            compile,
            filename=file,
            mode="exec",
            flags=flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if is_cell else 0,
            dont_inherit=True,
        )
        whole = [ast.parse(text, filename=file)]
        # Notebooks compile each statement of a cell by itself, which affects the code of a function:
        # the compiler does not know that a name in it is an imported module.
        pieces = [ast.Module([each], []) for each in whole[0].body] if is_cell else []
        for tree in whole + pieces:
            for key, code in _functions_of(compiled(tree)).items():
                result.originals.setdefault(key, []).append(code)
        tree = _Rewriter(file, text, sites, parts=parts).visit(whole[0])
        code = compiled(ast.fix_missing_locations(tree))
        result.modules[file] = code
        result.codes.update(_functions_of(code))
    return Rewritten(tuple(sites), result.codes, result.originals, result.modules)


Codes = dict[tuple[str, str, int], CodeType]


def _functions_of(module: CodeType) -> Codes:
    """Return the code of each function, without ambiguous ones such as two lambdas on one line."""
    codes: Codes = {}
    twice = set()
    for code in _codes_in(module):
        key = code.co_filename, code.co_qualname, code.co_firstlineno
        if key in codes:
            twice.add(key)
        codes[key] = code
    return {key: code for key, code in codes.items() if key not in twice}


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


class _Rewriter(ast.NodeTransformer):
    """The transformer that inserts recording calls into the functions of a module."""

    def __init__(self, file: str, text: str, sites: list[RecordingSite], *, parts: bool) -> None:
        self.file = file
        self.lines = [line.encode() for line in io.StringIO(text)]
        self.sites = sites
        self.parts = parts
        self.path: list[str] = []  # the names of the enclosing classes and functions
        self.unbound: set[str] = set()  # names of lambdas and comprehensions, which have no steps
        self.in_f_string = False  # Python 3.11 stores wrong positions for expressions in f-strings

    # Functions: their arguments are recorded first; `leave` is called even after an exception.

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self._functions_in(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Transform only the functions of a class: its body binds attributes, not intermediates."""
        self.path.append(node.name)
        self._functions_in(node)
        self.path.pop()
        return node

    def _functions_in(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.visit(child)  # in place
            elif isinstance(child, ast.Lambda):
                child.body = self.visit(child.body)
            else:
                self._functions_in(child)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
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
        start: list[ast.stmt] = [ast.Expr(self._wrap(loaded, self._site((names,), "input", node)))]
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        node.args = self.visit(node.args)
        self.path.append(node.name)
        enter = self._site((), ".".join(self.path), node, line=first)
        self.path.append("<locals>")
        body = start + [statement for child in body for statement in self._visited(child)]
        del self.path[-2:]

        # A generator's frame outlives the call that created it, so it gets no enter and leave.
        if not suspends:
            body = [
                ast.Expr(_call("enter", ast.Constant(enter))),
                ast.Try(body, [], [], [ast.Expr(_call("leave"))]),
            ]
        for statement in body:
            _locate(statement, node.body[0])
        node.body = docstring + body
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815 - names of ast

    def _visited(self, node: ast.stmt) -> list[ast.stmt]:
        result = self.visit(node)
        return result if isinstance(result, list) else [result]

    # Bindings. An expression that suspends (`await`, `yield`) is not wrapped, because others are
    # evaluated before it ends: what it binds is recorded by a statement that follows it.

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | list[ast.stmt]:
        suspending = node.targets if _suspends(node.value) else []
        bind = [self._bind(target, node.value) for target in suspending]
        targets = tuple(map(self._target, node.targets))
        node.targets = [self.visit(target) for target in node.targets]
        if bind:
            node.value = self.visit(node.value)
            return [node, *(statement for each in bind for statement in each)]
        node.value = self._bound(node.value, targets, node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign | list[ast.stmt]:
        if node.value is None:
            return node
        if _suspends(node.value):
            bind = self._bind(node.target, node.value)
            node.value = self.visit(node.value)
            return [node, *bind]
        node.value = self._bound(node.value, (self._target(node.target),), node)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.NamedExpr:
        targets = (self._target(node.target),)
        if _suspends(node.value):
            site = self._site(targets, self._text(node.value), node)
            node.value = _locate(_call("bound", ast.Constant(site), self.visit(node.value)), node.value)
        else:
            node.value = self._bound(node.value, targets, node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        """Record `x += y`, which has no expression for the new x, by reading x again where safe."""
        if _suspends(node):
            bind = self._bind(node.target, node)
            self.generic_visit(node)
            return [node, *bind]
        return self._changed(node.target, node)

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | list[ast.stmt]:
        """Record `x.mul_(y)` like `x *= y`; charge the cost of other expression statements to no row."""
        if isinstance(node.value, ast.Constant) or _suspends(node.value):
            node.value = self.visit(node.value)
            return node
        function = node.value.func if isinstance(node.value, ast.Call) else None
        if isinstance(function, ast.Attribute) and re.fullmatch(r"[a-z]\w*(?<!_)_", function.attr):
            return self._changed(function.value, node)
        node.value = self._bound(node.value, (), node)
        return node

    def _changed(self, target: ast.expr, node: ast.AugAssign | ast.Expr) -> list[ast.stmt]:
        """Record a statement that changes a value in place, by reading it again where that is safe."""
        site = self._site((self._target(target),), self._text(node), node)
        result = self._reread(target) or ast.Constant(None)
        self.generic_visit(node)
        before = ast.Expr(_call("begin", ast.Constant(site)))
        after = ast.Expr(_call("end", ast.Constant(site), ast.Constant(None), result))
        return [_locate(before, node), node, _locate(after, node)]

    def _reread(self, node: ast.expr) -> ast.expr | None:
        """Return an expression that reads the current value of a name, an attribute or an item.

        It runs no code of the user's: `x`, `<relay>.attribute(x, "y")`, `<relay>.item(x, 0)`.
        """
        if isinstance(node, ast.Name):
            return ast.Name(node.id, ast.Load())
        if isinstance(node, ast.Attribute) and (owner := self._reread(node.value)):
            return _call("attribute", owner, ast.Constant(node.attr))
        if isinstance(node, ast.Subscript) and (owner := self._reread(node.value)):
            plain = ast.Name | ast.Constant | ast.Slice | ast.Tuple | ast.UnaryOp | ast.BinOp
            leaves = plain | ast.operator | ast.unaryop | ast.expr_context
            if all(isinstance(part, leaves) for part in ast.walk(node.slice)):
                return _call("item", owner, deepcopy(node.slice))
        return None

    def visit_Return(self, node: ast.Return | ast.Yield) -> ast.AST:
        """Record a returned or yielded expression; a name has its row already."""
        verb = type(node).__name__.lower()
        if isinstance(node.value, ast.Tuple):
            for i, element in enumerate(node.value.elts):
                node.value.elts[i] = self._returned(element, f"{verb}[{i}]")
        elif node.value is not None:
            node.value = self._returned(node.value, verb)
        return node

    visit_Yield = visit_Return  # noqa: N815 - names of ast

    def _returned(self, value: ast.expr, name: str) -> ast.expr:
        if isinstance(value, ast.Name | ast.Constant):
            return value
        if isinstance(value, ast.Starred) or _suspends(value):
            return self.visit(value)
        return self._bound(value, (name,), value)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> ast.stmt:
        bind = self._bind(node.target, node.iter, "in ")
        self.generic_visit(node)
        node.body = bind + node.body
        return node

    visit_AsyncFor = visit_For  # noqa: N815 - names of ast

    def visit_With(self, node: ast.With | ast.AsyncWith) -> ast.stmt:
        bind: list[ast.stmt] = []
        for item in node.items:
            if item.optional_vars is not None:
                bind += self._bind(item.optional_vars, item.context_expr)
        self.generic_visit(node)
        node.body = bind + node.body
        return node

    visit_AsyncWith = visit_With  # noqa: N815 - names of ast

    def visit_match_case(self, node: ast.match_case) -> ast.match_case:
        """Record the names that a pattern binds, where there is no expression to wrap."""
        captured = [
            getattr(part, "rest" if isinstance(part, ast.MatchMapping) else "name")
            for part in ast.walk(node.pattern)
            if isinstance(part, ast.MatchAs | ast.MatchStar | ast.MatchMapping)
        ]
        names = [ast.Name(name) for name in dict.fromkeys(captured) if name]
        bind = [
            each
            for name in names
            for each in self._bind(_locate(name, node.pattern), node.pattern, "case ")
        ]
        node.guard = node.guard and self.visit(node.guard)
        node.body = bind + [each for child in node.body for each in self._visited(child)]
        return node

    def _bind(self, target: ast.expr, value: ast.AST, verb: str = "") -> list[ast.stmt]:
        """Return statements that record names just bound to a value or to its elements."""
        if isinstance(target, ast.Tuple | ast.List):
            return [each for element in target.elts for each in self._bind(element, value, verb)]
        if isinstance(target, ast.Starred):
            return self._bind(target.value, value, verb)
        value_now = self._reread(target)
        if value_now is None:
            return []
        name = target.id if isinstance(target, ast.Name) else self._text(target)
        site = self._site((name,), verb + self._text(value), target)
        return [_locate(ast.Expr(self._wrap(value_now, site)), target)]

    # Subexpressions.

    def _part(self, node: ast.expr) -> ast.expr:
        if self.in_f_string or (self.parts and _suspends(node)):
            return self.generic_visit(node)  # type: ignore[return-value]
        if not self.parts:
            return self._shape_of(node)
        site = self._site((UNNAMED,), self._text(node), node)
        self.generic_visit(node)
        return self._wrap(node, site)

    visit_BinOp = visit_UnaryOp = visit_Compare = _part  # noqa: N815 - names of ast

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id in _OF_THE_FRAME:
            return self.generic_visit(node)  # type: ignore[return-value]
        return self._part(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.ctx, ast.Load):
            return self._part(node)
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.attr in VIEWS:
            return self._part(node)
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        recorded = node.id in self.unbound and isinstance(node.ctx, ast.Load)
        return self._shape_of(node) if recorded and not self.in_f_string else node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        return self._with_unbound(node, {argument.arg for argument in arguments})

    def visit_GeneratorExp(
        self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp
    ) -> ast.expr:
        targets = [part for each in node.generators for part in ast.walk(each.target)]
        return self._with_unbound(node, {each.id for each in targets if isinstance(each, ast.Name)})

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp  # noqa: N815 - names of ast

    def _with_unbound(self, node: ast.expr, names: set[str]) -> ast.expr:
        """Visit a lambda or comprehension, whose names get no steps, but whose shapes are recorded."""
        outer, self.unbound = self.unbound, self.unbound | names
        self.generic_visit(node)
        self.unbound = outer
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        outer, self.in_f_string = self.in_f_string, True
        self.generic_visit(node)
        self.in_f_string = outer
        return node

    def _shape_of(self, node: ast.expr) -> ast.expr:
        """Record the shape of an expression, which gets no row."""
        site = self._site((), self._text(node), node)
        self.generic_visit(node)
        return _locate(_call("part", ast.Constant(site), node), node)

    # The pieces of a recording call.

    def _bound(self, value: ast.expr, targets: tuple[Target, ...], statement: ast.AST) -> ast.expr:
        """Wrap an expression and its subexpressions."""
        line: int = statement.lineno  # type: ignore[attr-defined]
        displayed: list[ast.expr] = []
        if isinstance(value, ast.List | ast.Tuple | ast.Dict):
            displayed = value.values if isinstance(value, ast.Dict) else value.elts
        plain = not any(isinstance(each, ast.Starred) for each in displayed)
        elements = [self._text(each) for each in displayed if plain]
        site = self._site(targets, self._text(value), value, line, elements)
        if isinstance(value, _PARTS):
            self.generic_visit(value)
        else:
            value = self.visit(value)
        return self._wrap(value, site)

    def _site(
        self,
        targets: tuple[Target, ...],
        how: str,
        node: ast.AST,
        line: int = 0,
        elements: Iterable[str] = (),
    ) -> int:
        lines, columns = (node.lineno, node.end_lineno), (node.col_offset, node.end_col_offset)  # type: ignore[attr-defined]
        self.sites.append(
            RecordingSite(targets, how, (self.file, *lines, *columns), line or lines[0], tuple(elements))
        )
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

    def _text(self, node: ast.AST) -> str:
        """Return a node's source, on one line."""
        if self.in_f_string:
            return ast.unparse(node)
        lines = self.lines[node.lineno - 1 : node.end_lineno]  # type: ignore[attr-defined]
        lines[-1] = lines[-1][: node.end_col_offset]  # type: ignore[attr-defined]
        lines[0] = lines[0][node.col_offset :]  # type: ignore[attr-defined]
        return " ".join(b"".join(lines).decode().split())


_PARTS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Subscript, ast.Attribute, ast.Name)
"""Expressions whose shape is recorded, which is not done twice where they are bound."""

_OF_THE_FRAME = {"super", "locals", "globals", "vars", "dir", "eval", "exec"}
"""Builtins that inspect the frame of their caller."""


def _suspends(node: ast.AST) -> bool:
    """Check whether running this node can suspend its function."""
    if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return False
    if isinstance(node, ast.comprehension) and node.is_async:
        return True
    return any(_suspends(child) for child in ast.iter_child_nodes(node))


def _call(method: str, *arguments: ast.expr) -> ast.Call:
    function = ast.Attribute(ast.Constant(RELAY), method, ast.Load())
    return ast.Call(function, list(arguments), [])


_Node = TypeVar("_Node", bound=ast.AST)


def _locate(new: _Node, old: ast.AST) -> _Node:
    """Set the position of all nodes without one to that of `old`."""
    for node in ast.walk(new):
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            ast.copy_location(node, old)
    return new
