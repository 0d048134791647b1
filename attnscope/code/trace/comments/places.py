"""The places in source code that bind names, the comments beside them, and the steps that ran there.

Names come from Python's parser, comments and the ends of lines from its tokenizer.
A place is a logical line: a statement over several lines, several statements with `;` between them,
or the head of a loop is one place, with room for one comment at its end.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from attnscope.base.errors import SourceError
from attnscope.observe.trace import Step

_NO_CODE = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(eq=False)
class Function:
    """A function: its node, and the function around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    outer: Function | None


@dataclass(eq=False)
class Binding:
    """A name that a place binds."""

    name: str  #: its source, such as `self.attn`; `return`, or `return[1]`, for a returned value
    position: tuple[int, int]
    place: Place
    #: its last line, if it can have its own lines, as arguments and returned values can
    end: int | None = None
    argument: bool = False
    returns: str | None = None  #: the returned name, if the returned value is just a name


@dataclass(eq=False)
class Comment:
    """A comment: its line, column and text."""

    line: int
    column: int
    text: str
    alone: bool  #: whether it has its line to itself
    place: Place | None  #: the logical line that contains it; None between two of them


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
    """The text of a source file, with its places and comments in order."""

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


# What ran there.


@dataclass(frozen=True)
class Call:
    """One call of a function: its number among the calls at its depth."""

    function: Function | None
    depth: int
    number: int


@dataclass(frozen=True, eq=False)
class Run:
    """A step and the call that it belongs to."""

    call: Call
    step: Step


class History:
    """The steps of each binding, run by run.

    A call begins with its arguments. One without tensors cannot be distinguished from the one before.
    """

    def __init__(self, code: Code, steps: Iterable[Step]) -> None:
        self.runs_of: dict[Binding, list[Run]] = defaultdict(list)
        self.order: list[Run] = []
        number: dict[tuple[Function | None, int], int] = defaultdict(int)
        arguments: dict[tuple[Function | None, int], set[str] | None] = defaultdict(set)
        for step in steps:
            binding = code.binding_of(step)
            if binding is None:
                continue
            key = binding.place.function, step.depth
            names = arguments[key]
            if not binding.argument:
                arguments[key] = None
            elif names is None or step.name in names:
                number[key] += 1
                arguments[key] = {step.name}
            else:
                names.add(step.name)
            run = Run(Call(*key, number[key]), step)
            self.runs_of[binding].append(run)
            self.order.append(run)

    def last_before(self, run: Run, name: str) -> Run | None:
        """Return the last step of a name in the same call before a run."""
        earlier = self.order[: self.order.index(run)]
        return next((e for e in reversed(earlier) if (e.call, e.step.name) == (run.call, name)), None)

    def generic_functions(self) -> set[Function | None]:
        """Return the functions that were called with arguments of different axes."""
        generic = set()
        for binding, runs in self.runs_of.items():
            if (
                binding.argument
                and len({run.step.dims for run in runs if run.step.name == binding.name}) > 1
            ):
                generic.add(binding.place.function)
        return generic
