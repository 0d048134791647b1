"""The places in source code that bind names, and the comments beside them.

Names come from Python's parser, comments and the ends of lines from its tokenizer.
A place is a logical line: a statement over several lines, several statements with `;` between them,
or the head of a loop is one place, with room for one comment at its end.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from attnscope.errors import SourceError
from attnscope.observe.trace import Step

_NO_CODE = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(eq=False)
class Function:
    """A function: its node, and the function around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    outer: Function | None


@dataclass(eq=False)
class Binding:
    """A name that a place binds.

    Attributes:
        name: its source, such as `self.attn`; `return`, or `return[1]`, for a returned value.
        position: its line and column.
        place: the logical line that binds it.
        end: its last line, if it can have its own lines, as arguments and returned values can.
        argument: whether it is an argument.
        returns: the returned name, if the returned value is just a name.
    """

    name: str
    position: tuple[int, int]
    place: Place
    end: int | None = None
    argument: bool = False
    returns: str | None = None


@dataclass(eq=False)
class Comment:
    """A comment: its line, column and text.

    Attributes:
        alone: whether it has its line to itself.
        place: the logical line that contains it; None between two of them.
    """

    line: int
    column: int
    text: str
    alone: bool
    place: Place | None


@dataclass(eq=False)
class Place:
    """A logical line: its first line and indentation, its last line, and the comment at its end."""

    first: int
    column: int
    last: int = 0
    comment: Comment | None = None
    function: Function | None = None
    bindings: list[Binding] = field(default_factory=list)

    @property
    def binds(self) -> list[Binding]:
        """Its bindings, without arguments."""
        return [binding for binding in self.bindings if not binding.argument]


class Code:
    """The text of a source file, with its places and comments in order.

    Raises:
        SourceError: it is not Python.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = list(io.StringIO(text, newline=""))  # as in Python, form feeds end no line
        plain = [line.rstrip("\r\n") + "\n" for line in self.lines]
        self.places: list[Place] = []
        self.comments: list[Comment] = []
        self.functions: list[Function] = []
        try:
            self.tree = ast.parse("".join(plain))
            self._read(plain)
        except (SyntaxError, ValueError, tokenize.TokenError) as error:
            line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise SourceError(f"this is not Python: {line}{reason}.") from error
        self._at = {n: place for place in self.places for n in range(place.first, place.last + 1)}
        self._encoded = [line.encode() for line in plain]
        self._starts = [0, *accumulate(map(len, self.lines))]
        self._bind()

    def place_of(self, line: int | None) -> Place | None:
        """Return the logical line that a line belongs to."""
        return self._at.get(line or 0)

    def offset(self, line: int, column: int = 0) -> int:
        """Return the index in the text of a line and a column in bytes, as syntax trees have it."""
        within = self._encoded[line - 1][:column].decode() if column else ""
        return self._starts[line - 1] + len(within)

    def binding_of(self, step: Step) -> Binding | None:
        """Return the binding of a step: `parts` for `parts[0]`, unless the code binds that itself."""
        place = self.place_of(step.line)
        bindings = place.bindings if place else []
        bound = [b for b in bindings if step.name == b.name or step.name.startswith(f"{b.name}[")]
        is_input = step.how == "input"
        return max(bound, key=lambda b: (b.argument == is_input, len(b.name)), default=None)

    def bindings_of(self, function: Function | None) -> list[Binding]:
        """Return the bindings in a function, without those of functions in it, by position."""
        places = [place for place in self.places if place.function is function]
        return [binding for place in places for binding in place.bindings]

    def function_at(self, comment: Comment) -> Function | None:
        """Return the function that contains a comment; between statements, its column decides."""
        if comment.place is not None:
            return comment.place.function
        before = [place for place in self.places if place.last < comment.line]
        return _around(before[-1], comment.column) if before else None

    def _read(self, lines: list[str]) -> None:
        """Find logical lines and comments."""
        place: Place | None = None
        for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
            line, column = token.start
            if token.type == tokenize.COMMENT:
                alone = not lines[line - 1][:column].strip()
                self.comments.append(Comment(line, column, token.string, alone, place))
            elif token.type == tokenize.NEWLINE and place is not None:
                place.last = line
                if self.comments and self.comments[-1].line == line:
                    place.comment = self.comments[-1]
                place = None
            elif token.type not in _NO_CODE and place is None:
                place = Place(line, column)
                self.places.append(place)

    def _bind(self) -> None:
        """Find the bindings of each place, and the function that contains it."""
        todo: list[tuple[ast.AST, Function | None]] = [(self.tree, None)]
        known = set()
        while todo:
            node, function = todo.pop()
            place = self.place_of(getattr(node, "lineno", None))
            if place is not None:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    function = Function(node, function)
                    self.functions.append(function)
                if isinstance(node, ast.stmt):
                    place.function = function
                    known.add(place)
                place.bindings += self._bindings(node, place)
            todo += [(child, function) for child in ast.iter_child_nodes(node)]
        for before, place in pairwise(self.places):
            if place not in known:  # a decorator, an `else:`
                place.function = _around(before, place.column)
        for place in self.places:
            place.bindings.sort(key=lambda binding: binding.position)
        self.functions.sort(key=lambda function: function.node.lineno)

    def _bindings(self, node: ast.AST, place: Place) -> Iterator[Binding]:
        """Return the bindings of a node itself."""
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.NamedExpr | ast.For | ast.AsyncFor) or (
            isinstance(node, ast.AnnAssign) and node.value is not None
        ):
            targets = [node.target]
        elif isinstance(node, ast.With | ast.AsyncWith):
            targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
        elif (passed_out := _returned_or_yielded(node)) is not None:
            verb, result = passed_out
            several = isinstance(result, ast.Tuple)
            values = result.elts if isinstance(result, ast.Tuple) else [result]
            for i, value in enumerate(values):
                name = f"{verb}[{i}]" if several else verb
                returns = value.id if isinstance(value, ast.Name) else None
                yield Binding(name, _start(value), place, value.end_lineno, returns=returns)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in arguments_of(node.args):
                yield Binding(each.arg, _start(each), place, each.end_lineno, argument=True)
        for target in targets:
            for leaf in _leaves(target):
                yield Binding(self._text(leaf), _start(leaf), place)

    def _text(self, node: ast.expr) -> str:
        """Return a node's source, on one line, as in the tracer's rows."""
        last = node.end_lineno or node.lineno
        lines = self._encoded[node.lineno - 1 : last]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b"".join(lines).decode().split())


def _around(before: Place, column: int) -> Function | None:
    """Return the function that contains a column after a place, from its indentation."""
    function = before.function
    while function is not None and function.node.col_offset >= column:
        function = function.outer
    return function


def _returned_or_yielded(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Find the expression that a statement returns or yields, with the name of its row."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield):
        return ("yield", node.value.value) if node.value.value is not None else None
    return ("return", node.value) if isinstance(node, ast.Return) and node.value is not None else None


def arguments_of(signature: ast.arguments) -> list[ast.arg]:
    """Return all arguments of a function."""
    single = [each for each in (signature.vararg, signature.kwarg) if each is not None]
    return [*signature.posonlyargs, *signature.args, *signature.kwonlyargs, *single]


def _leaves(target: ast.expr) -> Iterator[ast.expr]:
    """Return the bindings of a target, such as the parts of a pattern."""
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _leaves(element)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def _start(node: ast.expr | ast.arg) -> tuple[int, int]:
    return node.lineno, node.col_offset
